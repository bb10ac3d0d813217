-- Results after a cursor, in order, of some logs of a shard; with the last number that the shard has given,
-- and the streams that have a log. All in one step: a result that isn't seen has a higher number.
-- KEYS: shard, logs, log...
-- ARGV: shards, after, most results, number to go on from, count of logs to be read, or '' for these
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local streams = tonumber(ARGV[5])
if streams and redis.call('XLEN', KEYS[2]) ~= streams then
  return {'logs', redis.call('XRANGE', KEYS[2], '-', '+')}
end
local last = redis.call('HGET', KEYS[1], 'last') or '0'
if tonumber(ARGV[4]) > tonumber(last) then
  last = ARGV[4]
  redis.call('HSET', KEYS[1], 'last', last)
end
local found = {}
for i = 3, #KEYS do
  found[#found + 1] = redis.call('XRANGE', KEYS[i], '(' .. ARGV[2], '+', 'COUNT', ARGV[3])
end
return {'ok', last, found}
