-- ARGV: delay in microseconds (0: none), body, attributes as JSON ('': none) of each. Returns their numbers.
return {'ok', add(ARGV)}
