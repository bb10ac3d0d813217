-- What becomes ready, and what is set aside for a reservation instead.
local PIECE = 1000
local STEP = 300 * 1000000

-- The time until which what is set aside is delayed, 15 to 20 minutes from now, and the steps by which it differs.
-- By its fraction no other time equals it.
local function stamp(now, steps)
  return string.format('%.1f', (math.floor(now / STEP) + (steps or 4)) * STEP + 0.5)
end

-- The places of messages in the order of arrival.
local function turns_of(numbers)
  if redis.call('EXISTS', root .. ':marks') == 0 then return numbers end
  local turns = redis.call('HMGET', root .. ':marks', unpack(numbers))
  for i, number in ipairs(numbers) do turns[i] = turns[i] and string.match(turns[i], ' (%d+)$') or number end
  return turns
end

-- Sets aside those of at most 1,000 messages whose keys are reserved. Returns the others.
local function sift(numbers, now)
  local others, lives, aside, hidden, kept, until_us = {}, {}, {}, {}, {}, stamp(now)
  local turns = turns_of(numbers)
  for i, attributes in ipairs(redis.call('HMGET', root .. ':attributes', unpack(numbers))) do
    local key = attributes and string.match(attributes, '^{\t[^\n]*\n([^\n]*)\n')
    if key and lives[key] == nil then
      local ends = redis.call('ZSCORE', root .. ':reservations', key)
      lives[key] = ends and tonumber(ends) > now or false
      kept[key] = {}
    end
    if key and lives[key] then
      local set = kept[key]
      set[#set + 1], set[#set + 2] = turns[i], numbers[i]
      hidden[#hidden + 1], hidden[#hidden + 2] = until_us, numbers[i]
      aside[#aside + 1] = numbers[i]
    else
      others[#others + 1] = numbers[i]
    end
  end
  if #aside > 0 then
    redis.call('ZREM', root .. ':ready', unpack(aside))
    redis.call('ZADD', root .. ':delayed', unpack(hidden))
    for key, set in pairs(kept) do
      if lives[key] then redis.call('ZADD', root .. ':kept:' .. key, unpack(set)) end
    end
  end
  return others
end

local function put(numbers, turns)
  local ready = {}
  for i, number in ipairs(numbers) do ready[2 * i - 1], ready[2 * i] = turns[i], number end
  if #ready > 0 then redis.call('ZADD', root .. ':ready', unpack(ready)) end
end

-- Makes at most 1,000 messages ready, or sets them aside. Returns how many are ready.
local function appear(numbers, now)
  if #numbers == 0 or plain() then
    put(numbers, numbers)
    return #numbers
  end
  numbers = sift(numbers, now)
  if #numbers > 0 then
    redis.call('ZREM', root .. ':delayed', unpack(numbers))
    put(numbers, turns_of(numbers))
  end
  return #numbers
end
