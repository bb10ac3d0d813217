"""Members that belong to another program are shown, and never called."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cli import exits
from holdfast.common.acts import Effect, effect_id
from holdfast.ports.coordinator import Load, Member
from holdfast.rules.streams.ledger import Commit
from holdfast.wiring.services import Services
from tests.command_line import Arrange, Holdfast

KEY = "detect/cam-1"


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """A port of another program, at which connections would wait to be accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.mark.parametrize(
    "command, code, said",
    [
        (("why", KEY), exits.OK, "theirs"),
        (("move", KEY, "--to", "ours"), exits.FAILED, "belongs to another program, and is not called"),
        (("status",), exits.OK, "theirs"),
        (("doctor", "-s", "slot_memory_mb=1", "-s", "slots=1"), exits.UNREACHABLE, "is not called"),
    ],
    ids=["why", "move", "status", "doctor"],
)
def test_a_member_of_another_program_is_not_called(
    holdfast: Holdfast,
    arrange: Arrange[Any],
    door: socket.socket,
    command: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    address = f"http://127.0.0.1:{door.getsockname()[1]}"

    async def join(services: Services) -> None:
        await services.coordinator().join(Member("t", "theirs", address, Load(1, 1), foreign=True), 60.0)
        await services.coordinator().join(Member("o", "ours", "http://127.0.0.1:1", Load(0, 1)), 60.0)
        claim = await services.coordinator().claim(KEY, "t")
        now = await services.state().open(KEY, 0, "t")
        effect = Effect(1, 0, effect_id(KEY, now.epoch, 1, 0), "alerts", "k", b"{}", "0:1", 5.0)
        await services.state().commit(Commit(KEY, now.epoch, 1, "acts", None, effects=(effect,), due=5.0))
        assert claim.member == "t"

    arrange(join)
    outcome = holdfast(*command)
    assert (outcome.code, said in outcome.out + outcome.err) == (code, True), outcome
    with pytest.raises(BlockingIOError):
        door.accept()
