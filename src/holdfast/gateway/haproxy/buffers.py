"""The sizes of HAProxy's buffers. They have a module of their own, because the command line's help shows one
as a default."""

BUFFER_BYTES_MIN = 16 * 1024
REWRITE_BYTES = 1024
HEADER_BYTES = 1024
"""The room for a request's headers. With larger headers, the body may be too large to be sent again."""

REPLAY_BYTES = BUFFER_BYTES_MIN - REWRITE_BYTES - HEADER_BYTES
"""The largest body that is sent again by default. HAProxy copies a whole buffer for each such request, which
takes less than 1 µs with 16 KiB, 6 µs with 64 KiB and 30 µs with 256 KiB. All other work takes 20 µs."""

REPLAY_BYTES_MAX = 16 * 1024 * 1024
"""The largest ``--replay-bytes``. Each connection takes buffers of that size."""
