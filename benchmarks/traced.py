"""What traces cost: the processor time of a message with traces on, against the same without.

Every message carries the place of its sender in a trace. A share of the traces is recorded and exported to
a collector, which runs in this process and isn't counted. Messages, nodes and slots are those of
``streams``; by turns nodes have traces on and off. Processor time is of all nodes and slots, from the
instant at which all messages show until the last one is off the queue.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from typing import Any

from benchmarks import streams
from benchmarks.cluster import Spent
from benchmarks.report import Report
from benchmarks.streams import NODES
from holdfast.common.traceparent import write_traceparent

LEAD_S = 1.5
SAMPLE = 0.01


class Collector(BaseHTTPRequestHandler):
    """Takes spans, and forgets them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name is inherited
        pass


@contextmanager
def collector() -> Iterator[str]:
    """A collector; yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def spent_ms(messages: int, keys: int, slots: int, lead_s: float, **settings: Any) -> float:
    """Return milliseconds of processor time for a message, on nodes with these settings."""
    spent = Spent()
    asyncio.run(streams.holdfast(messages, keys, slots, lead_s, spent, _trace, **settings))
    return spent.seconds / messages * 1000


def _trace(measured: bool) -> dict[str, str]:
    """Return the place of a message in a new trace. Those before the measured ones are recorded at any rate,
    so that the nodes have imported and connected everything."""
    trace_id = secrets.token_hex(16) if measured else secrets.token_hex(8) + "0" * 16
    return {"traceparent": write_traceparent(trace_id, secrets.token_hex(8), sampled=True)}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks traced", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--slots", type=int, default=1, help="of each of the two nodes")
    parser.add_argument("--rounds", type=int, help="the median counts (default 3, with --full 7)")
    parser.add_argument("--lead-s", type=float, default=LEAD_S, help="for sending, before all show")
    parser.add_argument("--sample", type=float, default=SAMPLE, help="the share of traces that is recorded")
    asked = parser.parse_args()
    report = Report("traced")
    report.say(
        f"traced: {asked.messages:,} no-op messages of {asked.keys} keys, each with a place in a trace, on"
        f" {NODES} nodes; {asked.sample:.0%} of the traces recorded, against none"
    )
    took: dict[str, list[float]] = {"untraced": [], "traced": []}
    with collector() as url:
        contenders: dict[str, dict[str, Any]] = {
            "untraced": {},
            "traced": {"trace_url": url, "trace_sample": asked.sample},
        }
        for number in range(asked.rounds or (7 if asked.full else 3)):
            for name in sorted(contenders, reverse=bool(number % 2)):  # neither is always the first
                size = (asked.messages, asked.keys, asked.slots, asked.lead_s)
                took[name].append(spent_ms(*size, **contenders[name]))
                report.say(f"    {name} {took[name][-1]:.4f} ms a message")
    middle = {name: median(each) for name, each in took.items()}
    report.figure("ms_per_message", middle["traced"])
    report.figure(
        "vs_untraced", middle["untraced"] / middle["traced"] if middle["traced"] else math.nan, "≥ 0.95"
    )
    report.end(
        ["opentelemetry-sdk"],
        durability="SQLite, as nodes have it by themselves",
        messages=asked.messages,
        keys=asked.keys,
        nodes=NODES,
        slots_per_node=asked.slots,
        sample=asked.sample,
        ms_per_message={name: [round(each, 4) for each in some] for name, some in took.items()},
    )
