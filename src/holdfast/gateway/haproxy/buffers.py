"""The sizes of HAProxy's buffers. They are apart, because the command line's help shows one as a default."""

BUFFER_BYTES_MIN = 16 * 1024
REWRITE_BYTES = 1024
HEADER_BYTES = 1024
"""The usual size of a request's headers at most. With larger headers, the body may not be sent again."""

REPLAY_BYTES = BUFFER_BYTES_MIN - REWRITE_BYTES - HEADER_BYTES
"""The largest body that can be sent again by default. HAProxy copies a whole buffer for every such request:
that takes less than 1 µs with its usual 16 KiB, 6 µs with 64 KiB and 30 µs with 256 KiB, while all other work
takes 20 µs."""

REPLAY_BYTES_MAX = 16 * 1024 * 1024
"""The largest that may be asked for. Each connection takes buffers of that size."""
