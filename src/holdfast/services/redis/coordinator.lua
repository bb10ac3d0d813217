-- Shared by the scripts of the coordinator. All keys begin with KEYS[1], which holds the hash tag: in a
-- Cluster they are in one slot. That is enough: a node renews once for all it owns, and claims once an opening.
--
--   :member:ID   the Member as JSON, with a time to live: the membership lives while this is here
--   :members     hash: id -> the Member as it joined; whom to look for, and of whom to tell when gone
--   :claims      hash: key -> "VERSION MEMBER"; void while that membership doesn't live
--   :held:ID     set: the keys that a membership claimed
--   :ended       set: memberships that are over, whose claims are still to be removed
--   :version     the highest version given to a claim
--   :changes     channel: "joined JSON", "left JSON", "claim VERSION MEMBER KEY" (no MEMBER: released)
local root = KEYS[1]

local function lives(member)
  return redis.call('EXISTS', root .. ':member:' .. member) == 1
end

local function holder(claim)
  return string.match(claim, ' (.*)$')
end

-- The claim on a key if its membership lives, or false.
local function standing(key)
  local claim = redis.call('HGET', root .. ':claims', key)
  return claim and lives(holder(claim)) and claim
end

-- Versions must grow even when the server has lost its data or has another's: by time, in microseconds
-- (which a double holds exactly until 2255).
local function next_version()
  local time = redis.call('TIME')
  local last = tonumber(redis.call('GET', root .. ':version') or 0)
  local version = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
  redis.call('SET', root .. ':version', version)
  return version
end

-- Gives a key to a membership, or to nobody (''). Returns the claim.
local function set(key, member)
  local old = redis.call('HGET', root .. ':claims', key)
  if old then redis.call('SREM', root .. ':held:' .. holder(old), key) end
  local claim = next_version() .. ' ' .. member
  if member == '' then
    redis.call('HDEL', root .. ':claims', key)
  else
    redis.call('HSET', root .. ':claims', key, claim)
    redis.call('SADD', root .. ':held:' .. member, key)
  end
  redis.call('PUBLISH', root .. ':changes', 'claim ' .. claim .. ' ' .. key)
  return claim
end

-- Tells that a membership is over. Its claims are void by that; they are removed later, some at a time.
local function tell_ended(member, record)
  redis.call('HDEL', root .. ':members', member)
  if redis.call('EXISTS', root .. ':held:' .. member) == 1 then
    redis.call('SADD', root .. ':ended', member)
  end
  redis.call('PUBLISH', root .. ':changes', 'left ' .. record)
end
