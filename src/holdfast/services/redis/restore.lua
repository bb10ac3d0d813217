-- Write a checkpoint as another store had it, unless there is one.
-- KEYS: shard, checkpoint, recent, keys, idle, due, effects
-- ARGV: shards, key, when it was committed, when it is due or '', count of fields, of identities and of effects' fields;
--   then field and value of each field of the checkpoint; then the identities; then field and value of each of the
--   effects' fields
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'ok', 'known'} end
local identities = 8 + 2 * ARGV[5]
local effects = identities + ARGV[6]
-- The first change is one that a server without memory refuses: then there is none.
redis.call('HSET', KEYS[2], unpack(ARGV, 8, identities - 1))
for i = identities, effects - 1 do redis.call('RPUSH', KEYS[3], ARGV[i]) end
for i = effects, #ARGV, 2 do redis.call('HSET', KEYS[7], ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', KEYS[4], 0, ARGV[2])
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[6], ARGV[4], ARGV[2]) end
if ARGV[3] ~= '0' and redis.call('HEXISTS', KEYS[2], 'acts') == 0 then
  redis.call('ZADD', KEYS[5], ARGV[3], ARGV[2])
end
local blob = redis.call('HGET', KEYS[2], 'blob')
if blob then redis.call('PERSIST', blob) end
return {'ok', 'done'}
