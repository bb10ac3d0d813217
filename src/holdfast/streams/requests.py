"""Messages that clients send to a node over HTTP, and whose results they wait for.

A request uses the same inbox, sequencer, slot and commit as a delivery of the queue. It differs only in its
acknowledgement, which is the answer. It is answered after the commit, with what was committed.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life, Place
from holdfast.errors import Busy, MembershipLost, NotOwner, OutcomeUnknown, SetAside, TargetAway, Unavailable
from holdfast.ports.coordinator import Claim
from holdfast.ports.state import StateStore
from holdfast.rules.streams.commands import RefuseRequests
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.streams.obstacles import Obstacles
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.waiting_streams import wait_of

BUSY_S = 1.0
"""After how long a client may try again whose stream has a full inbox. It is also the shortest such time if a
request would have to wait too long."""

PATIENCE = 0.25
"""The share of its timeout that a request may wait before it is handled. The rest is a reserve for
failures."""

NO_MEMBER = "this node isn't a member at present"
MODEL_MISSING = "a model that the stream uses does not load on this node at present"
"""The text for clients. The error of the load itself is for operators only."""
STATE_NEWER = "the state of the stream is newer than the handler on this node; another node takes it over"

ANSWERS, ANSWERS_MIN = 64, 16
"""The rate of a node is that of its last answers: the most that count, and the fewest that are needed."""


class RequestAnswer(msgspec.Struct, frozen=True):
    """The answer to a request: the handler's committed result, and whether an earlier request or delivery had
    brought the same message."""

    result: bytes | None
    epoch: int
    duplicate: bool = False


class PendingRequest(msgspec.Struct, eq=False):
    """A request under way. ``over`` is set when it has ended; ``error`` is set if it ended without a
    result."""

    over: asyncio.Event
    held: Held | None = None
    duplicate: bool = False
    error: Exception | None = None


class Pace:
    """The pace at which requests are answered while some wait.

    The longest pause among the last answers doesn't count. It may come from the load of a model or an outage
    of a service, after which the rate is as before."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=ANSWERS)

    def answered(self, now: float) -> None:
        """Note that a request was answered."""
        self._at.append(now)

    def rest(self) -> None:
        """Note that no request waits."""
        self._at.clear()

    @property
    def interval_s(self) -> float:
        """The mean time from one answer to the next, in seconds; 0 if it isn't known."""
        if len(self._at) < ANSWERS_MIN:
            return 0.0
        longest_s = max(later - earlier for earlier, later in pairwise(self._at))
        return (self._at[-1] - self._at[0] - longest_s) / (len(self._at) - 2)


class Requests:
    """The requests on one node, ``max_held`` at once."""

    def __init__(self, host: Host, state: StateStore, owners: OwnerRegistry, obstacles: Obstacles) -> None:
        self._host = host
        self._state = state
        self._owners = owners
        self._obstacles = obstacles
        self._coordinator, self._clock = host.coordinator, host.clock
        self._most = host.limits.max_held
        self._lines: Counter[str] = Counter()
        self.pace = Pace()
        self._number = 0
        self._waiting: dict[int, PendingRequest] = {}
        self._claiming: dict[str, asyncio.Task[Claim]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def process(
        self,
        stream: str,
        key: str,
        place: Place,
        body: bytes,
        attributes: Mapping[str, str],
        timeout_s: float,
    ) -> RequestAnswer:
        """Give a message to the stream's owner here and wait for its result. ``key`` is the full key.

        Raises NotOwner if another node owns the stream; Unavailable; Busy at once if there is no room, or the
        request would have to wait too long; TargetAway if too many effects of the stream wait for a target
        that takes none; SetAside if the stream skipped the message; OutcomeUnknown if
        nothing was committed in time, though it still may be."""
        deadline = self._clock.monotonic() + timeout_s
        self._admit(key, timeout_s)
        self._number += 1
        number = self._number
        receipt = Receipt(f"request {number}", math.inf, stale=True, request=number)
        waiting = self._waiting[number] = PendingRequest(asyncio.Event())
        self._lines[key] += 1
        try:
            await self._offer(stream, key, Held(place, body, dict(attributes), [receipt]), timeout_s)
            if not await self._clock.wait(waiting.over, deadline - self._clock.monotonic()):
                raise OutcomeUnknown(
                    f"{key}: not committed within {timeout_s:g} s, perhaps later; ask again with the same seq"
                    f"{self._why_not(key)}"
                )
        finally:
            del self._waiting[number]
            self._leave(key)
        if waiting.error is not None:
            raise waiting.error
        return await self._answer(key, waiting)

    def _why_not(self, key: str) -> str:
        entry = self._owners.get(key)
        stands = wait_of(entry, self._clock.monotonic()) if entry is not None else None
        if stands is None:
            return ""
        # What an error says about files and services is for operators only.
        return f" (it waits for {stands.text})" if stands.kind == "gap" else f" (it waits: {stands.kind})"

    def _admit(self, key: str, timeout_s: float) -> None:
        """Refuse a request at once if it would wait too long. Streams with a gap are exempt, because the
        missing message must get in."""
        if len(self._waiting) >= self._most:
            raise Busy(f"{key}: {self._most} requests wait on this node already (max_held)", BUSY_S)
        late_s = self.wait_s(key) - PATIENCE * timeout_s
        entry = self._owners.get(key)
        if entry is not None and entry.owner.runs.obstacle:
            is_newer = entry.owner.commits.state_version > entry.spec.handler.version
            raise Unavailable(f"{key}: {STATE_NEWER if is_newer else MODEL_MISSING}")
        if late_s > 0 and entry is not None and not entry.owner.runs.is_gapped:
            raise Busy(f"{key}: too many requests wait before this one", max(BUSY_S, late_s))

    def wait_s(self, key: str) -> float:
        """Estimate how long one more request would wait. The streams with requests are served in turn."""
        ahead = self._lines[key]
        return ahead * len(self._lines) * self.pace.interval_s if ahead else 0.0

    def _leave(self, key: str) -> None:
        self._lines[key] -= 1
        if not self._lines[key]:
            del self._lines[key]
        if not self._lines:
            self.pace.rest()

    async def _answer(self, key: str, waiting: PendingRequest) -> RequestAnswer:
        assert waiting.held is not None
        entry = self._owners.get(key)
        epoch = entry.owner.epoch if entry is not None else 0
        if not waiting.duplicate:
            return RequestAnswer(waiting.held.result, epoch)
        try:
            logged = await self._state.result(key, waiting.held.place.name)
            has_lost = logged is None and entry is not None and await self._has_lost(key, entry.owner)
        except (Unavailable, OutcomeUnknown) as error:  # their texts are for operators only
            raise Unavailable(f"{key}: it is done, but the result can't be read at present") from error
        if has_lost:
            self._owners.poke(key)
            raise Unavailable(f"{key}: the state store has lost what was committed; try again")
        return RequestAnswer(logged.result.body if logged else None, epoch, duplicate=True)

    async def _has_lost(self, key: str, owner: OwnerMachine) -> bool:
        """A handled message has no stored result, either because its handler returned none or because the
        store has lost the owner's last commits. Return True for the latter."""
        known = owner.epoch, owner.commits.number
        stands = await self._state.peek(key)
        return stands is None or (stands.epoch, stands.number) < known

    async def _offer(self, stream: str, key: str, held: Held, timeout_s: float) -> None:
        verdict = self._owners.offer(key, held)
        if verdict == "unknown":
            claim = await self._claim(key, timeout_s)
            if claim.member != self._host.membership.id:
                raise self._not_owner(key, claim.member)
            self._owners.adopt(stream, key, claim)
            verdict = self._owners.offer(key, held)
        if verdict == "full":
            raise Busy(f"{key}: the inbox is full", BUSY_S)
        if verdict != "accepted":
            raise Unavailable(f"{key}: this node may not own the stream any more; try again")

    async def _claim(self, key: str, timeout_s: float) -> Claim:
        """Return the claim on the key, after claiming it if it was free. Calls at the same time share one
        call to the coordinator."""
        if not self._host.membership.alive:
            silent = self._host.membership.stands
            raise Unavailable(
                f"{key}: the coordinator does not answer, and this stream is not known here"
                if silent
                else NO_MEMBER
            )
        asked = self._claiming.get(key)
        if asked is None:
            asked = self._claiming[key] = asyncio.ensure_future(self._ask(key))
            asked.add_done_callback(lambda done: self._claimed(key, done))
        answered = asyncio.Event()
        asked.add_done_callback(lambda _: answered.set())
        if not await self._clock.wait(answered, timeout_s):
            raise Unavailable(f"{key}: the coordinator does not answer in time")
        return asked.result()

    def _claimed(self, key: str, asked: asyncio.Task[Claim]) -> None:
        del self._claiming[key]
        if not asked.cancelled():
            asked.exception()  # mark it as read: its callers may have given up

    async def _ask(self, key: str) -> Claim:
        """Ask the coordinator for the claim. A node that drains, or can't run the stream, claims nothing; it
        only looks up the owner."""
        lacks = key.partition("/")[0] in self._obstacles.streams
        obstacle = "this node is draining" if self._host.draining else MODEL_MISSING if lacks else ""
        try:
            if not obstacle:
                return await self._coordinator.claim(key, self._host.membership.id)
            claim = await self._coordinator.lookup(key)
        except MembershipLost as error:
            raise Unavailable(f"{key}: {NO_MEMBER}") from error
        except (Unavailable, OutcomeUnknown) as error:
            raise Unavailable(f"{key}: the coordinator does not answer") from error
        if claim is None:
            raise Unavailable(f"{key}: {obstacle}")
        return claim

    def _not_owner(self, key: str, member: str, epoch: int = 0) -> NotOwner:
        known = self._host.membership.view.get(member)
        address = known.address if known is not None else ""
        return NotOwner(f"{key} is owned by {member or 'another node'}", member, address, epoch)

    # -- what owners say --------------------------------------------------------------------------------

    def settled(self, key: str, held: Held, duplicate: bool) -> None:
        """A commit covers the message."""
        now = self._clock.monotonic()
        for waiting in self._of(held):
            waiting.held, waiting.duplicate = held, duplicate
            self.pace.answered(now)
            if held.aside and held.life is not Life.DELETED:  # its dead letter was refused
                waiting.error = Unavailable(f"{key}: it can't be set aside at present; send the same again")
            elif held.aside:
                waiting.error = SetAside(f"{key}: {held.aside}")
            waiting.over.set()

    def refused(self, key: str, command: RefuseRequests) -> None:
        """The owner handles no messages while a target is away."""
        text = (
            f"{key}: {command.pending} effects of the stream wait, the longest for"
            f" {_public(command.target)!r}, which takes nothing; send the same again later"
        )
        for waiting in self._asked(command.requests):
            waiting.error = TargetAway(text, max(BUSY_S, command.retry_after_s))
            waiting.over.set()

    def returned(self, key: str, held: Held, target: str, epoch: int) -> None:
        """The owner here gives up the message."""
        for waiting in self._of(held):
            waiting.error = self._not_owner(key, target, epoch)
            waiting.over.set()

    def _of(self, held: Held) -> list[PendingRequest]:
        return self._asked(held.receipts)

    def _asked(self, receipts: Iterable[Receipt]) -> list[PendingRequest]:
        found = (self._waiting.get(receipt.request) for receipt in receipts)
        return [waiting for waiting in found if waiting is not None]


def _public(target: str) -> str:
    """Return a target as clients may see it: of a URL the host alone, for its path may be a secret."""
    if "://" not in target:
        return target
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname or ''}"
