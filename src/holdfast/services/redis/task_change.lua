-- The rules of a task's life, as rules/tasks/task.py has them.
-- KEYS: shard, what keys begin with
-- ARGV: shards, request, chance, how many arguments each has, then those of each, the trace first
-- Returns for each what stands then: 0: nothing (or nobody asks), an epoch: that one fenced it, or fields and values.
local wrong = misplaced(KEYS[1], ARGV[1])
if wrong then return wrong end
local now = now_us()
local NOW = text(now)

local function number(task, field)
  return tonumber(task[field] or 0)
end

-- An attempt has an epoch that was never issued before, though Redis may have lost the last writes: by time,
-- and by chance where clocks disagree.
local function next_epoch(task)
  local chance = tonumber(ARGV[3])
  return text(math.max(number(task, 'epoch') + 1 + chance, now + chance % 1024))
end

-- A request gets the task, or nil, and its arguments. It returns the task, {} for a new one, and what becomes of its
-- fields: '' for those that go; nil if nothing changes. Or nothing if there is no such task, or another attempt.
local requests = {}

local function with(changes, more)
  for field, value in pairs(more) do changes[field] = value end
  return changes
end

local function ended(state, result, detail)
  return {
    state = state, ['until'] = '', progress = state == 'succeed' and '1.0' or nil, result = result,
    detail = detail, ended_at = NOW}
end

local function stands(task, epoch)
  return task and task.state == 'running' and task.epoch == epoch
end

function requests.queue(task, trace, fields)
  if task then return task end
  return {}, with(cjson.decode(fields), {state = 'queued', queued_at = NOW})
end

-- The fields of a record, in the order in which a task that is restored has them.
local FIELDS = {
  'type', 'group', 'member', 'node', 'note', 'detail', 'cancel', 'members', 'earlier', 'epoch', 'attempts', 'pauses',
  'until', 'queued_at', 'started_at', 'ended_at', 'send_at', 'state', 'progress', 'result', 'follow_ups', 'effects', 'message',
  'stored', 'briefed'}

-- A task as another store had it.
function requests.restore(task, trace, moved, ...)
  if task then return task end
  local changes = {}
  for i, field in ipairs(FIELDS) do changes[field] = select(i, ...) end
  return {}, changes
end

function requests.delay(task, trace, kind, delay, message, group)
  if task then return task end
  local due = text(now + tonumber(delay))
  return {}, {state = 'queued', type = kind, group = group, queued_at = NOW,
    ['until'] = message ~= '' and due or '', message = message, send_at = due}
end

function requests.message_sent(task, trace)
  return task, task and task.message and {message = '', send_at = ''} or nil
end

-- What is kept of a task's attempts as the next one begins: a line for each that was spent, while there is room.
local EARLIER_BYTES_MAX = 4096
local function earlier(task)
  local known, attempts = task.earlier or '', number(task, 'attempts')
  if attempts == 0 then return known end
  local why = task.state == 'running' and 'it ended without an outcome' or string.match(task.detail or '', '^[^\n]*')
  local line = 'attempt ' .. text(attempts) .. ' on ' .. (task.node or '') .. ': ' .. why .. '\n'
  if #known + #line > EARLIER_BYTES_MAX or string.sub(known, -#line) == line then return known end
  return known .. line
end

function requests.start(task, trace, kind, member, node, tries, lease, group, instead_of, follow_ups)
  local new = {}
  if not task then
    task, new = {}, {state = 'queued', type = kind, group = group, queued_at = NOW}
  end
  if ENDED[task.state] then return task end
  if task.state == 'running' then
    local holds = number(task, 'until') > now and task.member ~= instead_of
    if holds or task.member == member then return task end
  end
  if task.cancel then return task, ended('failed', '', 'cancelled: ' .. task.cancel) end
  if task.state == 'queued' and number(task, 'until') > now then return task end
  local attempts = number(task, 'attempts')
  if attempts >= tonumber(tries) then
    local died = string.format('attempt %d of %s ended without an outcome on node %s',
      attempts, tries, task.node or '')
    local why = task.state == 'running' and died or task.detail or ''
    return task, with(new, ended('failed', '', why))
  end
  return task, with(new, {
    type = kind, state = 'running', group = group, epoch = next_epoch(task), attempts = text(attempts + 1),
    member = member, node = node, ['until'] = text(now + tonumber(lease)), progress = '', note = '',
    started_at = NOW, follow_ups = follow_ups, message = '', send_at = '', earlier = earlier(task)})
end

function requests.beat(task, trace, epoch, lease, progress, note, member)
  if not stands(task, epoch) then return end
  return task, {['until'] = text(now + tonumber(lease)), progress = progress, note = note,
    member = member ~= '' and member or nil}
end

function requests.give_back(task, trace, epoch, spent, detail, pause)
  if task and task.state == 'queued' and (task.epoch or '0') == epoch then return task end
  if not stands(task, epoch) then return end
  local attempts = number(task, 'attempts') - (spent == '1' and 0 or 1)
  local pauses = tonumber(pause) > 0
  return task, {
    state = 'queued', attempts = attempts > 0 and text(attempts) or '', member = '',
    ['until'] = pauses and text(now + tonumber(pause)) or '', detail = detail ~= '' and detail or nil,
    pauses = pauses and text(number(task, 'pauses') + 1) or nil}
end

requests['end'] = function(task, trace, epoch, state, result, detail, effects, stored)
  if task and ENDED[task.state] and (task.epoch or '0') == epoch and task.state == state then return task end
  if not stands(task, epoch) then return end
  return task, with(ended(state, result, detail), {effects = effects, stored = stored})
end

function requests.handed_over(task, trace, epoch, left)
  local stands = task and ENDED[task.state] and (task.epoch or '0') == epoch and task.effects
  return task, stands and {effects = left} or nil
end

function requests.resend_effects(task, trace, effects, instead_of)
  if not task or task.state ~= 'succeed' or not task.briefed then return task end
  if task.effects and task.effects ~= instead_of then return task end
  return task, {epoch = next_epoch(task), effects = effects, ['until'] = text(now)}
end

function requests.briefed(task, trace, epoch)
  if not (task and ENDED[task.state] and (task.epoch or '0') == epoch) then return task end
  return task, {message = '', send_at = task.message and '' or nil, briefed = '1'}
end

function requests.cancel(task, trace, reason)
  if not task or ENDED[task.state] then return task end
  if task.state == 'queued' and not task.members then
    local changes = ended('failed', '', 'cancelled: ' .. reason)
    return task, with(changes, {epoch = next_epoch(task), cancel = reason, send_at = task.message and NOW or nil})
  end
  return task, {cancel = reason}
end

function requests.reset(task, trace)
  if not task or task.members or task.state == 'succeed' then return task end
  if task.state == 'running' and number(task, 'until') > now then return task end
  local changes = {}
  for field in pairs(task) do changes[field] = '' end
  return task, with(changes, {
    type = task.type, state = 'queued', group = task.group, epoch = task.epoch, queued_at = NOW})
end

function requests.count(task, trace, size, place, failed, follow_ups)
  local new = {}
  if not task then
    task, new = {}, {
      type = '(batch)', state = 'queued', queued_at = NOW, members = string.rep('0', tonumber(size))}
  end
  local members, at = task.members or new.members, tonumber(place) + 1
  if ENDED[task.state] or not members then return task end
  if at > 0 and members:sub(at, at) == '0' then
    members = members:sub(1, at - 1) .. (failed == '1' and '2' or '1') .. members:sub(at + 1)
  end
  local changes = with(new, {
    members = members, follow_ups = task.follow_ups or follow_ups, started_at = NOW})
  if members:find('0', 1, true) then return task, changes end
  local _, bad = members:gsub('2', '')
  local detail = bad > 0 and string.format('%d of %d tasks did not succeed', bad, #members) or ''
  if bad > 0 and task.cancel then detail = 'cancelled: ' .. task.cancel .. '; ' .. detail end
  local result = string.format('{"tasks":%d,"failed":%d}', #members, bad)
  return task, with(changes, ended(bad > 0 and 'failed' or 'succeed', result, detail))
end

-- What becomes of the sorted sets, for all tasks of the call together: set -> trace -> score, or false for one that
-- goes.
local placed = {}

local function place(set, trace, score)
  local some = placed[set]
  if not some then
    some = {}
    placed[set] = some
  end
  some[trace] = score
end

local function save_places()
  for set, some in pairs(placed) do
    local added, gone = {}, {}
    for trace, score in pairs(some) do
      if score then
        added[#added + 1] = score
        added[#added + 1] = trace
      else
        gone[#gone + 1] = trace
      end
    end
    if #added > 0 then redis.call('ZADD', set, unpack(added)) end
    if #gone > 0 then redis.call('ZREM', set, unpack(gone)) end
  end
end

local TIMES = {queued_at = true, started_at = true, ended_at = true}
local types = {}

local function save(trace, task, changes)
  local key, state, kind, had_message = key_of(trace), task.state, task.type, task.message
  local set, gone, moved = {}, {}, false
  for field, value in pairs(changes) do
    if value == '' then
      if task[field] then gone[#gone + 1] = field end
      value = nil
    elseif value ~= task[field] then
      set[#set + 1] = field
      set[#set + 1] = value
    end
    moved = moved or TIMES[field] and value ~= task[field]
    task[field] = value
  end
  if #set > 0 then redis.call('HSET', key, unpack(set)) end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  if state ~= task.state or kind ~= task.type then
    if state then place(index_of(state, kind), trace, false) end
    place(index_of(task.state, task.type), trace, '0')
    if not types[task.type] then redis.call('SADD', root .. ':types', task.type) end
    types[task.type] = true
  end
  if task.message then
    place(root .. ':due', trace, task.send_at)
  elseif had_message then
    place(root .. ':due', trace, false)
  end
  if moved then place(root .. ':moved', trace, NOW) end
end

local request, width, answers = requests[ARGV[2]], tonumber(ARGV[4]), {}
local guarded = ARGV[2] == 'beat' or ARGV[2] == 'give_back' or ARGV[2] == 'end'
local untold = ARGV[2] == 'briefed' or ARGV[2] == 'message_sent' or ARGV[2] == 'handed_over'
  or ARGV[2] == 'restore'
for i = 5, #ARGV, width do
  local trace = ARGV[i]
  local before = load(trace)
  local task, changes = request(before, unpack(ARGV, i, i + width - 1))
  if changes then
    save(trace, task, changes)
    if ARGV[2] == 'restore' then place(root .. ':moved', trace, ARGV[i + 1]) end
  end
  if untold then
    answers[#answers + 1] = 0
  elseif task then
    local told = {}
    for field, value in pairs(task) do
      told[#told + 1] = field
      told[#told + 1] = value
    end
    answers[#answers + 1] = told
  else
    answers[#answers + 1] = guarded and (before and before.epoch or '0') or 0
  end
end
save_places()
return {'ok', answers}
