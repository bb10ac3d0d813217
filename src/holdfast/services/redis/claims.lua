-- ARGV: cursor, how many to look at, member ('': all). Returns the next cursor, then key and claim of each.
local found, living = {}, {}
local function add(key, claim)
  local member = claim and holder(claim)
  if not member or (ARGV[3] ~= '' and ARGV[3] ~= member) then return end
  if living[member] == nil then living[member] = lives(member) end
  if living[member] then
    found[#found + 1] = key
    found[#found + 1] = claim
  end
end

local page
if ARGV[3] == '' then
  page = redis.call('HSCAN', root .. ':claims', ARGV[1], 'COUNT', ARGV[2])
  for i = 1, #page[2], 2 do add(page[2][i], page[2][i + 1]) end
else
  page = redis.call('SSCAN', root .. ':held:' .. ARGV[3], ARGV[1], 'COUNT', ARGV[2])
  for _, key in ipairs(page[2]) do add(key, redis.call('HGET', root .. ':claims', key)) end
end
return {page[1], found}
