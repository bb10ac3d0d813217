-- When the next messages of tasks are to be sent.
-- KEYS: shard, what keys begin with; ARGV: shards, microseconds ahead, most to return
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local till, times = now_us() + tonumber(ARGV[2]), {}
local found = redis.call('ZRANGEBYSCORE', root .. ':due', '-inf', text(till), 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 2, #found, 2 do times[#times + 1] = tonumber(found[i]) end
return {'ok', times}
