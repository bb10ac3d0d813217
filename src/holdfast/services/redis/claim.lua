-- ARGV: key, member. Returns the claim that stands afterwards, or false: the member doesn't live.
if not lives(ARGV[2]) then return false end
return standing(ARGV[1]) or set(ARGV[1], ARGV[2])
