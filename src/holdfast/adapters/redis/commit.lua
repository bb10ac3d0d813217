-- KEYS: shard, checkpoint, recent, idle, logs, log, names, blob
-- ARGV: shards, number of this shard, key, stream, epoch, number before, number, id, detail, head, done,
--   skipped, most skipped, window, count of identities, version, state's fate (keep, clear, set, blob),
--   state (set) or its size (blob); then identities, then name and body of each result
local FIXED = 18
local shard, checkpoint, recent, idle, logs, log, names, blob = unpack(KEYS)
local wrong = misplaced(shard, ARGV[1])
if wrong then return wrong end
local stands = redis.call('HMGET', checkpoint, 'epoch', 'number', 'id', 'head', 'openings', 'done', 'skipped', 'blob')
if stands[1] ~= ARGV[5] then return {'fenced', stands[1] or '0'} end
local number = stands[2] or '0'
if number == ARGV[7] and stands[3] == ARGV[8] then return {'ok', 'again'} end
if number ~= ARGV[6] then return {'number', number, stands[1]} end
local fate = ARGV[17]
if fate == 'blob' then
  if redis.call('STRLEN', blob) ~= tonumber(ARGV[18]) then return {'lost'} end
  redis.call('PERSIST', blob)
end

local now = now_us()
redis.call('HSET', checkpoint, 'number', ARGV[7], 'id', ARGV[8], 'at', text(now), 'detail', ARGV[9],
  'done', text((stands[6] or 0) + ARGV[11]),
  'skipped', text(math.min((stands[7] or 0) + ARGV[12], tonumber(ARGV[13]))))
redis.call('ZADD', idle, text(now), ARGV[3])

if ARGV[10] == '' then
  if stands[4] then redis.call('HDEL', checkpoint, 'head', 'openings') end
elseif ARGV[10] ~= stands[4] then
  redis.call('HSET', checkpoint, 'head', ARGV[10], 'openings', 1)
end

if fate ~= 'keep' and stands[8] then
  redis.call('UNLINK', stands[8])
  redis.call('HDEL', checkpoint, 'blob')
end
if fate == 'set' then
  redis.call('HSET', checkpoint, 'state', ARGV[18], 'version', ARGV[16])
elseif fate == 'blob' then
  redis.call('HDEL', checkpoint, 'state')
  redis.call('HSET', checkpoint, 'blob', blob, 'version', ARGV[16])
elseif fate == 'clear' then
  redis.call('HDEL', checkpoint, 'state')
end

local window, identities = tonumber(ARGV[14]), tonumber(ARGV[15])
if window > 0 then
  for i = FIXED + 1, FIXED + identities do redis.call('RPUSH', recent, ARGV[i]) end
  redis.call('LTRIM', recent, -window, -1)
else
  redis.call('DEL', recent)
end

local first = FIXED + identities + 1
if #ARGV >= first then
  if redis.call('EXISTS', log) == 0 then redis.call('XADD', logs, '*', 'stream', ARGV[4]) end
  -- Numbers grow with time, so that those of results that were lost don't return; each shard has its own.
  local shards, remainder = tonumber(ARGV[1]), tonumber(ARGV[2])
  local last = math.max((redis.call('HGET', shard, 'last') or 0) + 1, now)
  last = last + (remainder - last) % shards
  for i = first, #ARGV, 2 do
    local cursor = text(last)
    redis.call('XADD', log, cursor .. '-0', 'k', ARGV[3], 'e', ARGV[5], 'n', ARGV[i], 'b', ARGV[i + 1])
    redis.call('HSET', names, ARGV[i], cursor)
    last = last + shards
  end
  redis.call('HSET', shard, 'last', text(last - shards))
end
return {'ok', 'done'}
