"""The host, by which one node gives services, limits, background tasks and news to everything that runs on
it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.limits import Limits
from holdfast.cluster.stats import Stats
from holdfast.cluster.timings import Timings
from holdfast.cluster.tracer import Tracer
from holdfast.common.protocol import Done, Reply, Request
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, Coordinator
from holdfast.ports.meter import Meter
from holdfast.ports.peer import Peer

if TYPE_CHECKING:
    from holdfast.cluster.membership import Membership

R = TypeVar("R", bound=Request)


HEARD_MAX = 10_000
"""Of how many claims the last change is remembered, as long as answers may be on their way."""


class News:
    """Changes of members and claims. A kind of work adds a function to each list whose changes it needs.

    Attributes:
        on_left: called with the id of each membership that has ended.
        on_lost: called when this node has lost its membership and tries to join again.
        on_claim: called with each claim that has changed.
        on_missed: called when some changes of claims may not have been seen.
    """

    def __init__(self) -> None:
        self.on_left: list[Callable[[str], None]] = []
        self.on_lost: list[Callable[[], None]] = []
        self.on_claim: list[Callable[[Claim], None]] = []
        self.on_missed: list[Callable[[], None]] = []
        self._heard: dict[str, int] = {}

    def left(self, member: str) -> None:
        """Report that a membership has ended."""
        for tell in self.on_left:
            tell(member)

    def lost(self) -> None:
        """Report that this node has lost its membership."""
        self._heard.clear()  # a coordinator that lost its data begins all versions anew
        for tell in self.on_lost:
            tell()

    def claimed(self, claim: Claim) -> None:
        """Report a claim that has changed."""
        self._heard.pop(claim.key, None)
        self._heard[claim.key] = claim.version
        if len(self._heard) > HEARD_MAX:
            del self._heard[next(iter(self._heard))]
        for tell in self.on_claim:
            tell(claim)

    def missed(self) -> None:
        """Report that some changes of claims may not have been seen."""
        self._heard.clear()
        for tell in self.on_missed:
            tell()

    def overtook(self, answer: Claim) -> bool:
        """Return True if the claim has changed since the coordinator gave this answer: a report of the change
        may come first."""
        return self._heard.get(answer.key, 0) > answer.version


class Inquiries:
    """Answers requests of other nodes. A kind of work adds a function for each kind of request that it
    answers."""

    def __init__(self) -> None:
        self._answers: dict[type, Callable[[Any], Awaitable[Reply]]] = {}
        self._lasting: set[type] = set()

    def add(
        self, kind: type[R], answer: Callable[[R], Awaitable[Reply]], *, outlives_membership: bool = False
    ) -> None:
        """Add the function that answers requests of a kind. With ``outlives_membership``, it also answers
        requests that name an earlier membership of this node."""
        self._answers[kind] = answer
        if outlives_membership:
            self._lasting.add(kind)

    def outlives_membership(self, request: Request) -> bool:
        """Return True if a request is answered under any membership that this node has had."""
        return type(request) in self._lasting

    async def answer(self, request: Request) -> Reply:
        """Answer a request. The reply says so if no function answers requests of this kind."""
        answer = self._answers.get(type(request))
        if answer is None:
            return Done(ok=False, text=f"nothing here answers a {type(request).__name__}")
        return await answer(request)


class Host:
    """The host of a node's parts, which gives them services, limits, clock, background tasks, counts and log.
    It is made before the parts, and completed when the node starts.

    Attributes:
        machine: the shares of processors and of memory in use.
        tracer: makes spans; None where traces are off.
        told_to_drain: an event that is set when an operator has asked the node to drain and end.
        crashed: a future with the error that ended the node, if one did.
        news: reports changes of members and claims.
        inquiries: answers the requests of other nodes.
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
        tracer: Tracer | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.peer = peer
        self.clock = clock
        self.limits = limits
        self.log = log
        self.name = name
        self.meter = meter or Meter()
        self.machine = machine
        self.tracer = tracer
        self.told_to_drain = asyncio.Event()
        self.stats = Stats()
        self.timings = Timings()
        self.crashed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = Tasks(self.crash)
        self.news = News()
        self.inquiries = Inquiries()
        self.draining = False
        self.membership: Membership

    def crash(self, error: BaseException) -> None:
        """End the node, after a failure that can't be repaired while it runs."""
        if not self.crashed.done():
            self.crashed.set_result(error)
