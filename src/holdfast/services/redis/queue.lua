-- Shared by the scripts of a queue. All keys begin with KEYS[1], which holds the hash tag: in a Cluster a queue
-- lies in one slot.
--
--   :last         the highest number given to a message
--   :bodies       hash: number -> body; all messages are here
--   :attributes   hash: number -> attributes as JSON, of those that have any, with the key of those that have one
--   :marks        hash: number -> "EXCUSED TURN", of those that were put back or came again: the receives that
--                 don't count, and the place in the order of arrival, which of others is the number
--   :deliveries   hash: number -> "RECEIVES HOLDER", of those that were delivered; without HOLDER no receipt
--                 counts
--   :order        list: numbers as they were sent; some may be gone
--   :ready        sorted set: number, by its turn; what can be delivered now
--   :in_flight    sorted set: number, by the time at which its delivery ends
--   :delayed      sorted set: number, by the time at which it shows
--   :reservations sorted set: key, as JSON, by the time at which its reservation ends; 0: it was given up, but
--                 keeps messages yet
--   :holders      hash: key -> "EPOCH SEEN LAST HOLDER" of its reservation. Of the ready messages with turns up to
--                 LAST, those up to SEEN have been looked through for the key
--   :kept:KEY     sorted set: number, by its turn, of what the reservation keeps; some may be gone
--   :waiters      sorted set: channel of a process that waits, by the time until which it does
--   :letters      sorted set: id of a dead letter, by its bytes
--   :letter_times sorted set: id of a dead letter, by the time at which it came
--   :letter_bodies, :letter_attributes, :letter_records
--                 hashes: id -> body, attributes as JSON, and the rest as JSON
--
-- The key is part of the attributes, because versions that know no keys read and delete these. A key and a name of an
-- attribute that follows again with its value: {TAB "name": LF "key" LF ,"name":"value"}. Or a key alone, which
-- isn't JSON and read as no attributes: {TAB LF "key" LF
--
-- What a reservation keeps is also delayed, by a time that no real delay has: so older versions deliver it in the
-- end. It is renewed long before.
local root = KEYS[1]
local BIG = 5000
local PIECE = 1000
local STEP = 300 * 1000000

-- Microseconds since 1970; a double holds them exactly until 2255.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function text(number)
  return string.format('%.0f', number)
end

-- Wakes processes that wait, as many as there are messages for. It is published what they wait for.
local function ring(count)
  local waiters = root .. ':waiters'
  if count < 1 or redis.call('EXISTS', waiters) == 0 then return end
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', text(now_us()))
  local woken = redis.call('ZPOPMIN', waiters, count)
  for i = 1, #woken, 2 do redis.call('PUBLISH', woken[i], root) end
end

-- The time until which what is set aside is delayed, 15 to 20 minutes from now, and the steps by which it differs.
-- By its fraction no other time equals it.
local function stamp(now, steps)
  return string.format('%.1f', (math.floor(now / STEP) + (steps or 4)) * STEP + 0.5)
end

-- Whether a reservation keeps this message still: not if an older version has delivered or deleted it.
local function is_kept(number)
  local shows = redis.call('ZSCORE', root .. ':delayed', number)
  if not shows or tonumber(shows) % 1 == 0 then return false end
  if redis.call('HEXISTS', root .. ':bodies', number) == 1 then return true end
  redis.call('ZREM', root .. ':delayed', number)
  return false
end

local function has_reservations()
  return redis.call('EXISTS', root .. ':reservations') == 1
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

-- Makes at most 1,000 messages ready, or sets them aside. Returns how many are ready.
local function appear(numbers, now)
  if #numbers > 0 and has_reservations() then
    numbers = sift(numbers, now)
    if #numbers > 0 then redis.call('ZREM', root .. ':delayed', unpack(numbers)) end
  end
  if #numbers == 0 then return 0 end
  local ready = {}
  for i, turn in ipairs(turns_of(numbers)) do ready[2 * i - 1], ready[2 * i] = turn, numbers[i] end
  redis.call('ZADD', root .. ':ready', unpack(ready))
  return #numbers
end

-- Makes ready what is due in a set, a part of it if that is very much.
local function show(set, now)
  for _ = 1, 10 do
    local due = redis.call('ZRANGEBYSCORE', root .. set, '-inf', text(now), 'LIMIT', 0, PIECE)
    if #due == 0 then return end
    redis.call('ZREM', root .. set, unpack(due))
    appear(due, now)
  end
end

-- Renews the delay of some of what is set aside.
local function renew(now)
  for steps = 1, 2 do
    local before = stamp(now, steps)
    local some = redis.call('ZRANGEBYSCORE', root .. ':delayed', before, before, 'LIMIT', 0, PIECE)
    if #some > 0 then
      local hidden, until_us = {}, stamp(now)
      for i, number in ipairs(some) do hidden[2 * i - 1], hidden[2 * i] = until_us, number end
      redis.call('ZADD', root .. ':delayed', unpack(hidden))
      return
    end
  end
end

-- The epoch of the living reservation of a key, its holder, and how far it was looked through. Nothing if there is
-- none.
local function reservation(key, now)
  local ends = redis.call('ZSCORE', root .. ':reservations', key)
  if not ends or tonumber(ends) <= now then return end
  local epoch, seen, last, holder =
    string.match(redis.call('HGET', root .. ':holders', key) or '', '^(%d+) (%d+) (%d+) (.*)$')
  return epoch, holder, seen, last
end

-- Ends a reservation: what it keeps becomes ready in the receives that follow. Returns how much that is at most.
local function finish(key)
  local kept = redis.call('ZCARD', root .. ':kept:' .. key)
  redis.call('HDEL', root .. ':holders', key)
  if kept > 0 then
    redis.call('ZADD', root .. ':reservations', 0, key)
  else
    redis.call('ZREM', root .. ':reservations', key)
  end
  return kept
end

-- Delivers messages for so many microseconds to a holder, but for what is gone. Returns what a script answers: 'ok', a
-- word, "EXCUSED TURN" of each if any has it ('': it has none), and number, receives, body and attributes of each.
local function deliver(numbers, now, visibility, holder, word)
  local before = redis.call('HMGET', root .. ':deliveries', unpack(numbers))
  local bodies = redis.call('HMGET', root .. ':bodies', unpack(numbers))
  local attributes = redis.call('HMGET', root .. ':attributes', unpack(numbers))
  local known = redis.call('EXISTS', root .. ':marks') == 1 and redis.call('HMGET', root .. ':marks', unpack(numbers))
  local deliveries, hidden, marks, until_us = {}, {}, {}, text(now + visibility)
  local told = {'ok', word, marks}
  for i, number in ipairs(numbers) do
    if bodies[i] then
      local receives = text((tonumber(string.match(before[i] or '', '^%d+')) or 0) + 1)
      local last, place = #deliveries, #told
      deliveries[last + 1], deliveries[last + 2] = number, receives .. ' ' .. holder
      hidden[last + 1], hidden[last + 2] = until_us, number
      told[place + 1], told[place + 2], told[place + 3] = number, receives, bodies[i]
      told[place + 4] = attributes[i] or ''
      if known then marks[#marks + 1] = known[i] or '' end
    end
  end
  redis.call('ZREM', root .. ':ready', unpack(numbers))
  if #hidden > 0 then
    redis.call('ZADD', root .. ':in_flight', unpack(hidden))
    redis.call('HSET', root .. ':deliveries', unpack(deliveries))
  end
  return told
end

-- Adds messages: delay in microseconds, body and attributes of each. Returns their numbers, which must grow even
-- when the server has lost its data or has another's: by time. Or they begin at the number ``first``. Those that
-- had lower ``turns`` keep them.
local function add(messages, first, turns)
  local now, count = now_us(), #messages / 3
  local last = math.max(tonumber(redis.call('GET', root .. ':last') or 0), now - 1)
  if first and first ~= '' then last = first - 1 end
  local numbers, bodies, attributes, ready, delayed, marks = {}, {}, {}, {}, {}, {}
  for i = 1, count do
    local number = text(last + i)
    local delay, told = tonumber(messages[3 * i - 2]), messages[3 * i]
    numbers[i] = number
    bodies[2 * i - 1], bodies[2 * i] = number, messages[3 * i - 1]
    if told ~= '' then
      attributes[#attributes + 1] = number
      attributes[#attributes + 1] = told
    end
    if turns and turns[i] and turns[i] < last + i then
      marks[#marks + 1] = number
      marks[#marks + 1] = '0 ' .. text(turns[i])
    end
    if delay > 0 then
      delayed[#delayed + 1] = text(now + delay)
      delayed[#delayed + 1] = number
    else
      ready[#ready + 1] = number
    end
  end
  -- The first change is one that a server without memory refuses: then there is none.
  redis.call('HSET', root .. ':bodies', unpack(bodies))
  redis.call('SET', root .. ':last', text(last + count))
  redis.call('RPUSH', root .. ':order', unpack(numbers))
  if #attributes > 0 then redis.call('HSET', root .. ':attributes', unpack(attributes)) end
  if #marks > 0 then redis.call('HSET', root .. ':marks', unpack(marks)) end
  if #delayed > 0 then redis.call('ZADD', root .. ':delayed', unpack(delayed)) end
  ring(appear(ready, now) + #delayed / 2)
  return numbers
end

-- Drops from the head of the order what is gone, so that the head is the oldest message.
local function trim()
  for _ = 1, BIG do
    local head = redis.call('LINDEX', root .. ':order', 0)
    if not head or redis.call('HEXISTS', root .. ':bodies', head) == 1 then return end
    redis.call('LPOP', root .. ':order')
  end
end

local function forget_dead_letter(id)
  for _, part in ipairs({':letter_bodies', ':letter_attributes', ':letter_records'}) do
    redis.call('HDEL', root .. part, id)
  end
  redis.call('ZREM', root .. ':letters', id)
  redis.call('ZREM', root .. ':letter_times', id)
end
