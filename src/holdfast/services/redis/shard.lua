-- Shared by the scripts of the state store.
-- A shard's record: how many shards there are, and the last number given to a result.

-- What is wrong with a call to this shard, or nil.
local function misplaced(shard, shards)
  local standing = redis.call('HGET', shard, 'shards')
  if standing == shards then return nil end
  return {'shards', standing or ''}
end

-- Microseconds since 1970; a double holds them exactly until 2255.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function text(number)
  return string.format('%.0f', number)
end
