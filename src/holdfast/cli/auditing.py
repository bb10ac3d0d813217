"""Notes in the audit log what commands change, with who asked: the log that the console shows."""

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
    """Note the intent before the block, and the outcome after it. An operator must be able to act while the
    registry is away, so if nothing can be noted, the block is run all the same, and people are told if it
    succeeds. From here on the command comes to its end although nobody reads its output any more."""
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
            output.complain(f"this is done, but not in the audit log: {unnoted}")


def who() -> str:
    """The user and the machine that a command is run by."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (command line)"
