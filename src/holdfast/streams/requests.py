"""Messages that clients bring themselves, and whose results they wait for.

A request takes the same inbox, sequencer, slot and commit as a delivery of the queue; it differs in its
acknowledgement, which is the answer. It is answered after the commit, with what the commit says.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Place
from holdfast.errors import Busy, NotOwner, OutcomeUnknown, SetAside, Unavailable
from holdfast.ports.coordinator import Claim
from holdfast.ports.state import StateStore
from holdfast.streams.owners import Owners
from holdfast.streams.rules.owner import Owner

BUSY_S = 1.0
"""When a client whose stream's inbox is full may come again, or the soonest where its turn would be late."""

PATIENCE = 0.25
"""The share of its time that a request may have to wait for its turn: the rest is for what may go wrong."""

MODEL_MISSING = "a model that the stream uses does not load on this node at present"
"""What a client is told; what the load said is for operators."""

ANSWERS, ANSWERS_MIN = 64, 16
"""The pace of a node is that of its last answers; it is known from so many on."""


class RequestAnswer(msgspec.Struct, frozen=True):
    """What a request gets: the handler's result as it was committed, and whether an earlier request or
    delivery had brought the same message."""

    result: bytes | None
    epoch: int
    duplicate: bool = False


class PendingRequest(msgspec.Struct, eq=False):
    """One request under way: ``over`` is set once it ended, ``error`` if that was without a result."""

    over: asyncio.Event
    held: Held | None = None
    duplicate: bool = False
    error: Exception | None = None


class Pace:
    """How fast requests are answered while some wait.

    The longest pause among the last answers doesn't count: it may be a model that was loaded, or a service
    that was away, after which all goes on as before."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=ANSWERS)

    def answered(self, now: float) -> None:
        """One more has its answer."""
        self._at.append(now)

    def rest(self) -> None:
        """Nobody waits."""
        self._at.clear()

    @property
    def interval_s(self) -> float:
        """The time from one answer to the next; 0 if nobody can tell."""
        if len(self._at) < ANSWERS_MIN:
            return 0.0
        longest_s = max(later - earlier for earlier, later in pairwise(self._at))
        return (self._at[-1] - self._at[0] - longest_s) / (len(self._at) - 2)


class Requests:
    """The requests on one node, ``max_held`` at once."""

    def __init__(self, host: Host, state: StateStore, owners: Owners) -> None:
        self._host = host
        self._state = state
        self._owners = owners
        self._coordinator, self._clock = host.coordinator, host.clock
        self._most = host.limits.max_held
        self._lines: Counter[str] = Counter()
        self._pace = Pace()
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
        """Bring a message to the stream's owner here and wait for its result. ``key`` is the full key.

        Raises NotOwner if the owner is another node, Unavailable; Busy at once if there is no room, or its
        turn would come late; SetAside if the stream passed over it; OutcomeUnknown if nothing was committed
        in time, though it may be still."""
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
        stands = entry.owner.standstill() if entry is not None else None
        if stands is None:
            return ""
        # What an error says of files and services is for operators.
        return f" (it waits for {stands.text})" if stands.kind == "gap" else f" (it waits: {stands.kind})"

    def _admit(self, key: str, timeout_s: float) -> None:
        """Who would wait in vain is told at once. Behind a gap nobody is: the missing message must get in."""
        if len(self._waiting) >= self._most:
            raise Busy(f"{key}: {self._most} requests wait on this node already (max_held)", BUSY_S)
        late_s = self._wait_s(key) - PATIENCE * timeout_s
        entry = self._owners.get(key)
        if entry is not None and entry.owner.obstacle:
            raise Unavailable(f"{key}: {MODEL_MISSING}")
        if late_s > 0 and entry is not None and not entry.owner.gapped:
            raise Busy(f"{key}: too many requests wait before this one", max(BUSY_S, late_s))

    def _wait_s(self, key: str) -> float:
        """How long one more would wait, as it looks: streams that have requests take turns."""
        ahead = self._lines[key]
        return ahead * len(self._lines) * self._pace.interval_s if ahead else 0.0

    def _leave(self, key: str) -> None:
        self._lines[key] -= 1
        if not self._lines[key]:
            del self._lines[key]
        if not self._lines:
            self._pace.rest()

    async def _answer(self, key: str, waiting: PendingRequest) -> RequestAnswer:
        assert waiting.held is not None
        entry = self._owners.get(key)
        epoch = entry.owner.epoch if entry is not None else 0
        if not waiting.duplicate:
            return RequestAnswer(waiting.held.result, epoch)
        try:
            logged = await self._state.result(key, waiting.held.place.name)
            has_lost = logged is None and entry is not None and await self._has_lost(key, entry.owner)
        except (Unavailable, OutcomeUnknown) as error:  # whose text is for operators
            raise Unavailable(f"{key}: it is done, but the result can't be read at present") from error
        if has_lost:
            self._owners.poke(key)
            raise Unavailable(f"{key}: the state store has lost what was committed; try again")
        return RequestAnswer(logged.result.body if logged else None, epoch, duplicate=True)

    async def _has_lost(self, key: str, owner: Owner) -> bool:
        """Nothing is kept for a message that is done: because it had no result, or because the store has lost
        its owner's last commits. True for the latter."""
        known = owner.epoch, owner.number
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
        """Whose the key is; ours if it was nobody's. However many ask, the coordinator is asked once."""
        if not self._host.membership.alive:
            silent = self._host.membership.stands
            raise Unavailable(
                f"{key}: the coordinator does not answer, and this stream is not known here"
                if silent
                else "this node is no member at present"
            )
        asked = self._claiming.get(key)
        if asked is None:
            asked = self._claiming[key] = asyncio.ensure_future(self._ask(key))
            asked.add_done_callback(lambda done: self._claimed(key, done))
        told = asyncio.Event()
        asked.add_done_callback(lambda _: told.set())
        if not await self._clock.wait(told, timeout_s):
            raise Unavailable(f"{key}: the coordinator does not answer in time")
        return asked.result()

    def _claimed(self, key: str, asked: asyncio.Task[Claim]) -> None:
        del self._claiming[key]
        if not asked.cancelled():
            asked.exception()  # nobody may be waiting any more

    async def _ask(self, key: str) -> Claim:
        """A draining node takes no new streams, nor does one that can't run them; but it tells where those
        are that others have."""
        lacks = key.partition("/")[0] in self._owners.obstacles.streams
        obstacle = "this node is draining" if self._host.draining else MODEL_MISSING if lacks else ""
        try:
            if not obstacle:
                return await self._coordinator.claim(key, self._host.membership.id)
            claim = await self._coordinator.lookup(key)
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
            self._pace.answered(now)
            if held.aside:
                waiting.error = SetAside(f"{key}: {held.aside}")
            waiting.over.set()

    def returned(self, key: str, held: Held, target: str, epoch: int) -> None:
        """The owner here lets the message go."""
        for waiting in self._of(held):
            waiting.error = self._not_owner(key, target, epoch)
            waiting.over.set()

    def _of(self, held: Held) -> list[PendingRequest]:
        found = (self._waiting.get(receipt.request) for receipt in held.receipts)
        return [waiting for waiting in found if waiting is not None]
