"""What a handler does to its slot's process, no other slot's streams feel."""

import signal

import psutil
import pytest

from holdfast.ports.queue import DeadLetter
from tests.nodes.acting_app import MAX_TRIES, TIMEOUT_S
from tests.nodes.cluster import Cluster
from tests.nodes.conftest import MakeCluster

QUIET, WILD = "quiet", "wild"
ROUNDS = 20


async def apart(cluster: Cluster) -> tuple[int, int]:
    """Two streams in two slots of one node; returns the slots' process ids."""
    for key in (QUIET, WILD):
        await cluster.send(key)
        await cluster.until_count(key, 1)
    quiet, wild = cluster.bodies(QUIET)[0]["slot"], cluster.bodies(WILD)[0]["slot"]
    assert quiet != wild
    return quiet, wild


async def misbehave(cluster: Cluster, deed: str) -> DeadLetter:
    """Let one message of the wild stream do its worst while the quiet one goes on; returns its letter."""
    before = {(letter.key, int(letter.seq)) for letter in await cluster.letters()}
    seq = await cluster.send(WILD, deed)
    await cluster.send(WILD)
    for _ in range(ROUNDS):  # one by one: each is answered by the very slot
        await cluster.send(QUIET)
        await cluster.until_count(QUIET, cluster.sent[QUIET])
    await cluster.check({*before, (WILD, seq)}, alive=["a"])
    (letter,) = [letter for letter in await cluster.letters() if int(letter.seq) == seq]
    return letter


@pytest.mark.slow
@pytest.mark.parametrize(
    "deed, reason, detail",
    [
        ("crash", "died of SIGSEGV", "in crash"),
        ("leave", "exited with code 3", ""),
        ("hang", f"no progress for {TIMEOUT_S:g} s (timeout_s)", "in hang"),
    ],
)
async def test_a_slot_s_death_is_its_own(
    make_cluster: MakeCluster, deed: str, reason: str, detail: str
) -> None:
    cluster = make_cluster(slots=2)
    await cluster.start("a")
    quiet, wild = await apart(cluster)
    letter = await misbehave(cluster, deed)
    assert reason in letter.reason
    assert detail in letter.detail
    assert {body["slot"] for body in cluster.bodies(QUIET)} == {quiet}
    assert cluster.bodies(WILD)[-1]["slot"] != wild
    deaths = await cluster.nodes["a"].metric("holdfast_slot_deaths_total")
    assert MAX_TRIES <= deaths <= MAX_TRIES + 1, "one more if it ran together with the next"
    assert await cluster.nodes["a"].metric("holdfast_memberships_total") == 1


SURVIVED = {
    "fail": "ValueError: it must fail",
    "exit_politely": "SystemExit: so long",
    "hoard": "MemoryError",
    "junk": "the result, of type object, can't be stored as JSON",
}


@pytest.mark.nightly
async def test_an_error_that_a_slot_survives_is_in_the_dead_letter(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(slots=2)
    await cluster.start("a")
    quiet, wild = await apart(cluster)
    for deed, reason in SURVIVED.items():
        letter = await misbehave(cluster, deed)
        assert letter.reason.startswith(reason)
        if deed != "junk":
            assert f"in {deed}" in letter.detail, "the traceback begins where user code does"
        assert {body["slot"] for body in cluster.bodies(QUIET)} == {quiet}
        assert cluster.bodies(WILD)[-1]["slot"] == wild


@pytest.mark.nightly
async def test_a_slot_killed_from_outside_costs_no_message(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(slots=2)
    await cluster.start("a")
    _, wild = await apart(cluster)
    async with cluster.load([QUIET, WILD], 100):
        await cluster.until_count(WILD, 30)
        psutil.Process(wild).send_signal(signal.SIGKILL)
    await cluster.check(alive=["a"])
    assert cluster.bodies(WILD)[-1]["slot"] != wild
