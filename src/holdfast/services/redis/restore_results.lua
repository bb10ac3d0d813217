-- Write results as another store had them, in order of their cursors.
-- KEYS: shard, logs, then log and names of each result
-- ARGV: shards, the cursor above which later ones must be; then cursor, stream, key, epoch, name, body and time of each
--   result ('': the time that its cursor says)
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local last = math.max(tonumber(redis.call('HGET', KEYS[1], 'last') or 0), tonumber(ARGV[2]))
for i = 3, #ARGV, 7 do
  local place = 3 + 2 * (i - 3) / 7
  local log, names, cursor, id = KEYS[place], KEYS[place + 1], ARGV[i], ARGV[i] .. '-0'
  if #redis.call('XRANGE', log, id, id) == 0 then
    if redis.call('EXISTS', log) == 0 then redis.call('XADD', KEYS[2], '*', 'stream', ARGV[i + 1]) end
    local entry = {'k', ARGV[i + 2], 'e', ARGV[i + 3], 'n', ARGV[i + 4], 'b', ARGV[i + 5]}
    if ARGV[i + 6] ~= '' then
      entry[9], entry[10] = 'a', ARGV[i + 6]
    end
    redis.call('XADD', log, id, unpack(entry))
    redis.call('HSET', names, ARGV[i + 4], cursor)
  end
  last = math.max(last, tonumber(cursor))
end
redis.call('HSET', KEYS[1], 'last', text(last))
return {'ok'}
