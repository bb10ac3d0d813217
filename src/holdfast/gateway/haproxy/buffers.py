"""How large the buffers of HAProxy are. Apart, for the command line's help names a default of theirs."""

BUFFER_BYTES_MIN = 16 * 1024
REWRITE_BYTES = 1024
HEADER_BYTES = 1024
"""What the head of a request usually takes at most; a body under a larger one may not be sent again."""

REPLAY_BYTES = BUFFER_BYTES_MIN - REWRITE_BYTES - HEADER_BYTES
"""HAProxy copies a whole buffer for every request that it may have to send again. With its usual 16 KiB that
takes less than 1 µs, with 64 KiB 6, with 256 KiB 30, where all else takes 20."""
