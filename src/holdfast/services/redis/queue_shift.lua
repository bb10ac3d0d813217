-- ARGV: microseconds from now, '1' if the deliveries end, seconds below which waiters are told; then number and
-- receives of each delivery. Returns the places, from 0 on, of those that don't count.
local now, ends = now_us(), ARGV[2] == '1'
local shows = text(now + ARGV[1])
local stale, told, shown, usual = {}, 0, {}, plain()
for i = 4, #ARGV, 2 do
  local number, receives = ARGV[i], ARGV[i + 1]
  local delivery = redis.call('HGET', root .. ':deliveries', number)
  if not delivery or string.match(delivery, '^(%d+) ') ~= receives then
    stale[#stale + 1] = (i - 4) / 2
  elseif not ends then
    redis.call('ZADD', root .. ':in_flight', shows, number)
    redis.call('ZREM', root .. ':ready', number)
    if not usual then redis.call('ZREM', root .. ':delayed', number) end
  else
    redis.call('HSET', root .. ':deliveries', number, receives)
    redis.call('ZREM', root .. ':in_flight', number)
    if tonumber(ARGV[1]) > 0 then
      redis.call('ZADD', root .. ':delayed', shows, number)
      redis.call('ZREM', root .. ':ready', number)
    else
      shown[#shown + 1] = number
    end
    told = told + 1
  end
end
appear(shown, now)
if tonumber(ARGV[1]) < tonumber(ARGV[3]) then ring(told) end
return {'ok', stale}
