"""Keyed, ordered, stateful messages that send one effect each: Restate beside Holdfast's ``effects``.

A message comes in by HTTP, as Restate takes them. It is handled in the order of its key, adds to the state of
the key, and sends one message to an object of the same key, which counts. The clock runs from the
first request to the moment when the counts say that all have come: nothing there holds messages back until
all are sent.

The server of Restate and its SDK are in a folder of their own, made by

    npm install --prefix FOLDER @restatedev/restate-server
    python -m venv FOLDER/venv && FOLDER/venv/bin/pip install restate-sdk hypercorn

Run as ``python -m benchmarks.restate --place FOLDER``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.cluster import ROOT
from benchmarks.report import Report

ADMIN = "http://127.0.0.1:9070"
INGRESS = "http://127.0.0.1:8080"
SERVICE_PORT = 9080
PROCESSES = 2
"""How many processes run handlers, as many as Holdfast has nodes in ``effects``."""

PATIENCE_S = 60.0
LOOK_S = 0.02


@contextlib.contextmanager
def running(place: Path) -> Iterator[None]:
    """Restate's server, with nothing in it, and the services."""
    (server,) = place.glob("node_modules/@restatedev/restate-server-linux-*/bin/restate-server")
    environment = os.environ | {"RESTATE_DISABLE_TELEMETRY": "true"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for command in (
            [server, "--base-dir", folder, "--bind-ip", "127.0.0.1", "--listen-mode", "tcp", "--no-logo"],
            [
                *(place / "venv/bin/hypercorn", "--workers", str(PROCESSES)),
                *("--bind", f"127.0.0.1:{SERVICE_PORT}", "benchmarks.peers.restate_app:app"),
            ],
        ):
            child = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(child.wait)
            stack.callback(child.terminate)
        yield


async def register(session: aiohttp.ClientSession) -> None:
    """Tell the server of the services, once both are there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            told = {"uri": f"http://127.0.0.1:{SERVICE_PORT}"}
            async with session.post(f"{ADMIN}/deployments", json=told) as response:
                if response.ok:
                    return
        if time.monotonic() > deadline:
            raise TimeoutError("Restate's server does not take the services")
        await asyncio.sleep(0.2)


async def rate(session: aiohttp.ClientSession, name: str, messages: int, keys: int, lanes: int) -> float:
    """Messages a second, until all effects have come."""
    began = time.monotonic()

    async def send(lane: int) -> None:
        for number in range(lane, messages, lanes):
            url = f"{INGRESS}/teller/{name}-{number % keys}/tell/send"
            async with session.post(url, json=number) as response:
                response.raise_for_status()

    async def count(key: int) -> int:
        url = f"{INGRESS}/sink/{name}-{key}/count"
        async with session.post(url, skip_auto_headers=("Content-Type",)) as response:
            response.raise_for_status()
            return int(await response.text())

    await asyncio.gather(*(send(lane) for lane in range(lanes)))
    while sum(await asyncio.gather(*(count(key) for key in range(keys)))) < messages:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    return messages / (time.monotonic() - began)


async def measure(messages: int, keys: int, lanes: int, rounds: int) -> list[float]:
    """The rates of all rounds, after one that warms."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await register(session)
        await rate(session, "warm", messages // 10, keys, lanes)
        return [await rate(session, f"round{n}", messages, keys, lanes) for n in range(rounds)]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.restate", description=__doc__)
    parser.add_argument("--place", type=Path, required=True, help="where Restate's server and SDK are")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=64, help="requests under way at once")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    asked = parser.parse_args()
    report = Report("restate")
    with running(asked.place.resolve()):
        rates = asyncio.run(measure(asked.messages, asked.keys, asked.lanes, asked.rounds))
    for found in rates:
        report.say(f"    restate {found:,.0f}/s")
    report.figure("restate_messages_per_s", median(rates))
    report.end(
        messages=asked.messages,
        keys=asked.keys,
        lanes=asked.lanes,
        processes=PROCESSES,
        rates=rates,
        durability="Restate's defaults: one node with its log and its store on the local disk",
    )


if __name__ == "__main__":
    main()
