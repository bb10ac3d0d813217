"""The findings of ``holdfast doctor``."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.cli import exits
from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError, HoldfastError, NoDatabase, OutcomeUnknown, TakesNoWrites, Unavailable
from holdfast.registration.entry_points import DISTRIBUTION


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. ``fix`` is the remedy, if one is needed."""

    check: str
    verdict: Literal["ok", "warning", "failed"]
    text: str
    fix: str = ""
    exit_code: int = exits.OK


def unsound(error: ConfigError) -> Finding:
    """Return the finding for settings that can't be read."""
    return Finding("settings", "failed", str(error), "correct them, then run this again", exits.USAGE)


def unknown_variables() -> Iterable[Finding]:
    """Find unknown variables of the environment, with the nearest settings."""
    from holdfast.config import sources  # noqa: PLC0415

    for variable, fix in sources.unknown_variables():
        yield Finding("environment", "warning", f"{variable} isn't a setting and has no effect", fix)


def foreign_distribution() -> Iterable[Finding]:
    """Find another distribution named ``holdfast``, which may have replaced files of this package."""
    from importlib import metadata  # noqa: PLC0415 - takes a while

    try:
        found = metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return
    text = (
        f"'holdfast' {found} is installed beside {DISTRIBUTION!r}: another project's package, or Holdfast"
        " before 0.3.0; either may have replaced files of this one"
    )
    fix = f"pip uninstall holdfast, then pip install --force-reinstall --no-deps {DISTRIBUTION}"
    yield Finding("packages", "warning", text, fix)


async def look_at(check: str, url: str, look: Callable[[], Awaitable[str]]) -> Finding:
    """Check a service, and return the finding. ``look`` calls the service and describes it in words, or
    raises an error. A missing database is made by the first node."""
    try:
        return Finding(check, "ok", f"{redact_url(url)}: {await look()}")
    except NoDatabase as error:
        text = f"{redact_url(url)}: there is no database {error.path} yet"
        if why := why_not_made(error.path):
            fix = "name a file in a directory that this user may write"
            return Finding(check, "failed", f"{text}, and {why}", fix, exits.USAGE)
        fix = (
            "start a node, which makes it; if nodes run already, run this on their host, or name their"
            " database as they do"
        )
        return Finding(check, "warning", text, fix)
    except (HoldfastError, OSError) as error:
        unreachable = isinstance(error, Unavailable | OutcomeUnknown) and not isinstance(error, TakesNoWrites)
        fix = f"check that {redact_url(url)} is up and can be reached" if unreachable else "correct the error"
        where = f"{redact_url(url)}: " if url else ""
        return Finding(check, "failed", f"{where}{error}", fix, exits.code(error))


def is_there(path: Path) -> bool:
    """Return True if a file or folder exists and this user may see it."""
    try:
        return path.exists()
    except OSError:
        return False


def why_not_made(path: Path) -> str:
    """Return why this user can't make a file or folder; empty if it can."""
    above = next(folder for folder in path.parents if is_there(folder))
    if not above.is_dir():
        return f"{above} isn't a directory"
    return "" if os.access(above, os.W_OK | os.X_OK) else f"this user may not write in {above}"
