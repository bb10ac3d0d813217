-- ARGV: member, its record, time to live in ms
redis.call('SET', root .. ':member:' .. ARGV[1], ARGV[2], 'PX', ARGV[3])
redis.call('HSET', root .. ':members', ARGV[1], ARGV[2])
redis.call('PUBLISH', root .. ':changes', 'joined ' .. ARGV[2])
