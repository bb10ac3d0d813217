-- ARGV: name, version that must stand. Returns 1 if the document was removed.
local document = root .. ':document:' .. ARGV[1]
if redis.call('EXISTS', document) == 0 or version_of(ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('DEL', document)
redis.call('ZREM', root .. ':names', ARGV[1])
redis.call('PUBLISH', root .. ':changes', ARGV[1])
return 1
