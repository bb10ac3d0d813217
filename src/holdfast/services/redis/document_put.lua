-- ARGV: name, version that must stand, body. Returns the new version, or false: another stands.
if version_of(ARGV[1]) ~= ARGV[2] then return false end
local version = next_version(ARGV[1])
redis.call('HSET', root .. ':document:' .. ARGV[1], 'version', version, 'body', ARGV[3])
redis.call('ZADD', root .. ':names', 0, ARGV[1])
redis.call('PUBLISH', root .. ':changes', ARGV[1])
return version
