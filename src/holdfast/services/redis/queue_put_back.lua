-- ARGV: number and receives of each delivery, '1' if it counts, key as JSON ('': none).
-- Returns the places, from 0 on, of those that don't stand.
local now, ended, stale = now_us(), {}, {}

-- Notes the key of a message: its body has this one, whatever it was sent with.
local function note(number, key)
  local before = redis.call('HGET', root .. ':attributes', number) or ''
  local after = '{\t\n' .. key .. '\n'
  if string.sub(before, 1, 2) == '{\t' then
    local first = string.find(before, '\n', 3, true)
    local last = string.find(before, '\n', first + 1, true)
    if string.sub(before, first + 1, last - 1) == key then return end
    after = string.sub(before, 1, first) .. key .. string.sub(before, last)
  end
  if string.sub(before, 1, 2) == '{"' then
    local close = string.find(before, '["\\]', 3)
    while string.sub(before, close, close) == '\\' do close = string.find(before, '["\\]', close + 2) end
    after = '{\t' .. string.sub(before, 2, close) .. ':\n' .. key .. '\n,' .. string.sub(before, 2)
  end
  redis.call('HSET', root .. ':attributes', number, after)
end

for i = 1, #ARGV, 4 do
  local number, receives = ARGV[i], ARGV[i + 1]
  local delivery = redis.call('HGET', root .. ':deliveries', number)
  if not delivery or string.match(delivery, '^(%d+) ') ~= receives then
    stale[#stale + 1] = (i - 1) / 4
  else
    redis.call('HSET', root .. ':deliveries', number, receives)
    redis.call('ZREM', root .. ':in_flight', number)
    if ARGV[i + 2] == '0' then
      local excused, turn = string.match(redis.call('HGET', root .. ':marks', number) or '', '^(%d+) (%d+)$')
      redis.call('HSET', root .. ':marks', number, text((excused or 0) + 1) .. ' ' .. (turn or number))
    end
    if ARGV[i + 3] ~= '' then note(number, ARGV[i + 3]) end
    ended[#ended + 1] = number
  end
end
ring(appear(ended, now))
return {'ok', stale}
