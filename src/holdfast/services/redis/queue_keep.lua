-- ARGV: holder, microseconds from now; then keys as JSON. Returns the places, from 0 on, of those that the holder
-- hasn't reserved.
local now, lost = now_us(), {}
local until_us = text(now + ARGV[2])
for i = 3, #ARGV do
  local _, holder = reservation(ARGV[i], now)
  if holder == ARGV[1] then
    redis.call('ZADD', root .. ':reservations', until_us, ARGV[i])
  else
    lost[#lost + 1] = i - 3
  end
end
return {'ok', lost}
