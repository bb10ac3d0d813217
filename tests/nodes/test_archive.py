"""Archived streams on nodes that die: what they had committed and not yet written is in the archive."""

import signal
from pathlib import Path

import pytest

from holdfast.errors import InvalidMessage
from holdfast.services.file.objects import FileObjects
from holdfast.streams.archive_reader import ArchiveReader, Hours
from tests.nodes.cluster import STREAM
from tests.nodes.conftest import MakeCluster

KEYS = [f"cam-{i}" for i in range(4)]
BEFORE = 10


def fail(error: InvalidMessage) -> None:
    raise error


@pytest.mark.slow
async def test_what_a_killed_node_had_committed_is_archived(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(app="archived", ttl_s=3.0)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 40):
        await cluster.until(lambda: all(len(cluster.results[key]) >= BEFORE for key in KEYS))
        cluster.nodes["a"].signal(signal.SIGKILL)
        await cluster.nodes["a"].ended()
    await cluster.check(alive=["b"])
    archive = FileObjects(Path(cluster.place) / "archive", makes=False)
    reader = ArchiveReader(archive, STREAM, Hours(), ordered=True, on_broken=fail)
    for key in KEYS:
        [urls] = (await reader.objects(key)).values()
        assert [message.seq async for message in reader.messages(urls)] == list(range(cluster.sent[key]))
    assert [url async for url in archive.urls(STREAM) if url.endswith("again.jsonl")], (
        "it was killed between a commit and its archive"
    )
