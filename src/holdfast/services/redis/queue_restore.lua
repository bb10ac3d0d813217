-- ARGV: the number above which later ones must be; then number ('': a new one), receives, delay in microseconds, body
-- and attributes as JSON ('': none) of each message. Those with numbers are to be in their order, behind all others.
local last = tonumber(redis.call('LINDEX', root .. ':order', -1) or 0)
for i = 2, #ARGV, 5 do
  if ARGV[i] ~= '' then
    if tonumber(ARGV[i]) <= last then return {'taken', ARGV[i]} end
    last = tonumber(ARGV[i])
  end
end
for i = 2, #ARGV, 5 do
  local given = redis.call('GET', root .. ':last')
  local number = add({ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]}, ARGV[i])[1]
  if given and tonumber(given) > tonumber(number) then redis.call('SET', root .. ':last', given) end
  if ARGV[i + 1] ~= '0' then redis.call('HSET', root .. ':deliveries', number, ARGV[i + 1]) end
end
if tonumber(redis.call('GET', root .. ':last') or 0) < tonumber(ARGV[1]) then
  redis.call('SET', root .. ':last', ARGV[1])
end
return {'ok'}
