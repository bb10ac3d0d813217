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
--   :ready        sorted set: number, by its turn, less what its priority gives it; what can be delivered now
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
-- The key is written in front of the attributes, since older versions read past it there, and delete it with them:
-- as the first value of a name that comes twice, of which the last counts: {TAB "name": LF "key" LF ,"name":"value"}.
-- A key without attributes isn't JSON, and is read as no attributes: {TAB LF "key" LF
--
-- What a reservation keeps is also delayed, by a time that no real delay has, so that older versions deliver it in the
-- end. That time is renewed long before it comes.
local root = KEYS[1]

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

-- Whether nothing is out of the ordinary: no message has a mark, no key is reserved.
local function plain()
  return redis.call('EXISTS', root .. ':marks', root .. ':reservations') == 0
end
