-- ARGV: '1' to send the letters again, in this order; then their ids. Returns how many there were.
local ids, messages, turns = {}, {}, {}
for i = 2, #ARGV do
  local body = redis.call('HGET', root .. ':letter_bodies', ARGV[i])
  if body then
    ids[#ids + 1] = ARGV[i]
    messages[3 * #ids - 2], messages[3 * #ids - 1] = '0', body
    messages[3 * #ids] = redis.call('HGET', root .. ':letter_attributes', ARGV[i])
    turns[#ids] = cjson.decode(redis.call('HGET', root .. ':letter_records', ARGV[i])).turn
    if type(turns[#ids]) ~= 'number' then turns[#ids] = false end
  end
end
if ARGV[1] == '1' and #ids > 0 then add(messages, nil, turns) end
for _, id in ipairs(ids) do forget_dead_letter(id) end
return {'ok', #ids}
