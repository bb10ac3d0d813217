"""How many messages a second nodes handle, from what they count since they began."""

from types import SimpleNamespace
from typing import Any, cast

from holdfast.config.settings import Config
from holdfast.console.overview import Overview, TaskTotals
from holdfast.errors import Unavailable
from holdfast.operate.survey import QueueStatus
from holdfast.ports.coordinator import Load, Member
from tests.cluster.fakes import Log


class Nodes:
    """An overview of nodes that have handled so many messages, with all that it stands on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self.members: dict[str, Member] = {}
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.overview = Overview(
            cast("Any", SimpleNamespace(config=Config(url="memory:"))),
            cast("Any", SimpleNamespace(clock=clock, log=Log(), peer=None)),
            cast("Any", self),
            cast("Any", SimpleNamespace(reported=lambda reports: None)),
            cast("Any", None),
            cast("Any", SimpleNamespace(publish=lambda *topics: None)),
            cast("Any", None),
        )
        self.overview.knows_queues = True

    async def refresh(self) -> None:
        """Stands for the view, which asks the coordinator."""
        if self.away:
            raise Unavailable("the coordinator is away")

    async def rate(self, at: float, **handled: int) -> float | None:
        """The rate after a look at these nodes."""
        self.now = at
        # Foreign ones aren't asked what waits there.
        self.members = {
            name: Member(name, name, "", Load(handled=count), foreign=True) for name, count in handled.items()
        }
        await self.overview.look_once_at_nodes()
        self.overview.take_sample()
        return self.overview.samples[-1].handled_per_s


async def test_what_a_node_has_handled_before_it_came_is_in_no_rate() -> None:
    nodes = Nodes()
    assert await nodes.rate(0.0, a=1_000) is None
    assert await nodes.rate(10.0, a=1_100) == 10.0
    nodes.overview.take_sample()
    assert nodes.overview.samples[-1].handled_per_s == 10.0, "there was no other look"
    assert await nodes.rate(20.0, a=1_200, b=5_000_000) == 10.0
    assert await nodes.rate(30.0, a=1_200, b=5_000_300) == 30.0
    assert await nodes.rate(40.0, rejoined=5_000_900) is None, "nobody was there before"
    assert await nodes.rate(50.0, rejoined=5_001_000) == 10.0
    assert await nodes.rate(60.0) == 0.0, "without nodes nothing is handled"


async def test_while_the_coordinator_is_away_there_is_no_rate_and_the_look_grows_old() -> None:
    nodes = Nodes()
    await nodes.rate(0.0, a=100)
    assert await nodes.rate(10.0, a=200) == 10.0
    nodes.away = True
    assert await nodes.rate(20.0, a=200) is None
    assert await nodes.rate(30.0, a=200) is None
    assert nodes.overview.age_s == 20.0
    nodes.away = False
    assert await nodes.rate(40.0, a=800) == 20.0, "of all the time since the last look"
    assert nodes.overview.age_s == 0.0


def test_briefs_that_no_program_reads_are_no_messages_that_wait() -> None:
    overview = Nodes().overview
    overview.tasks = [TaskTotals("reports", {})]
    overview.queues = {
        name: QueueStatus(name, ready=ready, delayed=1)
        for name, ready in (("reports-publish", 4), ("reports-briefs", 20), ("other-briefs", 300))
    }
    assert (overview.waiting, overview.briefs) == (5 + 301, 21)
