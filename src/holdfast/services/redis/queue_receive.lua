-- ARGV: how many, bytes of bodies that are enough, visibility in microseconds, holder, channel of the process
-- ('': it doesn't wait), for how long it waits at most. Returns in how many microseconds the next message shows
-- if none does now (-1: there is none), "EXCUSED TURN" of each that is delivered if any has it, and number,
-- receives, body and attributes of each.
local now, limit = now_us(), tonumber(ARGV[1])
local usual = redis.call(
  'EXISTS', root .. ':in_flight', root .. ':delayed', root .. ':marks', root .. ':reservations') == 0
if not usual then
  show(':in_flight', now)
  show(':delayed', now)
  usual = plain()
end

local numbers, more, bytes = nil, false, 0
if not usual then
  -- Makes ready some of what ended reservations keep, oldest first.
  local function release()
    local left = PIECE
    for _, key in ipairs(redis.call('ZRANGEBYSCORE', root .. ':reservations', '-inf', text(now), 'LIMIT', 0, 100)) do
      local kept = root .. ':kept:' .. key
      local some = left > 0 and redis.call('ZRANGE', kept, 0, left - 1, 'WITHSCORES') or {}
      local numbers, turns = {}, {}
      for i = 1, #some, 2 do
        if is_kept(some[i]) then numbers[#numbers + 1], turns[#turns + 1] = some[i], some[i + 1] end
      end
      if #numbers > 0 then redis.call('ZREM', root .. ':delayed', unpack(numbers)) end
      put(numbers, turns)
      if #some > 0 then redis.call('ZREMRANGEBYRANK', kept, 0, #some / 2 - 1) end
      left = left - #some / 2
      finish(key)
    end
  end

  -- The first ready messages whose keys aren't reserved, and whether there may be more of them.
  local function unreserved()
    local found, aside = {}, 0
    while #found < limit do
      if aside >= PIECE then return found, true end
      local most = math.min(limit - #found + aside, PIECE)
      local some = redis.call('ZRANGE', root .. ':ready', #found, #found + most - 1)
      if #some == 0 then break end
      local others = sift(some, now)
      aside = aside + #some - #others
      for i = 1, math.min(#others, limit - #found) do found[#found + 1] = others[i] end
    end
    return found, false
  end

  release()
  renew(now)
  numbers, more = unreserved()
else
  numbers = redis.call('ZRANGE', root .. ':ready', 0, limit - 1)
end
local taken = {}
for i, number in ipairs(numbers) do
  bytes = bytes + redis.call('HSTRLEN', root .. ':bodies', number)
  if i > 1 and bytes > tonumber(ARGV[2]) then break end
  taken[i] = number
end
if #taken == 0 then
  if more then return {'ok', '0', {}} end
  if ARGV[5] ~= '' then redis.call('ZADD', root .. ':waiters', text(now + ARGV[6]), ARGV[5]) end
  if redis.call('EXISTS', root .. ':bodies') == 0 then redis.call('DEL', root .. ':marks') end
  local due = -1
  for _, set in ipairs({':in_flight', ':delayed', ':reservations'}) do
    local first = redis.call('ZRANGE', root .. set, 0, 0, 'WITHSCORES')[2]
    if first and (due < 0 or first - now < due) then due = math.max(0, first - now) end
  end
  return {'ok', text(due), {}}
end
if not usual then redis.call('ZREM', root .. ':delayed', unpack(taken)) end
return deliver(taken, now, ARGV[3], ARGV[4], '0', not usual)
