"""What the tests on Redis share."""

import contextlib
import zlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.coordinator import RedisCoordinator
from holdfast.services.redis.queue import RedisQueue, bell_of
from holdfast.system.clock import SystemClock

Connect = Callable[..., RedisConnection]
Coordinate = Callable[..., RedisCoordinator]
MakeQueue = Callable[..., RedisQueue]


@contextlib.contextmanager
def impatient(connection: RedisConnection, timeout_s: float = 0.1) -> Iterator[None]:
    """Have a connection that was used already wait no longer than this for answers, for a while: before and
    after, a busy machine may take its time."""
    lanes = list(connection.lanes.values())
    patience_s = [lane.timeout_s for lane in lanes]
    for lane in lanes:
        lane.timeout_s = timeout_s
    yield
    for lane, lane_s in zip(lanes, patience_s, strict=True):
        lane.timeout_s = lane_s


def shard_of(key: str, count: int) -> int:
    """The shard of a stream or a task, the same in every version and language."""
    return zlib.crc32(key.encode()) % count


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def connect(meter: Meter) -> AsyncIterator[Connect]:
    """Makes connections to URLs; they end with the test."""
    made = []

    def connect(url: str, timeout_s: float = 5.0) -> RedisConnection:
        made.append(RedisConnection(parse(url), meter, timeout_s=timeout_s))
        return made[-1]

    yield connect
    for connection in made:
        await connection.close()


@pytest.fixture
async def coordinate(connect: Connect, clock: Clock) -> AsyncIterator[Coordinate]:
    """Makes coordinators at URLs; they end with the test."""
    made = []

    def coordinate(url: str, timeout_s: float = 5.0) -> RedisCoordinator:
        made.append(RedisCoordinator(connect(url, timeout_s), clock))
        return made[-1]

    yield coordinate
    for coordinator in made:
        await coordinator.close()


@pytest.fixture
async def make_queue(connect: Connect) -> AsyncIterator[MakeQueue]:
    """Makes queues at URLs, each as another process has it; they end with the test."""
    bells = []

    def make(url: str, name: str = "q", max_bytes: int = 100_000) -> RedisQueue:
        connection, clock = connect(url), SystemClock()
        bells.append(bell_of(connection, clock))
        return RedisQueue(connection, name, clock, bells[-1], max_bytes=max_bytes)

    yield make
    for bell in bells:
        await bell.close()
