"""Redis and Valkey, from version 6.2: a coordinator and a state store, by scripts that run in the server."""
