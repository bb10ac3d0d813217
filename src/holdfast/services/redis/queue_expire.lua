-- ARGV: microseconds since 1970, how many. Returns how many older letters were dropped.
local ids = redis.call(
  'ZRANGEBYSCORE', root .. ':letter_times', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do forget_dead_letter(id) end
return {'ok', #ids}
