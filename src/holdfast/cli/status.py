"""``holdfast status``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Group
from rich.live import Live

from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.core.ledger import Checkpoint
from holdfast.devices.spec import LABEL
from holdfast.errors import HoldfastError
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.ports.state import StateStore
from holdfast.wiring import Services

PAGE = 1000
REFRESH_S = 1.0


async def status(
    *,
    stream: tuple[str, ...] = (),
    limit: int = 40,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Show nodes, queues and streams: who owns what, how far it is, what waits.

    ```
    holdfast status
    holdfast status --watch --stream detect
    holdfast status --json
    ```

    Args:
        stream: Only these streams. Also shows queues of streams that nothing was committed for yet.
        limit: Streams shown in the table, those that stand still first.
        watch: Go on, once a second.
        json: Print one JSON object.
    """
    async with Services(options.load()) as services:
        if not watch:
            found = await survey(services, stream)
            output.json_line(found) if json else output.console().print(render(found, limit))
        elif json:
            while True:
                output.json_line(await survey(services, stream))
                await services.clock.sleep(REFRESH_S)
        else:
            with Live(console=output.console(), auto_refresh=False, screen=True) as live:
                while True:
                    live.update(render(await survey(services, stream), limit), refresh=True)
                    await services.clock.sleep(REFRESH_S)


class QueueStatus(msgspec.Struct):
    """One stream's queue: messages in it by what they wait for, and the age of the oldest, where the queue
    tells it."""

    stream: str
    ready: int
    in_flight: int
    delayed: int
    dead: int
    lag_s: float | None


class StreamStatus(msgspec.Struct):
    """One stream. ``owner`` is a node's name, or empty; ``quiet_s`` the time since its last commit."""

    stream: str
    key: str
    owner: str
    epoch: int
    run: int | None
    seq: int | None
    done: int
    skipped: int
    parked: str
    quiet_s: float | None


class OutboxStatus(msgspec.Struct):
    """Which nodes serve the devices of an outbox: how many shards of them each. ``paused`` says what is: all
    of it, or how many devices; empty if nothing is, or the outbox's database doesn't tell."""

    outbox: str
    shards: dict[str, int]
    paused: str = ""


class Survey(msgspec.Struct):
    """Everything at one moment. ``calls_per_message``: calls to metered services for each message that the
    living nodes have handled, or None before the first."""

    nodes: list[Member]
    queues: list[QueueStatus]
    streams: list[StreamStatus]
    outboxes: list[OutboxStatus]
    calls_per_message: float | None


async def survey(services: Services, only: tuple[str, ...] = ()) -> Survey:
    """Ask coordinator, state store and queues."""
    members = await services.coordinator().members()
    claimed = await services.coordinator().claims()
    claims = {claim.key: claim for claim in claimed if not claim.key.startswith(LABEL)}
    checkpoints = {point.key: point for point in await all_checkpoints(services.state())}
    keys = sorted({*claims, *checkpoints})
    names = {member.id: member.name for member in members}
    now = services.clock.wall()
    streams = [_stream(key, claims.get(key), checkpoints.get(key), names, now) for key in keys]
    known = sorted({*only} or {entry.stream for entry in streams})
    queues = []
    for name in known:
        queue = services.queue(name)
        depth = await queue.depth()
        lag_s = depth.lag_s if queue.tells_lag else None
        queues.append(QueueStatus(name, depth.ready, depth.in_flight, depth.delayed, depth.dead, lag_s))
    shown = [entry for entry in streams if entry.stream in known]
    outboxes = _outboxes(members, claimed, names)
    await _note_pauses(services, outboxes)
    return Survey(members, queues, shown, outboxes, calls_per_message(member.load for member in members))


async def _note_pauses(services: Services, outboxes: list[OutboxStatus]) -> None:
    """What operators have paused, as far as the business's database is there to be asked."""
    if not (outboxes and services.config.outbox_url):
        return
    store = services.outbox_store()
    try:
        for each in outboxes:
            paused = dict(await store.paused(each.outbox))
            if "" in paused:
                each.paused = "all"
            elif paused:
                each.paused = f"{len(paused)} of its devices"
    except HoldfastError:
        return  # the rest of the survey stands
    finally:
        await store.close()


def _outboxes(members: list[Member], claimed: Iterable[Claim], names: dict[str, str]) -> list[OutboxStatus]:
    shards = {
        outbox: {member.name: 0 for member in members if outbox in member.load.outboxes}
        for outbox in sorted({outbox for member in members for outbox in member.load.outboxes})
    }
    for claim in claimed:
        outbox, _, _ = claim.key.removeprefix(LABEL).rpartition("/")
        if claim.key.startswith(LABEL) and outbox in shards and claim.member in names:
            node = names[claim.member]
            shards[outbox][node] = shards[outbox].get(node, 0) + 1
    return [OutboxStatus(outbox, nodes) for outbox, nodes in shards.items()]


def calls_per_message(loads: Iterable[Load]) -> float | None:
    """Calls to metered services for each message handled, or None if none was."""
    told = list(loads)
    handled = sum(load.handled for load in told)
    return round(sum(load.calls for load in told) / handled, 3) if handled else None


async def all_checkpoints(state: StateStore) -> list[Checkpoint]:
    """Every checkpoint, in order of key."""
    found: list[Checkpoint] = []
    while page := await state.checkpoints(found[-1].key if found else "", PAGE):
        found.extend(page)
    return found


def _stream(
    full_key: str, claim: Claim | None, checkpoint: Checkpoint | None, names: dict[str, str], now: float
) -> StreamStatus:
    stream, key = output.split_key(full_key)
    point = checkpoint or Checkpoint(full_key)
    return StreamStatus(
        stream=stream,
        key=key,
        owner=names.get(claim.member, "") if claim else "",
        epoch=point.epoch,
        run=point.log.run if point.log else None,
        seq=point.log.seq if point.log else None,
        done=point.done,
        skipped=point.skipped,
        parked=point.parked,
        quiet_s=max(0.0, now - point.at) if point.at else None,
    )


def render(found: Survey, limit: int) -> Group:
    """A survey for people."""
    calls = found.calls_per_message
    nodes = output.table(
        f"Nodes: {len(found.nodes)}" + (f", {calls:.3f} calls a message" if calls else ""),
        ["name", "address", "streams", "slots", "handled", "calls a message", "", "membership"],
        [
            [
                node.name,
                node.address,
                node.load.streams,
                node.load.slots,
                node.load.handled,
                f"{each:.3f}" if (each := calls_per_message([node.load])) else "",
                "draining" if node.load.draining else "",
                node.id,
            ]
            for node in found.nodes
        ],
    )
    queues = output.table(
        f"\nQueues: {len(found.queues)}",
        ["stream", "ready", "in flight", "delayed", "dead", "lag (s)"],
        [
            [q.stream, q.ready, q.in_flight, q.delayed, q.dead, "—" if q.lag_s is None else f"{q.lag_s:.1f}"]
            for q in found.queues
        ],
    )
    worst_first = sorted(found.streams, key=lambda entry: (not entry.parked, bool(entry.owner)))
    more = f", the first {limit} shown" if len(found.streams) > limit else ""
    streams = output.table(
        f"\nStreams: {len(found.streams)}{more}",
        ["stream", "key", "owner", "run", "seq", "done", "skipped", "quiet (s)", "parked"],
        [
            [
                entry.stream,
                entry.key,
                entry.owner or "—",
                "" if entry.run is None else entry.run,
                "" if entry.seq is None else entry.seq,
                entry.done,
                entry.skipped,
                "" if entry.quiet_s is None else entry.quiet_s,
                entry.parked,
            ]
            for entry in worst_first[:limit]
        ],
    )
    if not found.outboxes:
        return Group(nodes, queues, streams)
    outboxes = output.table(
        f"\nOutboxes: {len(found.outboxes)}",
        ["outbox", "node", "shards", "paused"],
        [
            [each.outbox, node, count, each.paused]
            for each in found.outboxes
            for node, count in each.shards.items()
        ],
    )
    return Group(nodes, queues, streams, outboxes)


async def stream_names(services: Services) -> list[str]:
    """Streams that a commit or a claim is known of."""
    return [queue.stream for queue in (await survey(services)).queues]
