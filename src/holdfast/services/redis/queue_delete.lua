-- ARGV: number and receives of each delivery. Returns the places, from 0 on, of those that don't count although
-- their messages are there.
local gone, stale, numbers = {}, {}, {}
for i = 1, #ARGV, 2 do numbers[#numbers + 1] = ARGV[i] end
local deliveries = redis.call('HMGET', root .. ':deliveries', unpack(numbers))
for i = 1, #ARGV, 2 do
  local delivery = deliveries[(i + 1) / 2]
  if delivery and string.match(delivery, '^(%d+) ') == ARGV[i + 1] then
    gone[#gone + 1] = ARGV[i]
  elseif redis.call('HEXISTS', root .. ':bodies', ARGV[i]) == 1 then
    stale[#stale + 1] = (i - 1) / 2
  end
end
if #gone > 0 then
  for _, part in ipairs({':bodies', ':attributes', ':deliveries'}) do
    redis.call('HDEL', root .. part, unpack(gone))
  end
  redis.call('ZREM', root .. ':in_flight', unpack(gone))
  redis.call('ZREM', root .. ':ready', unpack(gone))
  if not plain() then
    redis.call('HDEL', root .. ':marks', unpack(gone))
    redis.call('ZREM', root .. ':delayed', unpack(gone))
  end
  trim()
end
return {'ok', stale}
