-- How many tasks of each type stand in each state. Forgets types that no task has any more.
-- KEYS: shard, what keys begin with; ARGV: shards, states. Returns type, state and count of each.
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local told = {}
for _, kind in ipairs(redis.call('SMEMBERS', root .. ':types')) do
  local known = #told
  for i = 2, #ARGV do
    local count = redis.call('ZCARD', index_of(ARGV[i], kind))
    if count > 0 then
      told[#told + 1] = kind
      told[#told + 1] = ARGV[i]
      told[#told + 1] = count
    end
  end
  if #told == known then redis.call('SREM', root .. ':types', kind) end
end
return {'ok', told}
