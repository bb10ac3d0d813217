-- Write to each checkpoint where a commit stands, so that replicas which have this have the commit.
-- KEYS: checkpoints; ARGV: epoch, number and id of the commit to each
local standing = {}
for i, checkpoint in ipairs(KEYS) do
  local stands = redis.call('HMGET', checkpoint, 'epoch', 'number', 'id')
  local epoch, number, id = unpack(ARGV, 3 * i - 2, 3 * i)
  standing[i] = 0
  if stands[1] == epoch and stands[2] == number and stands[3] == id then
    redis.call('HSET', checkpoint, 'id', id)
    standing[i] = 1
  end
end
return standing
