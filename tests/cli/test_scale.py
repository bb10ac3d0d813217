"""``holdfast scale``."""

from typing import Any

from holdfast.rules.cluster.placement import STREAMS, Load, Member, WorkLoad
from holdfast.wiring.services import Services

OVER = ("--over-s", "0.05")


def living(arrange: Any, *apps: str, busy: float) -> None:
    """One node for each app, with so many of its four slots busy."""

    async def join(services: Services) -> None:
        for app in apps:
            work = WorkLoad(STREAMS, 4, busy, 0, (f"{app}-frames",))
            load = Load(streams=8, slots=4, app=app, works=(work,))
            await services.coordinator().join(Member(app, app, "http://127.0.0.1:1", load), 600.0)

    arrange(join)


def test_the_number_alone_is_printed_for_programs(holdfast: Any, arrange: Any) -> None:
    living(arrange, "cameras", busy=4.0)
    assert holdfast("scale", "--print", *OVER).out == "2\n"


def test_the_number_is_told_with_its_reason(holdfast: Any, arrange: Any) -> None:
    living(arrange, "cameras", busy=2.0)
    (told,) = holdfast("scale", "--json", *OVER).lines
    assert told == {"app": "cameras", "wanted": 1, "nodes": 1, "reason": "streams: 2.0 of 4 slots busy"}
    assert "2.0 of 4 slots busy" in holdfast("scale", *OVER).out


def test_a_number_alone_is_of_one_app(holdfast: Any, arrange: Any) -> None:
    living(arrange, "cameras", "doors", busy=1.0)
    refused = holdfast("scale", "--print", *OVER)
    assert refused.code == 2
    assert "cameras, doors" in refused.err
    assert holdfast("scale", "doors", "--print", *OVER).out == "1\n"


def test_an_app_that_no_node_runs_wants_one(holdfast: Any, database: None) -> None:
    assert holdfast("scale", "cameras", "--print", *OVER).out == "1\n"
