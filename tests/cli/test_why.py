"""``holdfast why`` where little is known of a stream: it says what is known, and nothing that isn't so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.ports.coordinator import Load, Member
from holdfast.rules.streams.ledger import Commit, RunLog, Timer
from holdfast.wiring.services import Services
from tests.command_line import Arrange, Holdfast

KEY = "detect/cam-1"
AWAY = "http://127.0.0.1:1"


def arranged(arrange: Arrange[Any], *members: Member, **commit: Any) -> None:
    """Commit something of the stream, and have these members join; the first one foreign owns it."""

    async def work(services: Services) -> None:
        now = await services.state().open(KEY, 0, "m")
        await services.state().commit(Commit(KEY, now.epoch, 1, "c", **{"log": None} | commit))
        for member in members:
            await services.coordinator().join(member, 60.0)
            if member.foreign:
                await services.coordinator().claim(KEY, member.id)

    arrange(work)


def test_of_another_program_s_stream_no_time_and_no_load_is_told(
    holdfast: Holdfast, arrange: Arrange[Any]
) -> None:
    arranged(arrange, Member("t", "theirs", AWAY, Load(1, 1), foreign=True))
    said = holdfast("why", KEY).out.splitlines()
    assert said == [
        f"{KEY} is on theirs, epoch 1; it has no place yet",
        "- another program owns it, and isn't asked: its messages go back to the queue",
    ]
    (why,) = holdfast("why", KEY, "--json").lines
    assert (why["node"], why["here_s"]) == ("theirs", None)


def test_a_stream_whose_first_message_is_parked_has_no_place_yet(
    holdfast: Holdfast, arrange: Arrange[Any]
) -> None:
    arranged(arrange, log=RunLog(0, 0, -1), parked="no such camera")
    assert "it has no place yet" in holdfast("why", KEY).out
    (why,) = holdfast("why", KEY, "--json").lines
    assert why["seq"] is None
    (stream,) = holdfast("status", "--json").lines[0]["streams"]
    assert stream["seq"] is None


def test_a_timer_that_is_far_off_is_told_in_years(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    arranged(arrange, timers=(Timer("late", 2**32 + 1e9, b"", "1.1"),), due=2**32 + 1e9)
    assert "its next timer is 'late', due in 1" in (said := holdfast("why", KEY).out)
    assert " years\n" in said
    (line,) = (line for line in holdfast("status").out.splitlines() if "cam-1" in line)
    assert "timer in 1" in line
    assert " years" in line


@pytest.mark.parametrize(
    "load, reason",
    [
        (Load(room=0), "no node has room for a new stream: full are a (streams_per_slot_max)"),
        (
            Load(lacks=("detect",)),
            "a model of stream 'detect' does not load on a, and no other node takes it",
        ),
        (Load(draining=True), "all nodes that run stream 'detect' are draining: a"),
    ],
    ids=["full", "lacks", "draining"],
)
def test_of_a_stream_that_no_node_would_take_it_is_said_why(
    holdfast: Holdfast, arrange: Arrange[Any], load: Load, reason: str
) -> None:
    arranged(arrange, Member("a", "a", AWAY, msgspec.structs.replace(load, serves=("detect",))))
    assert f"- no node owns it, and none would take it: {reason}" in holdfast("why", KEY).out
