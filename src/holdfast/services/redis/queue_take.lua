-- ARGV: how many, bytes of bodies that are enough, visibility in microseconds, holder, key as JSON, after which turn.
-- Returns 'gone' if the holder has no reservation of the key. Else '1' if there may be more, "EXCUSED TURN" of each
-- message if any has it, and number, receives, body and attributes of each, in order of turn.
local now, limit, key = now_us(), tonumber(ARGV[1]), ARGV[5]
local kept = root .. ':kept:' .. key
local epoch, holder, seen, last = reservation(key, now)
if holder ~= ARGV[4] then return {'gone'} end
show(':in_flight', now)
show(':delayed', now)
renew(now)

-- What is ready may have lower turns than what was set aside, up to where it was looked through.
local looked = tonumber(seen) >= tonumber(last)
if not looked and redis.call('ZCOUNT', kept, '(' .. ARGV[6], seen) < limit then
  local some =
    redis.call('ZRANGEBYSCORE', root .. ':ready', '(' .. seen, last, 'WITHSCORES', 'LIMIT', 0, PIECE)
  local numbers = {}
  for i = 1, #some, 2 do numbers[#numbers + 1] = some[i] end
  if #numbers > 0 then sift(numbers, now) end
  looked = #numbers < PIECE
  seen = looked and last or some[#some]
  redis.call('HSET', root .. ':holders', key, table.concat({epoch, seen, last, holder}, ' '))
end

local taken, gone, bytes, more = {}, 0, 0, false
local bound = looked and '+inf' or seen
while not more do
  local some =
    redis.call('ZRANGEBYSCORE', kept, '(' .. ARGV[6], bound, 'LIMIT', #taken, limit - #taken + 1)
  if #some == 0 then break end
  local left = {}
  for _, number in ipairs(some) do
    if more then break end
    if is_kept(number) then
      bytes = bytes + redis.call('HSTRLEN', root .. ':bodies', number)
      more = #taken == limit or #taken > 0 and bytes > tonumber(ARGV[2])
      if not more then taken[#taken + 1] = number end
    else
      left[#left + 1] = number
    end
  end
  if #left > 0 then redis.call('ZREM', kept, unpack(left)) end
  gone = gone + #left
  more = more or gone >= PIECE
end
local word = (more or not looked) and '1' or '0'
if #taken == 0 then return {'ok', word, {}} end
redis.call('ZREM', kept, unpack(taken))
redis.call('ZREM', root .. ':delayed', unpack(taken))
return deliver(taken, now, ARGV[3], holder, word, true)
