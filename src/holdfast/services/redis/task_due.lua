-- Hands out tasks whose messages are to be sent.
-- KEYS: shard, what keys begin with
-- ARGV: shards, microseconds ahead, most to hand out, microseconds for which they are handed to nobody else
-- Returns for each its trace, then its fields and values.
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local now, due, found = now_us(), root .. ':due', {}
local till = now + tonumber(ARGV[2])
for _, trace in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', text(till), 'LIMIT', 0, ARGV[3])) do
  local task = load(trace)
  if task and task.message then
    task.send_at = text(till + tonumber(ARGV[4]))
    redis.call('ZADD', due, task.send_at, trace)
    redis.call('HSET', key_of(trace), 'send_at', task.send_at)
    local told = {trace}
    for field, value in pairs(task) do
      told[#told + 1] = field
      told[#told + 1] = value
    end
    found[#found + 1] = told
  else
    redis.call('ZREM', due, trace)
  end
end
return {'ok', found}
