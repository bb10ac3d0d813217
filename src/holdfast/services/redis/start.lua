-- KEYS: shard, checkpoint
-- ARGV: shards, epoch, head, most suspects
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local stands = redis.call('HMGET', KEYS[2], 'epoch', 'head', 'openings', 'begun', 'suspects')
if stands[1] ~= ARGV[2] then return {'fenced', stands[1] or '0'} end
local known = stands[5] and cjson.decode(stands[5]) or {}
-- Epochs are texts in JSON: cjson writes 14 digits of a number.
if stands[2] then known[#known + 1] = {stands[2], tonumber(stands[3]), stands[4] or '0'} end
local openings, counted, suspects = 0, false, {}
for _, suspect in ipairs(known) do
  if suspect[1] == ARGV[3] then
    openings = openings + suspect[2]
    counted = counted or suspect[3] == ARGV[2]
  else
    if suspect[3] == ARGV[2] then  -- its handler has returned: this opening no longer counts for it
      suspect = {suspect[1], suspect[2] - 1, string.format('%.0f', ARGV[2] - 1)}
    end
    if suspect[2] > 0 then suspects[#suspects + 1] = suspect end
  end
end
while #suspects > tonumber(ARGV[4]) do table.remove(suspects, 1) end
if not counted then openings = openings + 1 end
redis.call('HSET', KEYS[2], 'head', ARGV[3], 'openings', openings, 'begun', ARGV[2])
if #suspects > 0 then
  redis.call('HSET', KEYS[2], 'suspects', cjson.encode(suspects))
elseif stands[5] then
  redis.call('HDEL', KEYS[2], 'suspects')
end
return {'ok', openings}
