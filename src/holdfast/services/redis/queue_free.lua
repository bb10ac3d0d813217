-- ARGV: holder. Returns how many deliveries ended. Their receipts count until their messages are delivered again.
-- The holder's reservations end too.
local freed, shown, now = 0, 0, now_us()
local holders = redis.call('HGETALL', root .. ':holders')
for i = 1, #holders, 2 do
  if string.match(holders[i + 1], '^%d+ %d+ %d+ (.*)$') == ARGV[1] then shown = shown + finish(holders[i]) end
end
local numbers = redis.call('ZRANGEBYSCORE', root .. ':in_flight', '(' .. text(now), '+inf')
for begin = 1, #numbers, PIECE do
  local some, ended = {unpack(numbers, begin, math.min(begin + PIECE - 1, #numbers))}, {}
  for i, delivery in ipairs(redis.call('HMGET', root .. ':deliveries', unpack(some))) do
    if delivery and string.match(delivery, ' (.*)$') == ARGV[1] then ended[#ended + 1] = some[i] end
  end
  if #ended > 0 then
    redis.call('ZREM', root .. ':in_flight', unpack(ended))
    shown = shown + appear(ended, now)
    freed = freed + #ended
  end
end
ring(shown)
return {'ok', freed}
