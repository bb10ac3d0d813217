-- The first traces after one, of each of the states and types asked for; the callers put them in order.
-- KEYS: shard, what keys begin with; ARGV: shards, 'up' or 'down', first ('-' or '+', or '(' and a trace), most,
-- type or '', states
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local kinds = ARGV[5] ~= '' and {ARGV[5]} or redis.call('SMEMBERS', root .. ':types')
local found = {}
for _, kind in ipairs(kinds) do
  for i = 6, #ARGV do
    local find, last = 'ZRANGEBYLEX', '+'
    if ARGV[2] == 'down' then find, last = 'ZREVRANGEBYLEX', '-' end
    local traces = redis.call(find, index_of(ARGV[i], kind), ARGV[3], last, 'LIMIT', 0, ARGV[4])
    for _, trace in ipairs(traces) do found[#found + 1] = trace end
  end
end
return {'ok', found}
