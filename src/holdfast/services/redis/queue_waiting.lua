-- ARGV: how many, bytes of bodies that are enough, after which number. Returns number, receives, microseconds of
-- delay that are left, body and attributes of each message, in the order in which they were sent.
local now, order, bodies = now_us(), root .. ':order', root .. ':bodies'
-- The first place in the order behind that number.
local low, high = 0, redis.call('LLEN', order)
while low < high do
  local middle = math.floor((low + high) / 2)
  if tonumber(redis.call('LINDEX', order, middle)) > tonumber(ARGV[3]) then high = middle else low = middle + 1 end
end
local marked = redis.call('EXISTS', root .. ':marks') == 1
local told, bytes, found, limit = {'ok'}, 0, 0, tonumber(ARGV[1])
while found < limit and bytes < tonumber(ARGV[2]) do
  local numbers = redis.call('LRANGE', order, low, low + limit - found - 1)
  if #numbers == 0 then break end
  low = low + #numbers
  for _, number in ipairs(numbers) do
    local body = bytes < tonumber(ARGV[2]) and redis.call('HGET', bodies, number)
    if body then
      local delivery = redis.call('HGET', root .. ':deliveries', number)
      local shows = redis.call('ZSCORE', root .. ':delayed', number)
      shows = shows and tonumber(shows)
      told[#told + 1] = number
      local receives = delivery and tonumber(string.match(delivery, '^%d+')) or 0
      local excused = marked and tonumber(string.match(redis.call('HGET', root .. ':marks', number) or '', '^%d+')) or 0
      told[#told + 1] = text(receives - excused)
      told[#told + 1] = shows and shows % 1 == 0 and text(math.max(0, shows - now)) or '0'
      told[#told + 1] = body
      told[#told + 1] = redis.call('HGET', root .. ':attributes', number) or ''
      found, bytes = found + 1, bytes + #body
    end
  end
end
return told
