-- ARGV: key as JSON, holder, epoch, microseconds from now. Returns '1' if the holder has the reservation, else '0'.
local now, key = now_us(), ARGV[1]
local epoch, holder, seen, last = reservation(key, now)
local given = tonumber(ARGV[3])
if holder == ARGV[2] then
  given = math.max(given, tonumber(epoch))
elseif holder and tonumber(epoch) > given then
  return {'ok', '0'}
end
-- What is sent from now on is set aside at once, what is ready later.
if not holder then seen, last = '0', redis.call('GET', root .. ':last') or '0' end
redis.call('HSET', root .. ':holders', key, table.concat({text(given), seen, last, ARGV[2]}, ' '))
redis.call('ZADD', root .. ':reservations', text(now + ARGV[4]), key)
return {'ok', '1'}
