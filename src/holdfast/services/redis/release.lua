-- ARGV: key, its claim. Returns 1 if it was freed.
if standing(ARGV[1]) ~= ARGV[2] then return 0 end
set(ARGV[1], '')
return 1
