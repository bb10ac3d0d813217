-- Drop the oldest results of a log, and each from the names of its key unless a newer one has its name. The time of a
-- result is its cursor, but for those that came from another store, which say it.
-- The names lie in the log's own slot; which they are, only the log knows.
-- KEYS: log; ARGV: cursor of the first to keep, most to drop, what names' keys begin with
local found = redis.call('XRANGE', KEYS[1], '-', '(' .. ARGV[1] .. '-0', 'COUNT', ARGV[2])
local last
local dropped = 0
for _, entry in ipairs(found) do
  if entry[2][10] and tonumber(entry[2][10]) >= tonumber(ARGV[1]) then break end
  dropped = dropped + 1
  local names, name = ARGV[3] .. entry[2][2], entry[2][6]
  last = string.match(entry[1], '^%d+')
  if redis.call('HGET', names, name) == last then redis.call('HDEL', names, name) end
end
if last then redis.call('XTRIM', KEYS[1], 'MINID', '=', last .. '-1') end
return dropped
