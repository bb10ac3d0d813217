"""A fresh part of ZooKeeper's tree for each test, and coordinators as several processes would have them."""

from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.services.zookeeper import requests, session
from holdfast.services.zookeeper.address import ZooKeeperAddress, parse
from holdfast.services.zookeeper.coordinator import ZooKeeperCoordinator
from holdfast.system.clock import SystemClock
from simulator.servers.zookeeper import ZooKeeperServer

Connect = Callable[..., ZooKeeperCoordinator]
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no failure: what should be answered may take its time."""
    monkeypatch.setattr(session, "CONNECT_S", PATIENCE_S)
    monkeypatch.setattr(session, "CALL_S", PATIENCE_S)
    monkeypatch.setattr(requests, "ANSWER_S", PATIENCE_S)


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer) -> str:
    return zookeeper_server.url


@pytest.fixture
def address(url: str, clock: Clock) -> ZooKeeperAddress:
    return parse(f"{url}/{clock.new_id()}")


@pytest.fixture
async def connect(address: ZooKeeperAddress, clock: Clock) -> AsyncIterator[Connect]:
    """Makes coordinators, each as another process would have it, and closes them after the test."""
    made = []

    def connect(at: ZooKeeperAddress = address, meter: Meter | None = None) -> ZooKeeperCoordinator:
        made.append(ZooKeeperCoordinator(at, clock, meter or Meter()))
        return made[-1]

    yield connect
    for coordinator in made:
        await coordinator.close()


@pytest.fixture
def coordinator(connect: Connect) -> ZooKeeperCoordinator:
    return connect()


@pytest.fixture
def other_coordinator(connect: Connect) -> ZooKeeperCoordinator:
    return connect()
