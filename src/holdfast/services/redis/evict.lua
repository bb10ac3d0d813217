-- ARGV: member. Returns 1 if it lived.
local record = redis.call('GET', root .. ':member:' .. ARGV[1])
redis.call('DEL', root .. ':member:' .. ARGV[1])
local told = record or redis.call('HGET', root .. ':members', ARGV[1])
if told then tell_ended(ARGV[1], told) end
return record and 1 or 0
