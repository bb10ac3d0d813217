"""A database that is locked, full or broken: the node says so and what to do, lives, and loses nothing."""

import sqlite3
from pathlib import Path

import pytest

from tests.nodes.cluster import Process, until
from tests.nodes.conftest import MakeCluster


async def complaint(node: Process, text: str) -> dict[str, str]:
    """Wait until the node has logged an error with that text."""

    def said() -> list[dict[str, str]]:
        return [entry for entry in node.events if text in entry.get("error", "")]

    await until(said, text)
    return said()[0]


@pytest.mark.nightly
async def test_a_database_locked_by_another_program_is_waited_for(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    await cluster.start("a")
    await cluster.send("k", count=20)
    await cluster.until_count("k", 20)
    other = sqlite3.connect(cluster.place / "holdfast.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    entry = await complaint(cluster.nodes["a"], "is locked by another program")
    assert "holdfast.db" in entry["error"]
    assert "close what else has it open for writing" in entry["error"]
    other.execute("ROLLBACK")
    other.close()
    await cluster.send("k", count=20)
    await cluster.check(alive=["a"])


@pytest.mark.nightly
async def test_a_full_disk_is_waited_for(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    await cluster.start("a")
    await cluster.send("k", count=20)
    await cluster.until_count("k", 20)
    full = cluster.nodes["a"].place / "disk-full"
    full.touch()
    await cluster.send("k", "bulk", count=20)
    entry = await complaint(cluster.nodes["a"], "the disk is full; make room")
    assert "holdfast.db" in entry["error"]
    assert len(cluster.results["k"]) < 40
    full.unlink()
    await cluster.check(alive=["a"])


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["garbage", "a directory"])
async def test_a_broken_database_is_named_and_left_as_it_is(
    make_cluster: MakeCluster, tmp_path: Path, damage: str
) -> None:
    cluster = make_cluster()
    broken = tmp_path / "broken.db"
    if damage == "garbage":
        broken.write_bytes(b"not a database at all " * 1000)
    else:
        broken.mkdir()
    node = cluster.spawn("a", url=f"sqlite:///{broken}")
    assert await node.ended() != 0
    said = "\n".join(entry["event"] for entry in node.events)
    assert str(broken) in said
    assert "Traceback" not in said
    if damage == "garbage":
        assert "isn't a sound SQLite database" in said
        assert "restore a backup, or move it away to begin again" in said
        assert broken.read_bytes() == b"not a database at all " * 1000
