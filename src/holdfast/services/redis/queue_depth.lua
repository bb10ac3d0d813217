-- Returns how many messages there are, are in flight, are delayed, and are dead; and the age of the oldest in
-- microseconds. What a reservation keeps isn't delayed. A number that came from another queue may be no time.
local now = now_us()
trim()
local delayed = redis.call('ZCOUNT', root .. ':delayed', '(' .. text(now), '+inf')
if not plain() then
  for steps = 0, 5 do
    local kept = stamp(now, steps)
    if tonumber(kept) > now then delayed = delayed - redis.call('ZCOUNT', root .. ':delayed', kept, kept) end
  end
end
local head = redis.call('LINDEX', root .. ':order', 0)
return {
  redis.call('HLEN', root .. ':bodies'),
  redis.call('ZCOUNT', root .. ':in_flight', '(' .. text(now), '+inf'),
  delayed,
  redis.call('ZCARD', root .. ':letters'),
  head and tonumber(head) > 1e15 and text(math.max(0, now - head)) or '0',
}
