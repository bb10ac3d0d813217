-- ARGV: how many, after which id. Returns id, body, attributes, rest and time of each letter, in order of id.
local told = {}
local ids = redis.call('ZRANGEBYLEX', root .. ':letters', '(' .. ARGV[2], '+', 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do
  told[#told + 1] = id
  for _, part in ipairs({':letter_bodies', ':letter_attributes', ':letter_records'}) do
    told[#told + 1] = redis.call('HGET', root .. part, id)
  end
  told[#told + 1] = redis.call('ZSCORE', root .. ':letter_times', id)
end
return told
