"""The output of ``holdfast status`` for people."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from holdfast.cli import output
from holdfast.operate.streams import stream_warning
from holdfast.operate.survey import Survey, calls_per_message
from holdfast.wiring.services import Services


def render(found: Survey, limit: int) -> Group:
    """Return a survey for people, with fewer columns on a narrow terminal."""
    narrow = output.is_narrow()
    calls = found.calls_per_message
    nodes = output.table(
        f"Nodes: {len(found.nodes)}" + (f", {calls:.3f} calls per message" if calls else ""),
        ["name", "address", "streams", "slots", "handled", "calls per message", "", "membership"],
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
        narrow=narrow,
        dropped=("address", "calls per message", "membership"),
    )
    queues = output.table(
        f"\nQueues: {len(found.queues)}",
        ["stream", "ready", "in flight", "delayed", "dead", "lag (s)"],
        [
            [q.stream, q.ready, q.in_flight, q.delayed, q.dead, "—" if q.lag_s is None else f"{q.lag_s:.1f}"]
            if not q.error
            else [q.stream, "—", "—", "—", "—", q.error]
            for q in found.queues
        ],
    )
    worst_first = sorted(
        found.streams, key=lambda entry: (not entry.parked, not entry.waits, bool(entry.owner))
    )
    more = f", the first {limit} shown" if len(found.streams) > limit else ""
    streams = output.table(
        f"\nStreams: {len(found.streams)}{more}",
        ["stream", "key", "owner", "run", "seq", "done", "skipped", "quiet (s)", "to do", "waiting for"],
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
                entry.to_do,
                entry.waits or (f"parked: {entry.parked}" if entry.parked else ""),
            ]
            for entry in worst_first[:limit]
        ],
        narrow=narrow,
        dropped=("run", "done", "skipped"),
    )
    troubles = [Text(f"! {trouble}") for trouble in found.troubles]
    tables = (
        output.table(f"\n{table.name.capitalize()}: {len(table.records)}", table.columns, table.rows)
        for table in found.tables
        if table.rows
    )
    return Group(nodes, *troubles, queues, streams, *tables)


async def warn_of_undeclared(services: Services, stream: str) -> None:
    """Warn if nodes live and none runs the stream. Nothing is made for this check."""
    async with Services(services.config, reads_only=True, expands=False) as reader:
        if warning := await stream_warning(reader, stream):
            output.complain(warning)
