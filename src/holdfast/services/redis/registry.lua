-- Shared by the scripts of the registry. All keys begin with KEYS[1], which holds the hash tag.
--
--   :document:NAME     hash: version, body
--   :names             sorted set: the names of all documents, in their order
--   :version           the highest version given
--   :changes           channel: the name of a document that was written or removed
local root = KEYS[1]

local function version_of(name)
  return redis.call('HGET', root .. ':document:' .. name, 'version') or '0'
end

-- Versions must grow even when the server has lost its data or has another's: by time, in microseconds
-- (which a double holds exactly until 2255).
local function next_version(name)
  local time = redis.call('TIME')
  local last = math.max(tonumber(redis.call('GET', root .. ':version') or 0), tonumber(version_of(name)))
  local version = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
  redis.call('SET', root .. ':version', version)
  return version
end
