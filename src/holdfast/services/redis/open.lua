-- KEYS: shard, checkpoint, recent, keys, effects
-- ARGV: shards, expected epoch, chance, member, key
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local stands = redis.call('HMGET', KEYS[2], 'epoch', 'acts')
local epoch = stands[1] or '0'
if epoch ~= ARGV[2] then return {'fenced', epoch} end
-- Not one that was issued here and forgotten, or by the server whose place this one took: time tells them
-- apart, and chance where clocks disagree.
local opened = math.max(epoch + 1 + ARGV[3], now_us() + ARGV[3] % 1024)
redis.call('HSET', KEYS[2], 'epoch', text(opened), 'member', ARGV[4])
if epoch == '0' then redis.call('ZADD', KEYS[4], 0, ARGV[5]) end
local effects = stands[2] and redis.call('HGETALL', KEYS[5]) or {}
return {'ok', redis.call('HGETALL', KEYS[2]), redis.call('LRANGE', KEYS[3], 0, -1), effects}
