"""Fetches commands from an API, a page at a time, as devices finish earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.outbox import NewCommand, OutboxStore
from holdfast.devices.spec import Page, Source
from holdfast.errors import Fenced, InvalidMessage, TooLarge
from holdfast.extend import Clock
from holdfast.extend.products import await_user_code
from holdfast.extend.tools import Backoff, kind_and_place, run_user_code

LOOK_S = 1.0
"""Seconds between counts of waiting commands."""


async def fill(
    outbox: Outbox, source: Source, store: OutboxStore, clock: Clock, log: Any, epoch: int
) -> None:
    """Keep between ``low`` and ``high`` commands waiting, until ``epoch`` of shard 0 is no longer current:
    only its owner fetches. A page that fails is fetched again, from the stored cursor."""
    name, backoff, failures = outbox.spec.name, Backoff(1.0, 60.0), 0
    while True:
        try:
            if await store.count_waiting(name, source.low) < source.low:
                more = True
                while more and await store.count_waiting(name, source.high) < source.high:
                    page = await await_user_code(source.next_page, await store.cursor(name, source.name))
                    commands = _added(outbox, source, page, log)
                    await store.fill(name, 0, epoch, source.name, page.cursor, commands)
                    more = page.more
                await clock.sleep(LOOK_S if more else source.pause_s)
            else:
                await clock.sleep(LOOK_S)
            failures = 0
        except Fenced:
            return
        except Exception as error:  # noqa: BLE001 - the API is the user's, and may fail in any way
            failures += 1
            fields = {"outbox": name, "source": source.name, "error": kind_and_place(error)[0]}
            log.warning("source failed", **fields)
            await clock.sleep(backoff.delay_s(failures, clock.random()))


def _added(outbox: Outbox, source: Source, page: Page, log: Any) -> list[NewCommand]:
    """Return the valid commands of a page. Others are logged and skipped, so that they don't stop the
    source."""
    added: list[NewCommand] = []
    given: Any  # a user's function may return anything
    for given in page.commands:
        try:
            added += outbox.new([given])
        except (InvalidMessage, TooLarge, TypeError) as error:
            device = repr(given.get("device") if isinstance(given, Mapping) else given)[:100]
            fields = {"outbox": outbox.spec.name, "source": source.name, "cursor": page.cursor[:100]}
            log.error("invalid command of a source skipped", device=device, error=str(error), **fields)
            if source.refused is not None:
                run_user_code(source.refused, given, error)
    return added
