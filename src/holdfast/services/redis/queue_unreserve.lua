-- ARGV: key as JSON, holder.
local _, holder = reservation(ARGV[1], now_us())
if holder == ARGV[2] then ring(finish(ARGV[1])) end
return {'ok'}
