-- Reservations, and what they keep.

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

-- Whether a reservation keeps this message still: not if an older version has delivered it.
local function is_kept(number)
  local shows = redis.call('ZSCORE', root .. ':delayed', number)
  return shows and tonumber(shows) % 1 > 0
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
