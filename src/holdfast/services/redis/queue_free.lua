-- ARGV: holder. Returns how many deliveries ended. Their receipts count until their messages are delivered again.
local freed, now = 0, text(now_us())
local numbers = redis.call('ZRANGEBYSCORE', root .. ':in_flight', '(' .. now, '+inf')
for begin = 1, #numbers, BIG do
  local some = {unpack(numbers, begin, math.min(begin + BIG - 1, #numbers))}
  for i, delivery in ipairs(redis.call('HMGET', root .. ':deliveries', unpack(some))) do
    if delivery and string.match(delivery, ' (.*)$') == ARGV[1] then
      redis.call('ZREM', root .. ':in_flight', some[i])
      redis.call('ZADD', root .. ':ready', some[i], some[i])
      freed = freed + 1
    end
  end
end
ring(freed)
return {'ok', freed}
