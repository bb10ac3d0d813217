-- ARGV: how many claims of ended memberships to remove.
-- Returns the ms until the next membership lapses unless renewed (-1: there is none), then the living. Tells
-- of those that lapsed, for their time to live ends silently.
local next_ms, living = -1, {}
local joined = redis.call('HGETALL', root .. ':members')
for i = 1, #joined, 2 do
  local life = root .. ':member:' .. joined[i]
  local record = redis.call('GET', life)
  if record then
    local left_ms = redis.call('PTTL', life)
    if next_ms < 0 or left_ms < next_ms then next_ms = left_ms end
    living[#living + 1] = record
  else
    tell_ended(joined[i], joined[i + 1])
  end
end

local ended = redis.call('SRANDMEMBER', root .. ':ended')
if ended then
  local keys = redis.call('SPOP', root .. ':held:' .. ended, ARGV[1])
  for _, key in ipairs(keys) do
    local claim = redis.call('HGET', root .. ':claims', key)
    if claim and holder(claim) == ended then redis.call('HDEL', root .. ':claims', key) end
  end
  if #keys == 0 then redis.call('SREM', root .. ':ended', ended) end
end
return {next_ms, living}
