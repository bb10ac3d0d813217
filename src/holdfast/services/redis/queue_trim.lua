-- Drops from the head of the order what is gone, so that the head is the oldest message.
local function trim()
  for _ = 1, 50 do
    local heads, gone = redis.call('LRANGE', root .. ':order', 0, 99), 0
    while gone < #heads and redis.call('HEXISTS', root .. ':bodies', heads[gone + 1]) == 0 do gone = gone + 1 end
    if gone > 0 then redis.call('LTRIM', root .. ':order', gone, -1) end
    if gone < 100 then return end
  end
end
