-- ARGV: key, its claim, the membership to give it to. Returns the new claim; 0: the claim doesn't stand so;
-- 1: the other doesn't live.
if standing(ARGV[1]) ~= ARGV[2] then return 0 end
if not lives(ARGV[3]) then return 1 end
return set(ARGV[1], ARGV[3])
