"""What one node gives to everything that runs on it: services, limits, background tasks, and news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.cluster.limits import Limits
from holdfast.cluster.service import Tasks
from holdfast.cluster.stats import Stats
from holdfast.common.protocol import Done, Reply, Request
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, Coordinator
from holdfast.ports.meter import Meter
from holdfast.ports.peer import Peer

if TYPE_CHECKING:
    from holdfast.cluster.membership import Membership

R = TypeVar("R", bound=Request)


class News:
    """What a node hears of members and claims. A kind of work adds itself to what it wants to be told.

    Attributes:
        on_left: told the id of each membership that has ended.
        on_lost: told when this node's own membership was lost; another one is being sought.
        on_claim: told every change of a key's claim.
        on_missed: told when changes of claims may have gone by unseen.
    """

    def __init__(self) -> None:
        self.on_left: list[Callable[[str], None]] = []
        self.on_lost: list[Callable[[], None]] = []
        self.on_claim: list[Callable[[Claim], None]] = []
        self.on_missed: list[Callable[[], None]] = []

    def left(self, member: str) -> None:
        """Tell that a membership has ended."""
        for tell in self.on_left:
            tell(member)

    def lost(self) -> None:
        """Tell that this node's own membership was lost."""
        for tell in self.on_lost:
            tell()

    def claimed(self, claim: Claim) -> None:
        """Tell of a claim that has changed."""
        for tell in self.on_claim:
            tell(claim)

    def missed(self) -> None:
        """Tell that changes of claims may have gone by unseen."""
        for tell in self.on_missed:
            tell()


class Inquiries:
    """Requests of other nodes, each answered by the kind of work that has added itself for it."""

    def __init__(self) -> None:
        self._answers: dict[type, Callable[[Any], Awaitable[Reply]]] = {}
        self._lasting: set[type] = set()

    def add(
        self, kind: type[R], answer: Callable[[R], Awaitable[Reply]], *, outlives_membership: bool = False
    ) -> None:
        """Have requests of a kind answered. ``outlives_membership``: also those that name an earlier
        membership of this node."""
        self._answers[kind] = answer
        if outlives_membership:
            self._lasting.add(kind)

    def outlives_membership(self, request: Request) -> bool:
        """True if a request is good under any membership that this node has had."""
        return type(request) in self._lasting

    async def answer(self, request: Request) -> Reply:
        """Answer a request, or say that nothing here does."""
        answer = self._answers.get(type(request))
        if answer is None:
            return Done(ok=False, text=f"nothing here answers a {type(request).__name__}")
        return await answer(request)


class Host:
    """What a node gives to its parts. It is made before them, and filled when the node starts.

    Attributes:
        machine: tells the shares of processors and of memory in use.
        told_to_drain: set when an operator wants the node to end.
        crashed: has the error that ended the node, if any did.
        news: tells of members and claims.
        inquiries: the requests of other nodes that are answered here.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        peer: Peer,
        clock: Clock,
        limits: Limits,
        log: Any,
        name: str,
        meter: Meter | None = None,
        machine: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        self.coordinator = coordinator
        self.peer = peer
        self.clock = clock
        self.limits = limits
        self.log = log
        self.name = name
        self.meter = meter or Meter()
        self.machine = machine
        self.told_to_drain = asyncio.Event()
        self.stats = Stats()
        self.crashed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = Tasks(self.crash)
        self.news = News()
        self.inquiries = Inquiries()
        self.draining = False
        self.membership: Membership

    def crash(self, error: BaseException) -> None:
        """End the node: something here failed that nobody can mend while it runs."""
        if not self.crashed.done():
            self.crashed.set_result(error)
