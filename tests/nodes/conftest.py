"""A cluster for each test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.nodes.cluster import Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
async def make_cluster(tmp_path: Path) -> AsyncIterator[MakeCluster]:
    """Make the services of a cluster; its nodes end with the test."""
    made: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        made.append(Cluster(tmp_path, **settings))
        return made[-1]

    yield make
    for cluster in made:
        await cluster.close()
