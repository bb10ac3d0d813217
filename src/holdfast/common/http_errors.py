"""Errors of the HTTP client in words."""

from __future__ import annotations

import errno

OWN_FAILURES = frozenset(
    {
        errno.EADDRNOTAVAIL,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
    }
)
"""Error numbers that this host causes: they say nothing about the other host."""


def describe_http_error(error: BaseException) -> str:
    """Return why a request failed, without the client's own terms such as ``ssl:default``. For a refused
    connection it has host and port."""
    certificate = getattr(error, "certificate_error", None)
    cause = certificate or getattr(error, "os_error", None)
    if cause is None:
        return str(error) or type(error).__name__
    reason = getattr(cause, "verify_message", "") or getattr(cause, "strerror", "") or str(cause)
    host, port = getattr(error, "host", ""), getattr(error, "port", "")
    return f"can't connect to {host}:{port}: {reason}"
