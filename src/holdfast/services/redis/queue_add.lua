-- By how much the place in the order of one that has a priority is lowered, for each step of it: some eleven days, in
-- which numbers grow by their time.
local AHEAD = 1000000 * 1000000

-- Adds messages: delay in microseconds (below 0: a priority instead), body and attributes of each. Returns their numbers, which must grow even
-- when the server has lost its data or has another's: by time. Or they begin at the number ``first``. Those that
-- had lower ``turns`` keep them.
local function add(messages, first, turns)
  local now, count = now_us(), #messages / 3
  local last = math.max(tonumber(redis.call('GET', root .. ':last') or 0), now - 1)
  if first and first ~= '' then last = first - 1 end
  local numbers, bodies, attributes, ready, delayed, marks, urgent = {}, {}, {}, {}, {}, {}, {}
  for i = 1, count do
    local number = text(last + i)
    local delay, told = tonumber(messages[3 * i - 2]), messages[3 * i]
    numbers[i] = number
    bodies[2 * i - 1], bodies[2 * i] = number, messages[3 * i - 1]
    if told ~= '' then
      attributes[#attributes + 1] = number
      attributes[#attributes + 1] = told
    end
    if turns and turns[i] and turns[i] < last + i then
      marks[#marks + 1] = number
      marks[#marks + 1] = '0 ' .. text(turns[i])
    end
    if delay > 0 then
      delayed[#delayed + 1] = text(now + delay)
      delayed[#delayed + 1] = number
    else
      ready[#ready + 1] = number
      if delay < 0 then
        urgent[#urgent + 1] = text(last + i + delay * AHEAD)
        urgent[#urgent + 1] = number
      end
    end
  end
  -- The first change is one that a server without memory refuses: then there is none.
  redis.call('HSET', root .. ':bodies', unpack(bodies))
  redis.call('SET', root .. ':last', text(last + count))
  redis.call('RPUSH', root .. ':order', unpack(numbers))
  if #attributes > 0 then redis.call('HSET', root .. ':attributes', unpack(attributes)) end
  if #marks > 0 then redis.call('HSET', root .. ':marks', unpack(marks)) end
  if #delayed > 0 then redis.call('ZADD', root .. ':delayed', unpack(delayed)) end
  -- One look for most of them: nobody waits, and nothing is reserved.
  if redis.call('EXISTS', root .. ':waiters', root .. ':marks', root .. ':reservations') == 0 then
    put(ready, ready)
  else
    ring(appear(ready, now) + #delayed / 2)
  end
  if #urgent > 0 then redis.call('ZADD', root .. ':ready', 'XX', unpack(urgent)) end
  return numbers
end
