-- Leave of checkpoints without commits for long what fences, and tells a repeated commit.
-- They lie in the shard's own slot; which they are, only the list of idle ones knows.
-- KEYS: idle; ARGV: microseconds of the first to keep, most to look at, what keys of checkpoints and of
--   recent identities begin with. Returns how many were looked at, and expired.
local keys, expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2]), 0
for _, key in ipairs(keys) do
  local checkpoint = ARGV[3] .. key
  local stands = redis.call('HMGET', checkpoint, 'blob', 'acts')
  -- One that acts is among the idle ones only if a node of an older version has committed to it.
  if not stands[2] then
    if stands[1] then redis.call('UNLINK', stands[1]) end
    redis.call('DEL', ARGV[4] .. key)
    -- All but epoch, number and id. Nothing here needs memory, so that a full server can be relieved.
    redis.call('HDEL', checkpoint, 'member', 'at', 'detail', 'window', 'done', 'skipped', 'head', 'openings',
      'begun', 'suspects', 'version', 'state', 'blob')
    expired = expired + 1
  end
  redis.call('ZREM', KEYS[1], key)
end
return {#keys, expired}
