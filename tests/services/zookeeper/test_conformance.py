"""The coordinator in ZooKeeper keeps every promise of the port: on one server, and on three."""

import pytest

from holdfast.services.zookeeper.coordinator import ZooKeeperCoordinator
from holdfast.testing.conformance import CoordinatorConformance
from simulator.servers.zookeeper import ZooKeeperEnsemble


class OnZooKeeper(CoordinatorConformance):
    tick_s = 0.4

    @pytest.fixture
    def coordinator(self, coordinator: ZooKeeperCoordinator) -> ZooKeeperCoordinator:
        return coordinator

    @pytest.fixture
    def other_coordinator(self, other_coordinator: ZooKeeperCoordinator) -> ZooKeeperCoordinator:
        return other_coordinator


class TestOneServer(OnZooKeeper):
    pass


@pytest.mark.nightly
class TestThreeServers(OnZooKeeper):
    @pytest.fixture
    def url(self, zookeeper_ensemble: ZooKeeperEnsemble) -> str:
        return zookeeper_ensemble.url
