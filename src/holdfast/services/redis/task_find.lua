-- The first traces after one, of each of the states and types asked for; the callers put them in order.
-- KEYS: shard, what keys begin with; ARGV: shards, first ('-', or '(' and a trace), most, type or '', states
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local kinds = ARGV[4] ~= '' and {ARGV[4]} or redis.call('SMEMBERS', root .. ':types')
local found = {}
for _, kind in ipairs(kinds) do
  for i = 5, #ARGV do
    local traces = redis.call('ZRANGEBYLEX', index_of(ARGV[i], kind), ARGV[2], '+', 'LIMIT', 0, ARGV[3])
    for _, trace in ipairs(traces) do found[#found + 1] = trace end
  end
end
return {'ok', found}
