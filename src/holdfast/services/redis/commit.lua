-- KEYS: shard, checkpoint, recent, idle, logs, log, names, blob
-- ARGV: shards, number of this shard, key, stream, epoch, number before, number, id, detail, head, done,
--   skipped, most skipped, window, count of identities, version, state's fate (keep, clear, set, blob),
--   state (set) or its size (blob), whether to forget the suspects, count of words on what acts; then
--   identities; then on what acts: when it is due or '', timers or '' to keep them, how many effects are
--   dropped and how many are refused, id of each dropped one, id and reason of each refused one, id and
--   record of each new one; then name and body of each result
-- The keys for what acts lie in the shard's own slot too; only streams that act have any.
local FIXED = 20
local shard, checkpoint, recent, idle, logs, log, names, blob = unpack(KEYS)

local known = redis.call('HMGET', shard, 'shards', 'last')
if known[1] ~= ARGV[1] then return {'shards', known[1] or ''} end
local stands = redis.call('HMGET', checkpoint,
  'epoch', 'number', 'id', 'head', 'openings', 'done', 'skipped', 'blob', 'window', 'acts')
if stands[1] ~= ARGV[5] then return {'fenced', stands[1] or '0'} end
local number = stands[2] or '0'
if number == ARGV[7] and stands[3] == ARGV[8] then return {'ok', 'again'} end
if number ~= ARGV[6] then return {'number', number, stands[1]} end
local fate = ARGV[17]
if fate == 'blob' and redis.call('STRLEN', blob) ~= tonumber(ARGV[18]) then return {'lost'} end

local now = now_us()
local changes = {'number', ARGV[7], 'id', ARGV[8], 'at', text(now), 'detail', ARGV[9], 'window', ARGV[14],
  'done', text((stands[6] or 0) + ARGV[11]),
  'skipped', text(math.min((stands[7] or 0) + ARGV[12], tonumber(ARGV[13])))}
local function change(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

if ARGV[10] ~= '' and ARGV[10] ~= stands[4] then
  change('head', ARGV[10])
  change('openings', 1)
  change('begun', ARGV[5])
end
if fate == 'set' then
  change('state', ARGV[18])
  change('version', ARGV[16])
elseif fate == 'blob' then
  change('blob', blob)
  change('version', ARGV[16])
end
-- The first change is one that a server without memory refuses: then there is none.
redis.call('HSET', checkpoint, unpack(changes))
if ARGV[10] == '' and stands[4] then redis.call('HDEL', checkpoint, 'head', 'openings', 'begun') end
if ARGV[19] == '1' then redis.call('HDEL', checkpoint, 'suspects') end
if fate ~= 'keep' then
  if stands[8] then redis.call('UNLINK', stands[8]) end
  if stands[8] and fate ~= 'blob' then redis.call('HDEL', checkpoint, 'blob') end
  if fate ~= 'set' then redis.call('HDEL', checkpoint, 'state') end
  if fate == 'blob' then redis.call('PERSIST', blob) end
end

local window, identities = tonumber(ARGV[14]), tonumber(ARGV[15])
if window > 0 then
  for i = FIXED + 1, FIXED + identities do redis.call('RPUSH', recent, ARGV[i]) end
  redis.call('LTRIM', recent, -window, -1)
elseif stands[9] and stands[9] ~= '0' then
  redis.call('DEL', recent)
end

local first, acting, acted = FIXED + identities + 1, tonumber(ARGV[20]), stands[10]
if acting == 0 and not acted then
  redis.call('ZADD', idle, text(now), ARGV[3])
else
  local root = string.sub(shard, 1, -#'shard' - 1)
  local dues, effects = root .. 'due', root .. 'effects:' .. ARGV[3]
  local due, timers = '', ''
  if acting > 0 then
    due, timers = ARGV[first], ARGV[first + 1]
    local dropped = first + 4
    local refused = dropped + ARGV[first + 2]
    local added = refused + 2 * ARGV[first + 3]
    for i = dropped, refused - 1 do
      redis.call('HDEL', effects, 'effect:' .. ARGV[i], 'refused:' .. ARGV[i])
    end
    for i = refused, added - 1, 2 do
      if redis.call('HEXISTS', effects, 'effect:' .. ARGV[i]) == 1 then
        redis.call('HSET', effects, 'refused:' .. ARGV[i], ARGV[i + 1])
      end
    end
    for i = added, first + acting - 1, 2 do
      redis.call('HSET', effects, 'effect:' .. ARGV[i], ARGV[i + 1])
    end
  end
  if timers == '[]' then
    redis.call('HDEL', checkpoint, 'timers')
  elseif timers ~= '' then
    redis.call('HSET', checkpoint, 'timers', timers)
  end
  if due == '' then
    redis.call('HDEL', checkpoint, 'due')
    redis.call('ZREM', dues, ARGV[3])
  else
    redis.call('HSET', checkpoint, 'due', due)
    redis.call('ZADD', dues, due, ARGV[3])
  end
  -- What acts is not among the idle ones, so that it doesn't expire.
  if due ~= '' or redis.call('EXISTS', effects) == 1 or redis.call('HEXISTS', checkpoint, 'timers') == 1 then
    redis.call('HSET', checkpoint, 'acts', 1)
    redis.call('ZREM', idle, ARGV[3])
  else
    redis.call('HDEL', checkpoint, 'acts')
    redis.call('ZADD', idle, text(now), ARGV[3])
  end
end
first = first + acting
if #ARGV >= first then
  -- Numbers grow with time, so that those of results that were lost don't return; each shard has its own.
  local shards, remainder = tonumber(ARGV[1]), tonumber(ARGV[2])
  local last = math.max((known[2] or 0) + 1, now)
  last = last + (remainder - last) % shards
  for i = first, #ARGV, 2 do
    local cursor = text(last)
    local added = redis.call('XADD', log, 'NOMKSTREAM', cursor .. '-0',
      'k', ARGV[3], 'e', ARGV[5], 'n', ARGV[i], 'b', ARGV[i + 1])
    if not added then
      redis.call('XADD', logs, '*', 'stream', ARGV[4])
      redis.call('XADD', log, cursor .. '-0', 'k', ARGV[3], 'e', ARGV[5], 'n', ARGV[i], 'b', ARGV[i + 1])
    end
    redis.call('HSET', names, ARGV[i], cursor)
    last = last + shards
  end
  redis.call('HSET', shard, 'last', text(last - shards))
end
return {'ok', 'done'}
