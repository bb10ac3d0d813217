-- Leave of checkpoints without commits for long what fences, and tells a repeated commit.
-- They lie in the shard's own slot; which they are, only the list of idle ones knows.
-- KEYS: idle; ARGV: microseconds of the first to keep, most to expire, what keys of checkpoints and of
--   recent identities begin with
local keys = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, key in ipairs(keys) do
  local checkpoint = ARGV[3] .. key
  local blob = redis.call('HGET', checkpoint, 'blob')
  if blob then redis.call('UNLINK', blob) end
  redis.call('DEL', ARGV[4] .. key)
  -- All but epoch, number and id. Nothing here needs memory, so that a full server can be relieved.
  redis.call('HDEL', checkpoint, 'member', 'at', 'detail', 'window', 'done', 'skipped', 'head', 'openings',
    'begun', 'suspects', 'version', 'state', 'blob')
  redis.call('ZREM', KEYS[1], key)
end
return #keys
