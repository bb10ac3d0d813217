"""The dispatcher of one outbox on one node: turn after turn, as fast as things happen and no faster.

While one turn is written, answers gather for the next; so the busier it is, the more is closed and sent with
one commit. There are no rounds: a device that is silent holds up nobody, for each turn takes what is due.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.device import (
    Accepted,
    Command,
    CommandRefused,
    Connect,
    Connected,
    DeviceAnswer,
    Devices,
    Disconnected,
    Event,
    Lost,
    Seen,
)
from holdfast.devices.ports.outbox import KnownDevice, OutboxStore
from holdfast.devices.rules.device_queue import CommandState, Correlation, shard_of
from holdfast.devices.rules.device_turn import Heard, Sending, Turn, Turned, Unsent
from holdfast.devices.rules.group_rate import BURST_S, GroupRate, RolloutRates
from holdfast.devices.rules.presence import Presence
from holdfast.devices.traces import CommandSpans
from holdfast.errors import Fenced, HoldfastError, InvalidMessage, OutcomeUnknown, TooLarge, Unavailable
from holdfast.extend.products import Host
from holdfast.extend.tools import Backoff, Limiter, Once, Rate, kind_and_place, redact, run_user_code
from holdfast.extend.tracing import trace_of, valid_traceparent

if TYPE_CHECKING:
    from holdfast.extend.tracing import OpenSpan

LOOK_S = 2.0
"""How long signals alone are trusted; then a turn looks for itself."""

BUSY_S = 0.01
"""Only when nothing has happened for so long is the database asked when something is due."""

SWEEP_S = 5.0
"""How often the queues are looked through for what expires in them."""

RETURN_S = 1.0
"""After the broker was away, a shard begins to send again at some moment within this time."""

TURN_MIN, TURN_MAX = 50, 1_000
"""Rows of each kind that one turn takes; fewer where turns last longer than ``TURN_S``: others wait for what
a transaction locks, and what it marked as published is to be sent in time."""

TURN_S = 0.1

CHECKS_S = 60.0
"""For so long after times may have got wrong, sweeps see to what is due."""

JUMP_S = 0.5
"""What the wall clock may come to differ by unnoticed."""

FORGOTTEN_S = 2.0
"""What was marked as published within so long a database that crashed may have forgotten."""

UNCONFIRMED_S = 60.0
"""A broker that says nothing of a command for so long, and is there all the same, never will."""

LAST_TURN_S = 5.0
"""For so long at most a shard that goes waits for a turn that writes what its devices have said."""

SENT_MAX = 100_000
"""Tries whose time is remembered, to see how long devices take to answer."""

GROUPLESS_MAX = 100
"""Kinds of failures of an outbox's ``group`` that are logged once."""

NOBODY_THERE = "the broker knows of nobody who gets it"
CONNECTION_LOST = "the connection to the broker ended first"
NEVER_CONFIRMED = "the broker never confirmed it"

SLOW_DECAY = 0.9
"""What one answer leaves of how long its device was seen to take, where it came sooner."""


class DispatcherCounts(msgspec.Struct):
    """Counts of what a dispatcher did since it began. ``strays`` are answers that fitted no command, ``late``
    those to a try that another had followed; ``strangers`` came from devices that never had a command.
    ``ends`` counts what was closed by its state."""

    turns: int = 0
    sent: int = 0
    repeated: int = 0
    closed: int = 0
    strays: int = 0
    late: int = 0
    strangers: int = 0
    ends: dict[CommandState, int] = {}


class Unconfirmed(NamedTuple):
    """A try that the broker may not have yet. ``at`` is when the turn that marked it as published began."""

    at: float
    sending: Sending
    span: OpenSpan | None = None


class LatelyWritten(NamedTuple):
    """The writes of a turn that a database may forget if it crashes soon after: tries that were marked as
    published, tries whose answers are waited for from then on, and shards whose tries were given their
    time."""

    at: float
    sent: Sequence[Sending]
    still_out: Sequence[Sending]
    fresh: Collection[int]


class Unwritten(NamedTuple):
    """Answers that were heard too late to be written before their shard went, and tries that were still
    out then."""

    heard: list[Heard]
    still_out: list[Sending]


class Shard:
    """A shard in this node's hands. ``in_doubt``: a turn of unknown outcome may still happen under its
    epoch."""

    def __init__(self, number: int, epoch: int, member: str) -> None:
        self.number = number
        self.epoch = epoch
        self.member = member
        self.devices: Devices
        self.connected = False
        self.away = ""
        """Why it isn't connected, once that is known."""
        self.in_doubt = False
        self.opening = asyncio.Lock()
        """Is held while the shard is opened anew: its epoch is known here later than it stands."""
        self.was_connected = False
        self.sends_from = 0.0
        self.unconfirmed: dict[str, Unconfirmed] = {}
        """What was marked as published, the oldest first, and the broker may not have."""
        self.lost: list[Sending] = []
        """What an earlier connection may still have brought, until the next one stands."""
        self.reading: asyncio.Task[Any] | None = None

    def confirmed(self, name: str, error: str | None = None) -> Unconfirmed | None:
        """Take out a try that the broker has, or with ``error`` hasn't; None if it was out already."""
        if (found := self.unconfirmed.pop(name, None)) is not None and found.span is not None:
            found.span.end(error)
        return found


class Dispatcher:
    """Serves the shards that it is given, while the node's membership lives. ``on_lost`` is told shards that
    turned out to be another's."""

    def __init__(
        self,
        outbox: Outbox,
        store: OutboxStore,
        connect: Connect,
        host: Host,
        *,
        on_lost: Callable[[int], None],
    ) -> None:
        spec = outbox.spec
        self._outbox = outbox
        self._spec = spec
        self._store = store
        self._connect = connect
        self._host = host
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._on_lost = on_lost
        self._offset_s = host.clock.wall() - host.clock.monotonic()
        self._shift_s = 0.0
        self._checks_until = 0.0
        self._presence = Presence(spec.presence)
        self._groups = GroupRate(self._group_of, spec.group_rates) if spec.group else None
        self._rollouts = RolloutRates(0.0)
        self._limiter = Limiter(None)
        self._spans = None if host.tracer is None else CommandSpans(host.tracer, spec.name)
        self._at_once = TURN_MAX
        self._in_flight_max = spec.in_flight_max
        self._turn_max = TURN_MAX
        self._sends_from = 0.0
        self._once = Once()
        self._groupless = Once(GROUPLESS_MAX)
        """Apart from ``_once``: a turn asks for groups in the store's thread."""
        self._backoff = Backoff(0.1, 5.0)
        self._listening: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turned = asyncio.Event()
        """Is set once the next turn to begin has ended; then another one takes its place."""
        self._heard: list[Heard] = []
        self._unwritten: dict[int, Unwritten] = {}
        """By shard that went: it is written if the shard comes back."""
        self._closing: dict[int, asyncio.Task[Any] | None] = {}
        self._unsent: list[Unsent] = []
        self._marked: tuple[Turned, float] | None = None
        self._lately: deque[LatelyWritten] = deque()
        self._still_out: list[Sending] = []
        self._fresh: dict[int, None] = {}
        self._back: dict[str, None] = {}
        self._disconnected_s = 0.0
        self._disconnected_since: float | None = host.clock.monotonic()
        self._devices: set[str] = set()
        """Those that have had commands. What others say is not listened to: anybody may invent devices."""
        self._sent_at: dict[Correlation, float] = {}
        self._slow: dict[str, float] = {}
        """How long answers have taken, of devices that answer later than they would be waited for."""
        self._paused = False
        self._sweeps_at = 0.0
        self._recount = False
        self.on_first_shard: Callable[[int | None], None] = lambda _: None
        self.on_closed: Callable[[], None] = lambda: None
        self.in_flight = 0
        self.counts = DispatcherCounts()
        self.shards: dict[int, Shard] = {}

    @property
    def away(self) -> int:
        """The number of devices that are known to be away."""
        return len(self._presence.away)

    # --- which shards

    async def own(self, number: int, epoch: int, member: str = "") -> None:
        """Begin to serve a shard that was opened with ``epoch`` for ``member``. Raises Unavailable if the
        store doesn't tell what it knows of its devices."""
        shard = Shard(number, epoch, member)
        known = await self._store.known(self._spec.name, number)

        async def still_ours() -> bool:
            try:
                async with shard.opening:
                    return (await self._store.epochs(self._spec.name)).get(number) == shard.epoch
            except OutcomeUnknown as error:
                raise Unavailable(str(error)) from error

        shard.devices = self._connect(self._spec.identity(number), still_ours)
        shard.devices.watch(each.device for each in known)
        self._devices |= {each.device for each in known}
        if not self.shards:
            self._offset_s = self._clock.wall() - self._clock.monotonic()
        self.shards[number] = shard
        self._note_connections()
        self._remember(known)
        self._take_share()
        if (unwritten := self._unwritten.pop(number, None)) is not None:
            self._heard += unwritten.heard
            self._still_out += unwritten.still_out
        self._recount = True
        self._checks_until = self._clock.monotonic() + CHECKS_S
        if number == 0:
            self.on_first_shard(epoch)
        await shard.devices.start()
        shard.reading = self._tasks.repeat(partial(self._read, shard), self._clock, self._log)

    async def disown(self, number: int) -> None:
        """Send nothing more to the devices of a shard; returns once no turn names it any more. What they have
        said by now is written first, if the database and the membership allow it."""
        if (shard := self.shards.get(number)) is not None:
            await self._end_connection(shard)
            if self._heard and self._host.membership.alive:
                turned = self._turned
                self._wake.set()
                await self._clock.wait(turned, LAST_TURN_S)
            self._drop(number)
        if (closing := self._closing.pop(number, None)) is not None:
            await closing

    def _give_up(self, number: int) -> None:
        """A shard is another's, or may be. Its connection ends at once: what devices say from now on is kept
        by the broker, for the next owner."""
        if number in self.shards:
            self._drop(number)
            self._on_lost(number)

    def _drop(self, number: int) -> None:
        if (shard := self.shards.pop(number, None)) is not None:
            if number == 0:
                self.on_first_shard(None)
            self._recount = True
            self._note_connections()
            self._take_share()
            self._closing[number] = self._tasks.spawn(self._close(shard))

    async def _close(self, shard: Shard) -> None:
        await self._end_connection(shard)
        await self._idle.wait()
        number, shards = shard.number, self._spec.shards
        unwritten = self._unwritten[number] = Unwritten([], [])
        heard, self._heard = self._heard, []
        for each in heard:
            (unwritten.heard if shard_of(each.device, shards) == number else self._heard).append(each)
        still_out, self._still_out = self._still_out, []
        for sending in still_out:
            (unwritten.still_out if sending.shard == number else self._still_out).append(sending)
        for device in {*self._devices, *self._presence.known()}:
            if shard_of(device, shards) == number:
                self._presence.forget(device)
                self._devices.discard(device)
                self._slow.pop(device, None)
        for name in list(shard.unconfirmed):
            shard.confirmed(name, CONNECTION_LOST)

    async def _end_connection(self, shard: Shard) -> None:
        """Send and hear nothing more; what was heard by then is taken."""
        shard.connected = False
        if shard.reading is not None:
            shard.reading.cancel()
        await shard.devices.close()
        for event in await shard.devices.events():
            if isinstance(event, DeviceAnswer):
                self._answer(shard, event)

    # --- turns

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._listening is None:
            self._listening = self._tasks.repeat(self._listen, self._clock, self._log)
        failures = 0
        while True:
            if not await self._clock.wait(self._wake, BUSY_S):
                await self._clock.wait(self._wake, await self._pause_s())
            self._wake.clear()
            turned, self._turned = self._turned, asyncio.Event()
            if not self.shards or not self._host.membership.alive:
                self._marked = None  # nothing new is begun; the next owner sends it again
                turned.set()
                continue
            self._idle.clear()
            try:
                await self._reopen()
                await self._turn()
                failures = 0
            except HoldfastError as error:
                failures += 1
                self._recount = True
                if failures == 1:
                    for lately in self._lately:
                        self._still_out += [*lately.sent, *lately.still_out]
                        self._fresh |= dict.fromkeys(lately.fresh)
                self._log.warning(
                    "the outbox's database doesn't answer", outbox=self._spec.name, error=str(error)
                )
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
                self._wake.set()
            finally:
                self._idle.set()
                turned.set()

    async def _reopen(self) -> None:
        """A turn of unknown outcome may still happen, but not after the next one: new epochs refuse it."""
        in_doubt = [shard for shard in self.shards.values() if shard.in_doubt]
        standing = await self._store.epochs(self._spec.name) if in_doubt else {}
        for shard in in_doubt:
            number, expect = shard.number, shard.epoch
            try:
                if standing.get(number) != expect:
                    raise Fenced(f"epoch {standing.get(number)} stands", standing.get(number, 0))
                async with shard.opening:
                    shard.epoch = await self._store.open(self._spec.name, number, expect, shard.member)
            except Fenced as error:
                self._log.warning("gives up a shard", outbox=self._spec.name, shard=number, error=str(error))
                self._give_up(number)
            else:
                shard.in_doubt = False
                if number == 0 and self.shards.get(number) is shard:
                    self.on_first_shard(shard.epoch)

    async def _pause_s(self) -> float:
        """Return how many seconds to wait for the next thing to happen; 0 if something is due already."""
        if not self.shards or not self._host.membership.alive:
            return LOOK_S
        now, monotonic = self._clock.wall(), self._clock.monotonic()
        returns = [shard.sends_from - monotonic for shard in self.shards.values() if shard.connected]
        waits_s = [LOOK_S, *(wait_s for wait_s in returns if wait_s > 0)]
        # Else what is due has to wait for answers, or for an operator.
        if self.in_flight < self._in_flight_max and not self._paused:
            try:
                due = await self._store.next_due(self._spec.name, self._sendable(monotonic))
            except HoldfastError:
                due = None  # the next turn finds out
            if due is not None:
                waits_s.append(max(due - now, self._sends_from - monotonic, 0.0))
        return min(waits_s)

    async def _turn(self) -> None:
        spec, monotonic, now = self._spec, self._clock.monotonic(), self._clock.wall()
        self._notice_jump(now, monotonic)
        while self._recount:  # a shard may come while it counts
            self._recount = False
            self.in_flight = await self._store.in_flight(spec.name, [*self.shards])
        sweep = monotonic >= self._sweeps_at
        if sweep:
            self._sweeps_at = monotonic + SWEEP_S
            self._presence.settle(self._listened_s())
            self._give_up_confirmations(monotonic)
        heard, still_out = self._writable()
        unsent, self._unsent = self._unsent, []
        back, self._back = self._back, {}
        fresh, self._fresh = self._fresh, {}
        turn = Turn(
            outbox=spec.name,
            grants={shard.number: shard.epoch for shard in self.shards.values()},
            sendable=self._sendable(monotonic),
            now=now,
            patience=spec.patience,
            heard=heard,
            unsent=unsent,
            room=self._in_flight_max - self.in_flight,
            rate=self._at_once if monotonic >= self._sends_from else 0,
            limit=self._turn_max,
            away=self._presence.away,
            back=list(back),
            shards=spec.shards,
            seen=self._seen(now) if sweep else {},
            shift_s=self._shift_s,
            still_out=still_out,
            fresh=list(fresh),
            check_dues=sweep and monotonic < self._checks_until,
            sweep=sweep,
            groups=self._groups,
            rollouts=self._rollouts,
            brief=bool(spec.briefs),
            slow=dict(self._slow),
        )
        turning = asyncio.ensure_future(self._store.turn(turn, self._outbox.results))
        self._send_marked()
        try:
            turned = await turning
        except HoldfastError as error:
            # Answers may be told again: those that were taken will fit nothing any more. What wasn't sent may
            # not, where the turn may have happened: it would give back two tries.
            self._heard = heard + self._heard
            if isinstance(error, OutcomeUnknown):
                self._shift_s = 0.0  # it may have been done
                self._checks_until = self._clock.monotonic() + CHECKS_S
                for number in turn.grants:
                    if number in self.shards:
                        self.shards[number].in_doubt = True
            else:
                self._unsent = unsent + self._unsent
            self._back = back | self._back
            self._still_out = still_out + self._still_out
            self._fresh = fresh | self._fresh
            self._presence.put_back(turn.seen)
            raise
        self._shift_s = 0.0
        if self._clock.monotonic() - monotonic > TURN_S:
            self._turn_max = max(TURN_MIN, self._turn_max // 2)
        else:
            self._turn_max = min(TURN_MAX, self._turn_max + TURN_MIN)
        self._took(turn, turned)
        self._marked = turned, monotonic
        if turned.sendings or still_out or fresh:
            self._lately.append(LatelyWritten(monotonic, turned.sendings, still_out, fresh))
        while self._lately and monotonic - self._lately[0].at > FORGOTTEN_S:
            self._lately.popleft()
        if not self._wake.is_set():
            self._send_marked()  # else while the next turn is written

    def _writable(self) -> tuple[list[Heard], list[Sending]]:
        """Take what was heard, and what is still out, of the shards that are served. Of a shard that goes
        just now nothing fits any more; it is kept until the shard comes back."""
        shards = self._spec.shards
        heard, self._heard = self._heard, []
        still_out, self._still_out = self._still_out, []
        served: list[Heard] = []
        for each in heard:
            (served if shard_of(each.device, shards) in self.shards else self._heard).append(each)
        sent: list[Sending] = []
        for sending in still_out:
            (sent if sending.shard in self.shards else self._still_out).append(sending)
        return served, sent

    def _took(self, turn: Turn, turned: Turned) -> None:
        counts = self.counts
        counts.turns += 1
        counts.sent += len(turned.sendings)
        counts.repeated += turned.repeats
        counts.closed += len(turned.closed)
        counts.strays += len(turned.strays)
        counts.late += turned.late
        if turned.paused != self._paused:
            self._paused = turned.paused
            said = "is paused: nothing is sent" if turned.paused else "is resumed"
            self._log.warning(f"the outbox {said}", outbox=self._spec.name)
        for entry in turned.closed:
            counts.ends[entry.state] = counts.ends.get(entry.state, 0) + 1
            if self._spans is not None:
                self._spans.closed(entry)
        self.in_flight = max(0, self.in_flight + len(turned.sendings) - turned.repeats - turned.freed)
        if turned.moved and self._once.first("shards"):
            self._log.warning(
                "a program adds commands for another number of shards; they are moved to their own",
                outbox=self._spec.name,
                device=turned.moved[0],
                fix=f"declare shards={self._spec.shards} in that program, and update its Holdfast",
            )
        for stray in turned.strays:
            self._odd(stray.device, str(stray.correlation), "it fits no command that is out")
        if turned.lost:  # nothing of theirs was written
            shards = self._spec.shards
            self._heard += [each for each in turn.heard if shard_of(each.device, shards) in turned.lost]
            self._still_out += [sending for sending in turn.still_out if sending.shard in turned.lost]
        for number in turned.lost:
            self._give_up(number)
        if turned.closed:
            self.on_closed()
        if turned.more:
            self._wake.set()

    def _send_marked(self) -> None:
        """Send what the last turn has marked; what is late by now would come too soon before it is sent
        again."""
        if self._marked is None:
            return
        (turned, began_at), self._marked = self._marked, None
        if turned.sendings and self._spec.rate:
            monotonic = self._clock.monotonic()
            self._sends_from = monotonic + self._limiter.spend("", len(turned.sendings), monotonic)
        for sending in turned.sendings:
            self._send_one(sending, began_at)

    def _send_one(self, sending: Sending, began_at: float) -> None:
        correlation, shard = sending.correlation, self.shards.get(sending.shard)
        self._devices.add(sending.device)
        self._presence.expect(sending.device, self._listened_s())
        if correlation.tries > 1:
            self._presence.silent(sending.device)
        span = None if self._spans is None else self._spans.publish(sending)
        command = Command(
            sending.device,
            str(correlation),
            sending.body,
            self._spec.patience.retry_s,
            valid_traceparent(sending.traceparent) if span is None else span.traceparent,
        )
        monotonic = self._clock.monotonic()
        try:
            if shard is None or monotonic - began_at > self._spec.patience.late_s:
                raise Unavailable("it is too late")
            shard.devices.publish(command)
            shard.unconfirmed[command.id] = Unconfirmed(began_at, sending, span)
            self._sent_at[correlation] = monotonic
            if len(self._sent_at) > SENT_MAX:
                del self._sent_at[next(iter(self._sent_at))]
        except (Unavailable, TooLarge, InvalidMessage) as error:
            reason = _storable(redact(str(error)))
            if span is not None:
                span.end(reason)
            if isinstance(error, Unavailable):
                self._unsent.append(Unsent(correlation, spent=sending.counts))
            else:
                self._heard.append(Heard(sending.device, correlation, ok=False, reason=reason))
            self._wake.set()

    # --- what is heard

    async def _listen(self) -> None:
        """Wake at additions."""
        while True:
            try:
                await self._store.arrived(self._spec.name, LOOK_S)
            except HoldfastError as error:
                self._log.warning("can't listen for commands", outbox=self._spec.name, error=str(error))
                await self._clock.sleep(LOOK_S)
            self._wake.set()

    async def _read(self, shard: Shard) -> None:
        """Take what a shard's devices say."""
        while events := await shard.devices.events():
            for event in events:
                self._take(shard, event)
            # The broker's word for a command alone needs no turn, which the answer would have to wait for.
            if self._heard or self._unsent or self._back or self._still_out or not shard.connected:
                self._wake.set()

    def _take(self, shard: Shard, event: Event) -> None:
        match event:
            case DeviceAnswer():
                self._answer(shard, event)
            case Seen():
                self._sign(event.device)
            case Accepted():
                pending = shard.confirmed(event.id, NOBODY_THERE if event.nobody else None)
                if event.nobody:
                    self._presence.nobody(event.device)
                    self._not_taken(event.id, pending)
                elif pending and self._clock.monotonic() - pending.at > self._spec.patience.late_s:
                    self._still_out.append(pending.sending)
            case CommandRefused():
                reason = _storable(redact(event.reason))
                pending = shard.confirmed(event.id, reason)
                self._note_refusal(event.device, reason, pending)
                self._presence.not_asked(event.device)
                if event.final:
                    correlation = Correlation.parse(event.id)
                    self._heard.append(Heard(event.device, correlation, ok=False, reason=reason))
                else:
                    self._not_taken(event.id, pending, refusal=reason if event.counts else "")
            case Lost():
                if (pending := shard.confirmed(event.id, CONNECTION_LOST)) is not None:
                    shard.lost.append(pending.sending)
                if not event.suspect:  # which uses up a try, or it would end connection after connection
                    self._not_taken(event.id, pending, certain=False)
            case Connected():
                self._note_limit(shard.devices.max_payload)
                shard.connected, shard.away = True, ""
                self._wake.set()
                self._note_connections()
                self._still_out += shard.lost
                shard.lost = []
                if not shard.was_connected:
                    self._fresh[shard.number] = None
                else:
                    shard.sends_from = self._clock.monotonic() + RETURN_S * self._clock.random()
                shard.was_connected = True
            case Disconnected():
                shard.connected, shard.away = False, event.reason
                self._note_connections()
                self._log.warning(
                    "disconnected from the broker",
                    outbox=self._spec.name,
                    shard=shard.number,
                    why=event.reason,
                )
                if event.taken:
                    self._give_up(shard.number)

    def _not_taken(
        self, name: str, pending: Unconfirmed | None, *, certain: bool = True, refusal: str = ""
    ) -> None:
        spent = pending is None or pending.sending.counts
        self._unsent.append(Unsent(Correlation.parse(name), certain, spent, refusal))

    def _answer(self, shard: Shard, answer: DeviceAnswer) -> None:
        if shard_of(answer.device, self._spec.shards) != shard.number:
            return  # its own shard hears it too
        was_away = answer.device in self._presence.away
        if not self._sign(answer.device):
            return
        try:
            correlation = Correlation.parse(answer.id)
        except InvalidMessage:
            self._odd(answer.device, answer.id, "nothing was ever sent with this id")
            return
        shard.confirmed(answer.id)  # the broker's word may come later, or not at all
        sent_at = self._sent_at.pop(correlation, None)
        if sent_at is not None and not was_away:
            self._note_time(answer.device, self._clock.monotonic() - sent_at)
        self._heard.append(Heard(answer.device, correlation, answer.payload, answer.ok))

    def _note_time(self, device: str, took_s: float) -> None:
        """Note how long an answer took. A device that answers late, but does, is waited for longer."""
        waited_s = self._spec.patience.interval_s(1, 0.0)
        before_s = self._slow.pop(device, 0.0) * SLOW_DECAY
        # An answer that was on its way for many minutes must not be remembered for as many answers.
        slow_s = max(min(took_s, self._spec.patience.slowest_s), before_s)
        if slow_s <= waited_s:
            return
        self._slow[device] = slow_s
        if took_s > waited_s and self._once.first(("slow", int(math.log2(took_s)))):
            self._log.warning(
                "devices answer later than they are waited for",
                outbox=self._spec.name,
                device=device,
                after_s=round(took_s, 1),
                retry_s=self._spec.patience.retry_s,
                fix="raise retry_s of the outbox's patience above what answers take, or commands go twice",
            )

    def _sign(self, device: str) -> bool:
        """A sign of life. What an earlier dispatcher held for the device goes, too. False for a device that
        never had a command, of which nothing is kept."""
        if device not in self._devices:
            self.counts.strangers += 1
            if self._once.first("strangers"):
                self._log.warning(
                    "a device speaks that never had a command, and perhaps others; it is not listened to",
                    outbox=self._spec.name,
                    device=device,
                )
            return False
        is_new = self._presence.last_seen(device) is None
        if self._presence.seen(device, self._listened_s()) or is_new:
            self._back[device] = None
        return True

    def _note_limit(self, max_payload: int) -> None:
        """A broker may tell of a limit that nobody here knew."""
        if max_payload < self._spec.max_body and self._once.first(("max_payload", max_payload)):
            self._log.warning(
                "the broker takes less than the outbox",
                outbox=self._spec.name,
                max_payload=max_payload,
                max_body=self._spec.max_body,
                fix="lower max_body, so that larger commands are refused where they are added",
            )

    def _note_refusal(self, device: str, reason: str, pending: Unconfirmed | None) -> None:
        if self._once.first(("refused", device)):
            traced = trace_of(pending.span.traceparent) if pending and pending.span else {}
            self._log.warning(
                "the broker takes no command for a device",
                outbox=self._spec.name,
                device=device,
                why=reason,
                **traced,
            )

    def _odd(self, device: str, what: str, why: str) -> None:
        if self._once.first((device, why)):
            self._log.warning("an odd answer", outbox=self._spec.name, device=device, id=what[:60], why=why)

    # --- times

    def _remember(self, known: Iterable[KnownDevice]) -> None:
        """Take over what an earlier dispatcher knew: devices that were away use up no tries now, either."""
        now, listened_s = self._clock.wall(), self._listened_s()
        for each in known:
            if each.away:
                seen_at = None if each.seen_at is None else listened_s - (now - each.seen_at)
                self._presence.was_away(each.device, seen_at)

    def _take_share(self) -> None:
        """Limits hold over all nodes: each has the part of them that it has of the shards."""
        spec, share = self._spec, len(self.shards) / self._spec.shards
        if not share:
            return
        self._rollouts.take_share(share)
        if self._groups is not None:
            self._groups.take_share(share)
        if spec.rate is not None:
            limit = Rate(spec.rate * share, max(1.0, spec.rate * share * BURST_S))
            self._at_once = int(limit.burst)
            self._limiter.change(limit)
        self._in_flight_max = max(1, int(spec.in_flight_max * share))

    def _group_of(self, device: str) -> str | None:
        """The group of a device, which the user's function tells; None if it fails, or the next turn would
        fail the same way, and so on every node."""
        assert self._spec.group is not None
        try:
            group: Any = run_user_code(self._spec.group, device)
        except Exception as error:  # noqa: BLE001 - the function is the user's, and may fail in any way
            # Its text may hold people's data: only what it is, and where.
            self._no_group(device, *kind_and_place(error))
            return None
        if not isinstance(group, str):
            self._no_group(device, f"it returned {type(group).__name__}")
            return None
        return group

    def _no_group(self, device: str, why: str, at: str = "") -> None:
        if self._groupless.first((why, at)):
            self._log.error(
                "group= of the outbox fails for a device, and perhaps others; it has no limit of a group",
                outbox=self._spec.name,
                device=device,
                why=why,
                at=at,
                fix="make the function return a text for every device; it may be one without a rate",
            )

    def _seen(self, now: float) -> dict[str, float | None]:
        listened_s = self._listened_s()
        return {
            device: None if at is None else now - (listened_s - at)
            for device, at in self._presence.news().items()
        }

    def _listened_s(self) -> float:
        """A clock that stands still while the broker is away: then silence says nothing of a device."""
        until = self._clock.monotonic() if self._disconnected_since is None else self._disconnected_since
        return until - self._disconnected_s

    @property
    def troubles(self) -> tuple[str, ...]:
        """The reason why commands are not sent, in words for people."""
        away = Counter(shard.away for shard in self.shards.values() if shard.away)
        return tuple(
            f"{count} of the {len(self.shards)} shards of the outbox {self._spec.name!r} here have no"
            f" connection to their broker: {reason}"
            for reason, count in away.items()
        )

    def _note_connections(self) -> None:
        """A shard has been connected or disconnected."""
        disconnected = not all(shard.connected for shard in self.shards.values())
        if disconnected and self._disconnected_since is None:
            self._disconnected_since = self._clock.monotonic()
        elif not disconnected and self._disconnected_since is not None:
            self._disconnected_s += self._clock.monotonic() - self._disconnected_since
            self._disconnected_since = None

    def _sendable(self, monotonic: float) -> list[int]:
        """Those that are connected, unless the line stands still: what a device hasn't got yet isn't sent
        again."""
        late = monotonic - self._spec.patience.late_s
        return [
            shard.number
            for shard in self.shards.values()
            if shard.connected
            and shard.sends_from <= monotonic
            and all(oldest.at >= late for oldest in islice(shard.unconfirmed.values(), 1))
        ]

    def _give_up_confirmations(self, monotonic: float) -> None:
        """Don't let a confirmation that never comes hold up a shard for good."""
        for shard in self.shards.values():
            old = [name for name, each in shard.unconfirmed.items() if monotonic - each.at > UNCONFIRMED_S]
            given_up = [shard.confirmed(name, NEVER_CONFIRMED) for name in old]
            self._still_out += [each.sending for each in given_up if each is not None]

    def _notice_jump(self, now: float, monotonic: float) -> None:
        """The wall clock was set: times that are stored have to follow."""
        jump_s = now - monotonic - self._offset_s
        self._offset_s += jump_s
        if abs(jump_s) > JUMP_S:
            self._shift_s += jump_s
            self._checks_until = monotonic + CHECKS_S
            share = len(self.shards) / self._spec.shards
            self._rollouts = RolloutRates(share)
            if self._spec.group is not None:
                self._groups = GroupRate(self._group_of, self._spec.group_rates, share)
            self._log.warning("the clock was set", outbox=self._spec.name, by_s=round(jump_s, 1))


def _storable(text: str) -> str:
    """Return a text that every database keeps: a dialect's may hold anything of a message, such as half of a
    character, or NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
