"""What operators ask nodes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common.protocol import Busiest, Done, LookAtTask, Reply, Request, RunningTasks, UnknownMember
from holdfast.config.settings import Config
from holdfast.errors import OperationRefused
from holdfast.operate.activity import activity
from holdfast.operate.tasks import look
from holdfast.ports.coordinator import Member
from holdfast.ports.peer import Peer
from holdfast.rules.streams.activity import FIGURES
from holdfast.rules.tasks.task import StartAttempt
from holdfast.tasks.discovery import Directory, NodeEntry, announced
from holdfast.wiring.services import Services

APP, TYPE = "reports", "report.publish"


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with Services(Config(url=f"sqlite:///{tmp_path}/holdfast.db")) as made:
        yield made


async def test_a_running_task_is_looked_at_where_its_member_is_and_not_where_its_name_is(
    services: Services,
) -> None:
    async def answer(request: Request) -> Reply:
        assert isinstance(request, LookAtTask)
        told = b'{"stacks":null,"ran_s":1,"quiet_s":1,"progress":0,"note":""}'
        return Done(text=told.decode()) if request.to == "first" else UnknownMember()

    address = await services.peer().serve(answer)
    await services.task_store(APP).start([StartAttempt("one", TYPE, "first", "node", 3, 30.0)])
    directory = Directory(services.registry(), APP, services.clock)

    async def announce(*members: str) -> None:
        for member in members:
            entry = NodeEntry("node", address, (TYPE,))
            await directory.change(lambda listing: announced(listing, member, entry, members, {}))  # noqa: B023

    await announce("second")
    with pytest.raises(OperationRefused, match=r"node 'node', where .* began, isn't there any more"):
        await look(services, APP, "one")
    await announce("second", "first")
    assert (await look(services, APP, "one")).ran_s == 1.0


async def test_who_asks_again_and_again_makes_no_more_connections(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    async def answer(request: Request) -> Reply:
        assert isinstance(request, Busiest | RunningTasks)
        asked.append(request)
        return Done(ok=False, text="it runs no such work")

    address = await services.peer().serve(answer)
    await services.coordinator().join(Member("m", "node", address), 30.0)
    made: list[Peer] = []
    make = services.peer

    def note(*args: Any, **kwargs: Any) -> Peer:
        made.append(make(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(services, "peer", note)
    for _ in range(3):
        found = await activity(services, FIGURES[0], 10)
        assert (found.streams, found.tasks, found.troubles) == ([], [], [])
    assert len(asked) == 6
    assert len(made) <= 1
