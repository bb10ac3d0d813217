"""The service that URLs of ZooKeeper open: ``zookeeper://host:2181/chroot``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extend import Coordinator, Opening, Service, extra, named

if TYPE_CHECKING:
    from holdfast.services.zookeeper.address import ZooKeeperAddress


class ZooKeeperService(Service):
    """A coordinator; with ``?stream=NAME`` in the URL, one that keeps the claims of that stream alone."""

    example = "zookeeper://localhost"

    def coordinator(self, opening: Opening) -> Coordinator:
        address = _address(opening)
        with extra("zookeeper", opening.setting):
            from holdfast.services.zookeeper.coordinator import ZooKeeperCoordinator  # noqa: PLC0415
            from holdfast.services.zookeeper.one_stream import OneStream  # noqa: PLC0415
        with named(opening.setting, opening.url):
            coordinator = ZooKeeperCoordinator(address, opening.clock, opening.meter)
            return OneStream(coordinator, address.stream) if address.stream else coordinator

    def only_stream(self, opening: Opening) -> str:
        return _address(opening).stream


def _address(opening: Opening) -> ZooKeeperAddress:
    with extra("zookeeper", opening.setting):
        from holdfast.services.zookeeper.address import parse  # noqa: PLC0415
    with named(opening.setting, opening.url):
        return parse(opening.url)


service = ZooKeeperService()
