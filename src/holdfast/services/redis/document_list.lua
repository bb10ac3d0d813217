-- ARGV: what names begin with. Returns name, version and body of each document, in order.
local found = {}
local names = redis.call('ZRANGEBYLEX', root .. ':names', '[' .. ARGV[1], '(' .. ARGV[1] .. '\255')
for _, name in ipairs(names) do
  local document = redis.call('HMGET', root .. ':document:' .. name, 'version', 'body')
  found[#found + 1] = name
  found[#found + 1] = document[1]
  found[#found + 1] = document[2]
end
return found
