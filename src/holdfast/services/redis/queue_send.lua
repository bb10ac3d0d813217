-- ARGV: delay in microseconds (0: none; below 0: a priority), body, attributes as JSON ('': none) of each. Returns their numbers.
return {'ok', add(ARGV)}
