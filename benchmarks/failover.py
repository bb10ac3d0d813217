"""How long a stream stands still when its node is killed, and when it is moved on purpose.

Three nodes own sixty live streams, each fed ten messages a second. Again and again one node is killed with
SIGKILL while it owns twenty; its place is taken by a fresh one, and twenty streams are moved there under
traffic. The nodes have no supervisor: they find the death out by themselves.

- crash: from the kill to the stream's next commit.
- handover: the longest time from sending to commit of any message of a moved stream, from just before the
  move until after it. Undisturbed messages take ``undisturbed_p50_ms``.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from statistics import median

import msgspec

from benchmarks.cluster import Cluster, LoggedProcess, cluster
from benchmarks.report import Report, Unmeasurable, percentile
from holdfast.common.protocol import Done, Move
from holdfast.ports.peer import Peer

STREAM = "live"
NODES = 3
OWNED = 20
PACE_S = 0.1
TIMEOUT_S = 30.0
SETTLE_S = 1.0
"""Traffic between disturbances, so that each starts from calm."""

CALM_S = 3.0
"""Traffic before the first disturbance that counts as undisturbed. As long passes before it, while streams
open."""


class Traffic:
    """Paced messages of every stream, and when each was sent (wall time)."""

    def __init__(self, nodes: Cluster, keys: list[str]) -> None:
        self._nodes = nodes
        self._keys = keys
        self._ending = False
        self.sent_at: dict[tuple[str, int], float] = {}
        self.count = 0

    async def run(self) -> None:
        """Send one message a stream every ``PACE_S``, spread over the pace, until stopped."""
        clock, due_at = self._nodes.services.clock, self._nodes.services.clock.monotonic()
        groups = [self._keys[start::NODES] for start in range(NODES)]
        while not self._ending:
            for group in groups:
                now = clock.wall()
                self.sent_at.update({(key, self.count): now for key in group})
                await self._nodes.send(
                    STREAM, (b'{"key":"%s","n":%d}' % (k.encode(), self.count) for k in group)
                )
                due_at += PACE_S / NODES
                await asyncio.sleep(max(0.0, due_at - clock.monotonic()))
            self.count += 1

    def end(self) -> None:
        """Send no more once this round is sent."""
        self._ending = True


class Drill:
    """The repeated disturbance, and what was done when."""

    def __init__(self, nodes: Cluster, peer: Peer) -> None:
        self._nodes = nodes
        self._peer = peer
        self._started = NODES
        self.kills: list[tuple[float, list[str]]] = []
        self.moves: list[tuple[float, float, list[str]]] = []

    async def owned(self, node: LoggedProcess) -> list[str]:
        """Full keys that a node has claimed."""
        return [claim.key for claim in await self._nodes.services.coordinator().claims(node.member)]

    async def kill(self, node: LoggedProcess) -> None:
        """Kill a node and wait until its streams are claimed by others."""
        keys = await self.owned(node)
        self.kills.append((self._nodes.services.clock.wall(), keys))
        node.kill()
        self._nodes.nodes.remove(node)
        await node.process.wait()
        await self._owned_in_all(None, NODES * OWNED)

    async def replace(self) -> LoggedProcess:
        """Start a fresh node, and move streams to it until it owns ``OWNED``."""
        self._started += 1
        node = await self._nodes.start(f"n{self._started}")
        await node.ready()
        await asyncio.sleep(SETTLE_S)
        donors = {other.member: other for other in self._nodes.nodes if other is not node}
        spare = {member: (await self.owned(other))[OWNED:] for member, other in donors.items()}
        begun_at = self._nodes.services.clock.wall()
        keys = [(member, key) for member, many in spare.items() for key in many][:OWNED]
        await asyncio.gather(*(self._move(donors[member], key, node.member) for member, key in keys))
        await self._owned_in_all(node.member, len(keys))
        ended_at = self._nodes.services.clock.wall()
        self.moves.append((begun_at, ended_at, [key for _, key in keys]))
        return node

    async def _owned_in_all(self, member: str | None, count: int) -> None:
        """Wait until a member, or all together, have claimed so many streams."""
        coordinator = self._nodes.services.coordinator()
        async with asyncio.timeout(TIMEOUT_S):
            while len(await coordinator.claims(member)) < count:  # noqa: ASYNC110 - other processes' doing
                await asyncio.sleep(0.01)

    async def _move(self, owner: LoggedProcess, key: str, target: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                reply = await self._peer.call(owner.address, Move(owner.member, STREAM, key, target), 10.0)
                if isinstance(reply, Done) and reply.ok:
                    return
                await asyncio.sleep(0.05)  # just being opened: ask again


class History:
    """Every commit, by stream, with its time; loss and disorder counted."""

    def __init__(self, sent: Traffic) -> None:
        self._sent = sent
        self.commits: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.out_of_order = 0

    async def read(self, nodes: Cluster) -> None:
        """Read the whole results log."""
        async for logged in nodes.results():
            n, count = msgspec.json.decode(logged.result.body)
            known = self.commits[logged.key]
            self.out_of_order += n != len(known) or count != n + 1
            known.append((n, logged.at))

    def lost(self) -> int:
        """Messages sent that have no result."""
        return len(self._sent.sent_at) - sum(
            len({n for n, _ in commits}) for commits in self.commits.values()
        )

    def crash_ms(self, kills: list[tuple[float, list[str]]]) -> list[float]:
        """From each kill to the next commit of each stream that the node owned. Raises Unmeasurable."""
        waits = []
        for killed_at, keys in kills:
            for key in keys:
                later = [at for _, at in self.commits[key] if at > killed_at]
                waits.append(
                    1000 * (min(some(later, f"{key} had no commit after its node was killed")) - killed_at)
                )
        return some(waits, "no node that was killed owned a stream")

    def handover_ms(self, moves: list[tuple[float, float, list[str]]]) -> list[float]:
        """The longest time from sending to commit of any message of each moved stream. Raises
        Unmeasurable."""
        waits = []
        for begun_at, ended_at, keys in moves:
            for key in keys:
                sent = self.latency_ms(key, begun_at - 2 * PACE_S, ended_at + 2 * PACE_S)
                waits.append(max(some(sent, f"{key} was sent nothing while it was moved")))
        return some(waits, "no stream was moved")

    def latency_ms(self, key: str, since: float, until: float) -> list[float]:
        """From sending to commit, of the messages sent in that while."""
        plain = key.partition("/")[2]
        sent = ((n, at, self._sent.sent_at[plain, n]) for n, at in self.commits[key])
        return [1000 * (at - sent_at) for n, at, sent_at in sent if since <= sent_at <= until]


def some(values: list[float], none: str) -> list[float]:
    """The values. Raises Unmeasurable if there are none, with what that means."""
    if not values:
        raise Unmeasurable(
            f"{none}, perhaps because this machine is too busy to send {NODES * OWNED / PACE_S:g} messages a"
            " second; run it where nothing else runs"
        )
    return values


async def measure(report: Report, rounds: int) -> None:
    """The drill, then the figures. Raises Unmeasurable."""
    keys = [f"k{number}" for number in range(NODES * OWNED)]
    async with cluster("benchmarks.apps:live", slots=2) as nodes:
        await nodes.start_all(NODES)
        traffic = Traffic(nodes, keys)
        sending = asyncio.create_task(traffic.run())
        drill = Drill(nodes, nodes.services.peer())
        await asyncio.sleep(2 * CALM_S)
        for _ in range(rounds):
            victim = max(nodes.nodes, key=lambda node: node.name == f"n{drill._started}")
            await drill.kill(victim)
            await asyncio.sleep(SETTLE_S)
            await drill.replace()
            await asyncio.sleep(SETTLE_S)
        traffic.end()
        await sending
        await nodes.drained(STREAM, TIMEOUT_S)
        history = History(traffic)
        await history.read(nodes)
        nodes.kill()
    crash = history.crash_ms(drill.kills)
    handover = history.handover_ms(drill.moves)
    calm_until = drill.kills[0][0] - 2 * PACE_S
    calm = [ms for key in history.commits for ms in history.latency_ms(key, calm_until - CALM_S, calm_until)]
    some(calm, "no stream was sent anything before the first node was killed")
    report.figure("crash_p50_ms", median(crash), "< 1000")
    report.figure("crash_p99_ms", percentile(crash, 99), "< 1000")
    report.figure("handover_p50_ms", median(handover))
    report.figure("handover_p99_ms", percentile(handover, 99), "< 100")
    report.figure("undisturbed_p50_ms", median(calm))
    report.figure("undisturbed_p99_ms", percentile(calm, 99))
    report.figure("lost", history.lost(), "0")
    report.figure("out_of_order", history.out_of_order, "0")
    report.detail |= {"kills": len(drill.kills), "stream_crashes": len(crash), "stream_moves": len(handover)}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks failover", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--rounds", type=int, help="kills and replacements (default 4, with --full 20)")
    asked = parser.parse_args()
    rounds = asked.rounds or (20 if asked.full else 4)
    report = Report("failover")
    report.say(
        f"failover over SQLite: {NODES} nodes,"
        f" {NODES * OWNED} streams at {1 / PACE_S:g} messages/s each;"
        f" {rounds} times a node that owns {OWNED} is killed, and {OWNED} streams move to its successor"
    )
    try:
        asyncio.run(measure(report, rounds))
    except Unmeasurable as error:
        raise SystemExit(f"failover can't be measured: {error}") from None
    report.end(
        rounds=rounds,
        streams=NODES * OWNED,
        pace_s=PACE_S,
        durability="full",
        evidence="peers",
    )
