-- Drops from the head of the order what is gone, so that the head is the oldest message.
local function trim()
  for _ = 1, 5000 do
    local head = redis.call('LINDEX', root .. ':order', 0)
    if not head or redis.call('HEXISTS', root .. ':bodies', head) == 1 then return end
    redis.call('LPOP', root .. ':order')
  end
end
