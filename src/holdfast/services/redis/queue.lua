-- Shared by the scripts of a queue. All keys begin with KEYS[1], which holds the hash tag: in a Cluster a queue
-- lies in one slot.
--
--   :last         the highest number given to a message
--   :bodies       hash: number -> body; all messages are here
--   :attributes   hash: number -> attributes as JSON, of those that have any
--   :deliveries   hash: number -> "RECEIVES HOLDER", of those that were delivered; without HOLDER no receipt
--                 counts
--   :order        list: numbers as they were sent; some may be gone
--   :ready        sorted set: number, by itself; what can be delivered now
--   :in_flight    sorted set: number, by the time at which its delivery ends
--   :delayed      sorted set: number, by the time at which it shows
--   :waiters      sorted set: channel of a process that waits, by the time until which it does
--   :letters      sorted set: id of a dead letter, by its bytes
--   :letter_times sorted set: id of a dead letter, by the time at which it came
--   :letter_bodies, :letter_attributes, :letter_records
--                 hashes: id -> body, attributes as JSON, and the rest as JSON
local root = KEYS[1]
local BIG = 5000

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

-- Adds messages: delay in microseconds, body and attributes of each. Returns their numbers, which must grow even
-- when the server has lost its data or has another's: by time. Or they begin at the number ``first``.
local function add(messages, first)
  local now, count = now_us(), #messages / 3
  local last = math.max(tonumber(redis.call('GET', root .. ':last') or 0), now - 1)
  if first and first ~= '' then last = first - 1 end
  local numbers, bodies, attributes, ready, delayed = {}, {}, {}, {}, {}
  for i = 1, count do
    local number = text(last + i)
    local delay, told = tonumber(messages[3 * i - 2]), messages[3 * i]
    numbers[i] = number
    bodies[2 * i - 1], bodies[2 * i] = number, messages[3 * i - 1]
    if told ~= '' then
      attributes[#attributes + 1] = number
      attributes[#attributes + 1] = told
    end
    local set = delay > 0 and delayed or ready
    set[#set + 1] = delay > 0 and text(now + delay) or number
    set[#set + 1] = number
  end
  -- The first change is one that a server without memory refuses: then there is none.
  redis.call('HSET', root .. ':bodies', unpack(bodies))
  redis.call('SET', root .. ':last', text(last + count))
  redis.call('RPUSH', root .. ':order', unpack(numbers))
  if #attributes > 0 then redis.call('HSET', root .. ':attributes', unpack(attributes)) end
  if #ready > 0 then redis.call('ZADD', root .. ':ready', unpack(ready)) end
  if #delayed > 0 then redis.call('ZADD', root .. ':delayed', unpack(delayed)) end
  ring(count)
  return numbers
end

-- Makes ready what is due in a set.
local function show(set, now)
  while true do
    local due = redis.call('ZRANGEBYSCORE', root .. set, '-inf', text(now), 'LIMIT', 0, 1000)
    if #due == 0 then return end
    local ready = {}
    for i, number in ipairs(due) do ready[2 * i - 1], ready[2 * i] = number, number end
    redis.call('ZADD', root .. ':ready', unpack(ready))
    redis.call('ZREM', root .. set, unpack(due))
  end
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
