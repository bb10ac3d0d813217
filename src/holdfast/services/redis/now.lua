-- KEYS: shard
-- ARGV: shards
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
return {'ok', text(now_us())}
