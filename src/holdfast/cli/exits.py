"""The exit codes of the command line."""

from __future__ import annotations

from holdfast.errors import ConfigError, Damaged, OutcomeUnknown, Unavailable, UnsupportedStore

OK = 0
FAILED = 1
USAGE = 2
"""The command line, a setting or a file is wrong, or data is damaged. Trying again doesn't help."""
UNREACHABLE = 3
"""A service can't be reached. Trying again may help."""
INTERRUPTED = 130


def code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, ConfigError | Damaged | UnsupportedStore):
        return USAGE
    return UNREACHABLE if isinstance(error, Unavailable | OutcomeUnknown) else FAILED
