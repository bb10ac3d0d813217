-- ARGV: how many, bytes of bodies that are enough, visibility in microseconds, holder, channel of the process
-- ('': it doesn't wait), for how long it waits at most. Returns in how many microseconds the next message shows
-- if none does now (-1: there is none), and number, receives, body and attributes of each.
local now = now_us()
show(':in_flight', now)
show(':delayed', now)
local numbers, bytes = redis.call('ZRANGE', root .. ':ready', 0, ARGV[1] - 1), 0
local taken = {}
for i, number in ipairs(numbers) do
  bytes = bytes + redis.call('HSTRLEN', root .. ':bodies', number)
  if i > 1 and bytes > tonumber(ARGV[2]) then break end
  taken[i] = number
end
if #taken == 0 then
  if ARGV[5] ~= '' then redis.call('ZADD', root .. ':waiters', text(now + ARGV[6]), ARGV[5]) end
  local due = -1
  for _, set in ipairs({':in_flight', ':delayed'}) do
    local first = redis.call('ZRANGE', root .. set, 0, 0, 'WITHSCORES')[2]
    if first and (due < 0 or first - now < due) then due = math.max(0, first - now) end
  end
  return {'ok', text(due)}
end

local before = redis.call('HMGET', root .. ':deliveries', unpack(taken))
local bodies = redis.call('HMGET', root .. ':bodies', unpack(taken))
local attributes = redis.call('HMGET', root .. ':attributes', unpack(taken))
local deliveries, hidden, told, until_us = {}, {}, {'ok', '0'}, text(now + ARGV[3])
for i, number in ipairs(taken) do
  local receives = text((tonumber(string.match(before[i] or '', '^%d+')) or 0) + 1)
  deliveries[2 * i - 1], deliveries[2 * i] = number, receives .. ' ' .. ARGV[4]
  hidden[2 * i - 1], hidden[2 * i] = until_us, number
  local place = 4 * i - 2
  told[place + 1], told[place + 2], told[place + 3] = number, receives, bodies[i]
  told[place + 4] = attributes[i] or ''
end
redis.call('ZADD', root .. ':in_flight', unpack(hidden))
redis.call('HSET', root .. ':deliveries', unpack(deliveries))
redis.call('ZREM', root .. ':ready', unpack(taken))
return told
