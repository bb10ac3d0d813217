-- Leave of checkpoints without commits for long what fences, and tells a repeated commit.
-- They lie in the shard's own slot; which they are, only the list of idle ones knows.
-- KEYS: idle; ARGV: microseconds of the first to keep, most to expire, what keys of checkpoints and of
--   recent identities begin with
local keys = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, key in ipairs(keys) do
  local checkpoint = ARGV[3] .. key
  local left = redis.call('HMGET', checkpoint, 'epoch', 'number', 'id', 'blob')
  redis.call('DEL', checkpoint, ARGV[4] .. key)
  if left[4] then redis.call('UNLINK', left[4]) end
  if left[1] then redis.call('HSET', checkpoint, 'epoch', left[1], 'number', left[2], 'id', left[3]) end
  redis.call('ZREM', KEYS[1], key)
end
return #keys
