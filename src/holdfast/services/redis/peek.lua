-- A checkpoint that acts and its effects, of one moment.
-- KEYS: checkpoint, effects
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
