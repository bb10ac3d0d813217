"""Entries of commands in the audit log, which the console shows."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from holdfast.cli import output
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.console.audit import Audited
    from holdfast.wiring.services import Services


@contextlib.asynccontextmanager
async def audited(
    services: Services, action: str, subject: str, details: Mapping[str, object] | None = None
) -> AsyncIterator[Audited]:
    """Write the intent before the block, and the outcome after it. Operators must be able to act while the
    registry is unavailable, so the block runs even if nothing can be written; then a message says so. From
    here on the command continues if the reader of its output closes the pipe."""
    from holdfast.console.audit import Audited, AuditLog  # noqa: PLC0415 - a page of help needs none

    output.go_on_unread()
    given = {name: value for name, value in (details or {}).items() if value not in (None, "", False, ())}
    async with contextlib.AsyncExitStack() as stack:
        unnoted, under_way = "", Audited()
        try:
            log = AuditLog(services.registry(), services.clock, None)
            under_way = await stack.enter_async_context(log.doing(who(), action, subject, given))
        except HoldfastError as error:
            unnoted = str(error)
        yield under_way
        if unnoted:
            output.complain(f"done, but the audit log could not be written: {unnoted}")


def who() -> str:
    """Return the user and machine that run the command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (command line)"
