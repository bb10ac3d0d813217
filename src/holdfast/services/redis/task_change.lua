-- The rules of a task's life, as core/task.py has them.
-- KEYS: shard, what keys begin with
-- ARGV: shards, request, chance, how many arguments each has, then those of each, the trace first
-- Returns for each what stands then: 0: nothing, an epoch: that one fenced it, or fields and values.
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local now = now_us()

local function number(task, field)
  return tonumber(task[field] or 0)
end

-- An attempt has an epoch that was never issued before, though Redis may have lost the last writes: by time,
-- and by chance where clocks disagree.
local function next_epoch(task)
  local chance = tonumber(ARGV[3])
  return text(math.max(number(task, 'epoch') + 1 + chance, now + chance % 1024))
end

-- Fields that were or are: what they become, '' for those that go.
local function replace(task, changes)
  local after = {}
  for field, value in pairs(task) do after[field] = value end
  for field, value in pairs(changes) do
    after[field] = value ~= '' and value or nil
  end
  return after
end

local function ended(task, state, result, detail)
  return replace(task, {
    state = state, ['until'] = '', progress = state == 'succeed' and '1.0' or nil, result = result,
    detail = detail, ended_at = text(now)})
end

local function stands(task, epoch)
  return task and task.state == 'running' and task.epoch == epoch
end

local requests = {}

function requests.queue(task, trace, fields)
  if task then return task end
  return replace(cjson.decode(fields), {state = 'queued', queued_at = text(now)})
end

function requests.delay(task, trace, kind, delay, message, group)
  if task then return task end
  local due = text(now + tonumber(delay))
  return replace({}, {state = 'queued', type = kind, group = group, queued_at = text(now), ['until'] = due,
    message = message, send_at = due})
end

local function message_sent(task)
  return replace(task, {message = '', send_at = ''})
end

function requests.message_sent(task, trace)
  return task and task.message and message_sent(task) or task
end

function requests.start(task, trace, kind, member, node, tries, lease, group, instead_of, follow_ups)
  task = task or {state = 'queued', type = kind, group = group ~= '' and group or nil, queued_at = text(now)}
  if ENDED[task.state] then return task end
  if task.state == 'running' then
    local holds = number(task, 'until') > now and task.member ~= instead_of
    if holds or task.member == member then return task end
  end
  if task.cancel then return ended(task, 'failed', '', 'cancelled: ' .. task.cancel) end
  if task.state == 'queued' and number(task, 'until') > now then return task end
  local attempts = number(task, 'attempts')
  if attempts >= tonumber(tries) then
    local died = string.format('attempt %d of %s ended without an outcome on node %s',
      attempts, tries, task.node or '')
    return ended(task, 'failed', '', task.state == 'queued' and task.detail or died)
  end
  return replace(task, {
    type = kind, state = 'running', group = group, epoch = next_epoch(task), attempts = text(attempts + 1),
    member = member, node = node, ['until'] = text(now + tonumber(lease)), progress = '', note = '',
    started_at = text(now), follow_ups = follow_ups, message = '', send_at = ''})
end

function requests.beat(task, trace, epoch, lease, progress, note)
  if not stands(task, epoch) then return nil end
  return replace(task, {['until'] = text(now + tonumber(lease)), progress = progress, note = note})
end

function requests.give_back(task, trace, epoch, spent, detail, pause)
  if task and task.state == 'queued' and (task.epoch or '0') == epoch then return task end
  if not stands(task, epoch) then return nil end
  local attempts = number(task, 'attempts') - (spent == '1' and 0 or 1)
  local pauses = tonumber(pause) > 0
  return replace(task, {
    state = 'queued', attempts = attempts > 0 and text(attempts) or '', member = '',
    ['until'] = pauses and text(now + tonumber(pause)) or '', detail = detail ~= '' and detail or nil,
    pauses = pauses and text(number(task, 'pauses') + 1) or nil})
end

requests['end'] = function(task, trace, epoch, state, result, detail, effects, stored)
  if task and ENDED[task.state] and (task.epoch or '0') == epoch and task.state == state then return task end
  if not stands(task, epoch) then return nil end
  return replace(ended(task, state, result, detail), {effects = effects, stored = stored})
end

function requests.handed_over(task, trace, epoch, left)
  local stands = task and ENDED[task.state] and (task.epoch or '0') == epoch and task.effects
  return stands and replace(task, {effects = left}) or task
end

function requests.resend_effects(task, trace, effects)
  if not task or task.state ~= 'succeed' or task.effects or not task.briefed then return task end
  return replace(task, {epoch = next_epoch(task), effects = effects, ['until'] = text(now)})
end

function requests.briefed(task, trace, epoch)
  if not (task and ENDED[task.state] and (task.epoch or '0') == epoch) then return task end
  return replace(message_sent(task), {briefed = '1'})
end

function requests.cancel(task, trace, reason)
  if not task or ENDED[task.state] then return task end
  if task.state == 'queued' then
    local after = ended(task, 'failed', '', 'cancelled: ' .. reason)
    return after.message and replace(after, {send_at = text(now)}) or after
  end
  return replace(task, {cancel = reason})
end

function requests.reset(task, trace)
  if not task or task.members or task.state == 'succeed' then return task end
  if task.state == 'running' and number(task, 'until') > now then return task end
  return {type = task.type, state = 'queued', group = task.group, epoch = task.epoch, queued_at = text(now)}
end

function requests.count(task, trace, size, place, failed, follow_ups)
  local batch = task or {
    type = '(batch)', state = 'queued', queued_at = text(now), members = string.rep('0', tonumber(size))}
  if ENDED[batch.state] or not batch.members then return batch end
  local members, at = batch.members, tonumber(place) + 1
  if at > 0 and members:sub(at, at) == '0' then
    members = members:sub(1, at - 1) .. (failed == '1' and '2' or '1') .. members:sub(at + 1)
  end
  batch = replace(batch, {
    members = members, follow_ups = batch.follow_ups or follow_ups, started_at = text(now)})
  if members:find('0', 1, true) then return batch end
  local _, bad = members:gsub('2', '')
  local detail = bad > 0 and string.format('%d of %d tasks did not succeed', bad, #members) or ''
  local result = string.format('{"tasks":%d,"failed":%d}', #members, bad)
  return ended(batch, bad > 0 and 'failed' or 'succeed', result, detail)
end

local function save(trace, before, after)
  local key, changes, gone = key_of(trace), {}, {}
  for field, value in pairs(after) do
    if not before or before[field] ~= value then
      changes[#changes + 1] = field
      changes[#changes + 1] = value
    end
  end
  for field in pairs(before or {}) do
    if not after[field] then gone[#gone + 1] = field end
  end
  if #changes > 0 then redis.call('HSET', key, unpack(changes)) end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  if not before or before.state ~= after.state or before.type ~= after.type then
    if before then redis.call('ZREM', index_of(before.state, before.type), trace) end
    redis.call('ZADD', index_of(after.state, after.type), 0, trace)
    redis.call('SADD', root .. ':types', after.type)
  end
  if after.message then
    redis.call('ZADD', root .. ':due', after.send_at, trace)
  elseif before and before.message then
    redis.call('ZREM', root .. ':due', trace)
  end
  for _, field in ipairs({'queued_at', 'started_at', 'ended_at'}) do
    if not before or before[field] ~= after[field] then
      redis.call('ZADD', root .. ':moved', text(now), trace)
      break
    end
  end
end

local request, width, answers = requests[ARGV[2]], tonumber(ARGV[4]), {}
local guarded = ARGV[2] == 'beat' or ARGV[2] == 'give_back' or ARGV[2] == 'end'
for i = 5, #ARGV, width do
  local trace = ARGV[i]
  local before = load(trace)
  local after = request(before, unpack(ARGV, i, i + width - 1))
  if after then
    if after ~= before then save(trace, before, after) end
    local told = {}
    for field, value in pairs(after) do
      told[#told + 1] = field
      told[#told + 1] = value
    end
    answers[#answers + 1] = told
  else
    answers[#answers + 1] = guarded and (before and before.epoch or '0') or 0
  end
end
return {'ok', answers}
