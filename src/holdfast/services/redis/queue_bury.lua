-- ARGV: id, body, attributes as JSON, the rest as JSON, and microseconds since 1970 ('': now), of each letter. One that
-- is there stays as it is.
local now = now_us()
for i = 1, #ARGV, 5 do
  if redis.call('HSETNX', root .. ':letter_bodies', ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('HSET', root .. ':letter_attributes', ARGV[i], ARGV[i + 2])
    redis.call('HSET', root .. ':letter_records', ARGV[i], ARGV[i + 3])
    redis.call('ZADD', root .. ':letters', 0, ARGV[i])
    redis.call('ZADD', root .. ':letter_times', ARGV[i + 4] ~= '' and ARGV[i + 4] or text(now), ARGV[i])
  end
end
return {'ok'}
