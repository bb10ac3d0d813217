-- ARGV: key. Returns the claim, or false: free.
return standing(ARGV[1])
