"""The host: the services, limits, background tasks and events of one node, for the parts that run on it."""

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

VERSIONS_MAX = 10_000
"""The number of claims whose last version is remembered, for answers that come late."""


class News:
    """Changes of members and claims. A kind of work adds a function to each list whose changes it needs.

    Attributes:
        on_left: called with the id of each membership that has ended.
        on_lost: called when this node has lost its membership and tries to join again.
        on_claim: called with each claim that has changed.
        on_missed: called when changes of claims may have been missed.
    """

    def __init__(self) -> None:
        self.on_left: list[Callable[[str], None]] = []
        self.on_lost: list[Callable[[], None]] = []
        self.on_claim: list[Callable[[Claim], None]] = []
        self.on_missed: list[Callable[[], None]] = []
        self._versions: dict[str, int] = {}

    def left(self, member: str) -> None:
        """Report that a membership has ended."""
        for notify in self.on_left:
            notify(member)

    def lost(self) -> None:
        """Report that this node has lost its membership."""
        self._versions.clear()  # a coordinator that lost its data starts new versions
        for notify in self.on_lost:
            notify()

    def claimed(self, claim: Claim) -> None:
        """Report a claim that has changed."""
        self._versions.pop(claim.key, None)
        self._versions[claim.key] = claim.version
        if len(self._versions) > VERSIONS_MAX:
            del self._versions[next(iter(self._versions))]
        for notify in self.on_claim:
            notify(claim)

    def missed(self) -> None:
        """Report that changes of claims may have been missed."""
        self._versions.clear()
        for notify in self.on_missed:
            notify()

    def overtook(self, answer: Claim) -> bool:
        """Return whether the claim has changed since the coordinator gave this answer: the report of the
        change may arrive first."""
        return self._versions.get(answer.key, 0) > answer.version


class Inquiries:
    """Answers requests of other nodes. Each kind of work adds functions for its requests."""

    def __init__(self) -> None:
        self._answers: dict[type, Callable[[Any], Awaitable[Reply]]] = {}
        self._lasting: set[type] = set()

    def add(
        self, kind: type[R], answer: Callable[[R], Awaitable[Reply]], *, outlives_membership: bool = False
    ) -> None:
        """Add the function that answers requests of a kind. With ``outlives_membership``, it also answers
        requests for an earlier membership of this node."""
        self._answers[kind] = answer
        if outlives_membership:
            self._lasting.add(kind)

    def outlives_membership(self, request: Request) -> bool:
        """Return whether a request is answered for any earlier membership of this node."""
        return type(request) in self._lasting

    async def answer(self, request: Request) -> Reply:
        """Answer a request; a reply that isn't ok if this node can't."""
        answer = self._answers.get(type(request))
        if answer is None:
            return Done(ok=False, text=f"this node answers no {type(request).__name__}")
        return await answer(request)


class Host:
    """The services, limits, clock, background tasks, counters and log of a node's parts. It is made before
    the parts, and gets its membership from the node.

    Attributes:
        machine: returns the busy share of the processors, and the used share of the memory.
        tracer: makes spans; None if traces are off.
        drain_requested: set when an operator has asked the node to drain and end.
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
        self.drain_requested = asyncio.Event()
        self.stats = Stats()
        self.timings = Timings()
        self.crashed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = Tasks(self.crash)
        self.news = News()
        self.inquiries = Inquiries()
        self.draining = False
        self.membership: Membership

    def crash(self, error: BaseException) -> None:
        """End the node after a failure that needs a restart."""
        if not self.crashed.done():
            self.crashed.set_result(error)
