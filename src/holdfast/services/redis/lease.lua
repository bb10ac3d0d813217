-- Hand out keys that are due as they were seen; another asker, or a commit, may have been faster.
-- KEYS: shard, due
-- ARGV: shards, due anew, what keys of checkpoints begin with; then key and due of each as it was seen.
-- Returns the keys that are handed out.
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local leased = {}
for i = 4, #ARGV, 2 do
  if tonumber(redis.call('ZSCORE', KEYS[2], ARGV[i])) == tonumber(ARGV[i + 1]) then
    -- The first change is one that a server without memory refuses: then there is none.
    redis.call('ZADD', KEYS[2], ARGV[2], ARGV[i])
    redis.call('HSET', ARGV[3] .. ARGV[i], 'due', ARGV[2])
    leased[#leased + 1] = ARGV[i]
  end
end
return {'ok', leased}
