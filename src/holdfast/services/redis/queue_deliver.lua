-- Makes ready what is due in a set, a part of it if that is very much.
local function show(set, now)
  for _ = 1, 10 do
    local due = redis.call('ZRANGEBYSCORE', root .. set, '-inf', text(now), 'LIMIT', 0, PIECE)
    if #due == 0 then return end
    redis.call('ZREM', root .. set, unpack(due))
    appear(due, now)
  end
end

-- Delivers messages for so many microseconds to a holder, but for what is gone. Returns what a script answers: 'ok', a
-- word, "EXCUSED TURN" of each if any has it ('': it has none), and number, receives, body and attributes of each.
local function deliver(numbers, now, visibility, holder, word, marked)
  local before = redis.call('HMGET', root .. ':deliveries', unpack(numbers))
  local bodies = redis.call('HMGET', root .. ':bodies', unpack(numbers))
  local attributes = redis.call('HMGET', root .. ':attributes', unpack(numbers))
  local known = marked and redis.call('HMGET', root .. ':marks', unpack(numbers))
  local deliveries, hidden, marks, until_us = {}, {}, {}, text(now + visibility)
  local told, count = {'ok', word, marks}, 0
  for i, number in ipairs(numbers) do
    if bodies[i] then
      local receives = text((tonumber(string.match(before[i] or '', '^%d+')) or 0) + 1)
      local place = 4 * count + 3
      count = count + 1
      deliveries[2 * count - 1], deliveries[2 * count] = number, receives .. ' ' .. holder
      hidden[2 * count - 1], hidden[2 * count] = until_us, number
      told[place + 1], told[place + 2], told[place + 3] = number, receives, bodies[i]
      told[place + 4] = attributes[i] or ''
      if known then marks[count] = known[i] or '' end
    end
  end
  if count > 0 then
    redis.call('ZADD', root .. ':in_flight', unpack(hidden))
    redis.call('HSET', root .. ':deliveries', unpack(deliveries))
  end
  redis.call('ZREM', root .. ':ready', unpack(numbers))
  return told
end
