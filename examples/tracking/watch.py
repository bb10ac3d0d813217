"""Follows the results log, the coordinator and the nodes' metrics, and fills the picture."""

from __future__ import annotations

import aiohttp
import msgspec

from examples.tracking.app import STREAM
from examples.tracking.picture import CommittedResult, Picture
from holdfast.extend import Clock, Coordinator, Logged, StateStore

PAGE = 500
WAIT_S = 5.0
SCRAPE_S = 0.5
SCRAPE_TIMEOUT = aiohttp.ClientTimeout(total=2)
DUPLICATES = "holdfast_duplicates_total"


async def follow_results(state: StateStore, picture: Picture) -> None:
    """Take every result, in the order of the log."""
    after = 0
    owners: dict[tuple[str, int], str] = {}
    while True:
        for logged in await state.results(after, PAGE, WAIT_S, STREAM):
            after = logged.cursor
            opening = logged.key, logged.epoch
            if opening not in owners:
                owners[opening] = await _owner(state, picture, logged)
            result = msgspec.json.decode(logged.result.body)
            frame = int(logged.result.name.partition(":")[2])
            line = CommittedResult(frame, logged.at, owners[opening], result)
            picture.result(logged.key.partition("/")[2], line)


async def _owner(state: StateStore, picture: Picture, logged: Logged) -> str:
    checkpoint = await state.peek(logged.key)
    if checkpoint is not None and checkpoint.epoch == logged.epoch:
        return picture.name(checkpoint.member)
    return picture.streams[logged.key.partition("/")[2]].owner


async def follow_changes(coordinator: Coordinator, picture: Picture, after: int) -> None:
    """Take every change of memberships and claims after the number ``after``."""
    while True:
        after, changes = await coordinator.watch(after, WAIT_S)
        for change in changes:
            picture.changed(change)


async def follow_metrics(clock: Clock, picture: Picture) -> None:
    """Ask the nodes what they count, for as long as they answer."""
    async with aiohttp.ClientSession(timeout=SCRAPE_TIMEOUT) as session:
        while True:
            await scrape(session, picture)
            await clock.sleep(SCRAPE_S)


async def scrape(session: aiohttp.ClientSession, picture: Picture) -> None:
    """Ask the nodes once."""
    for node in list(picture.nodes.values()):
        if node.metrics and node.state not in ("killed", "ended"):
            try:
                async with session.get(node.metrics) as reply:
                    lines = (await reply.text()).splitlines()
            except (TimeoutError, aiohttp.ClientError):
                continue  # it is ending
            counts = [line.split()[1] for line in lines if line.startswith(f"{DUPLICATES} ")]
            node.duplicates = int(float(counts[0])) if counts else node.duplicates
