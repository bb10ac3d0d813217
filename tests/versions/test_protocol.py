"""The protocol between nodes: what a version to come speaks with nodes of the last release."""

import pytest

from holdfast.common.protocol import Done, Probe
from holdfast.common.protocol_versions import VERSIONS_OF_0_2, ProtocolVersions
from holdfast.errors import NobodyThere, Unavailable
from holdfast.services.http.peer import HttpPeer
from holdfast.system.clock import SystemClock
from tests.nodes.conftest import MakeCluster
from tests.versions import released

PATIENCE_S = 30.0


@pytest.mark.nightly
async def test_a_node_of_the_last_release_is_called_in_its_version_or_refuses(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(module="acting_app")
    await cluster.start("old", python=released.python())
    [old] = await cluster.coordinator.members()
    assert old.load.speaks == VERSIONS_OF_0_2
    both, later = (
        HttpPeer(SystemClock(), speaks=speaks) for speaks in (ProtocolVersions(1, 2), ProtocolVersions(2, 3))
    )
    try:
        for _ in range(2):
            assert isinstance(await both.call(old.address, Probe(old.id), PATIENCE_S), Done)
        with pytest.raises(Unavailable, match="speaks peer protocol 1, this process 2-3") as refused:
            await later.call(old.address, Probe(old.id), PATIENCE_S)
        assert not isinstance(refused.value, NobodyThere)
    finally:
        await both.close()
        await later.close()
