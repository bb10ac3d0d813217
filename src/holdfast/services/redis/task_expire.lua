-- Drops tasks to which nothing has happened since a time. One whose attempt stood then comes later, and one
-- with pending effects by how much longer these are kept. One whose message is yet to be sent stays, and one
-- whose queue delays its message until that is delivered.
-- KEYS: shard, what keys begin with; ARGV: shards, microseconds of the first to keep, most to look at,
-- microseconds to keep effects.
-- Returns how many were looked at, and dropped.
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local moved, before, dropped = root .. ':moved', ARGV[2], 0
local traces = redis.call('ZRANGEBYSCORE', moved, '-inf', '(' .. before, 'LIMIT', 0, ARGV[3])
for _, trace in ipairs(traces) do
  local task = load(trace)
  local till = math.max(tonumber(task and task['until'] or 0), tonumber(task and task.send_at or 0))
  if task and task.effects then till = math.max(till, tonumber(task.ended_at)) + tonumber(ARGV[4]) end
  local stays = task and task.message
  if stays then till = math.max(till, now_us()) end
  if stays or task and till >= tonumber(before) then
    redis.call('ZADD', moved, text(till), trace)
  else
    redis.call('ZREM', moved, trace)
    if task then
      redis.call('DEL', key_of(trace))
      redis.call('ZREM', index_of(task.state, task.type), trace)
      dropped = dropped + 1
    end
  end
end
return {'ok', #traces, dropped}
