-- Shared by the scripts of the task store. A task is a hash; a field that isn't there is empty or 0. All keys of
-- an app's tasks in a shard begin with KEYS[2]; which they are, only the requests know:
--
--   :task:TRACE        the task; times in microseconds
--   :in:STATE:TYPE     sorted set: the traces of the tasks of a type in a state, in their order
--   :types             set: the types there are or were
--   :due               sorted set: the traces of tasks whose messages are yet to be sent, by when
--   :moved             sorted set: traces by when they were queued, begun or ended last, or later
local root = KEYS[2]
local ENDED = {succeed = true, failed = true, timeout = true}

local function key_of(trace)
  return root .. ':task:' .. trace
end

local function index_of(state, kind)
  return root .. ':in:' .. state .. ':' .. kind
end

-- The task as a table of texts, or nil.
local function load(trace)
  local pairs_ = redis.call('HGETALL', key_of(trace))
  if #pairs_ == 0 then return nil end
  local task = {}
  for i = 1, #pairs_, 2 do task[pairs_[i]] = pairs_[i + 1] end
  return task
end
