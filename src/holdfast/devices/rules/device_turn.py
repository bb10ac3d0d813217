"""One turn of a dispatcher: all events since the last one, in one transaction.

Answers close their commands and free their devices, new commands come to the heads of their devices, due
heads are judged, and commands that may go are marked as published. Commands are sent only after the
transaction: after a crash at any step a command is sent again when its retry interval is over, and none is
forgotten.

The decisions are here. A dispatcher brings a ``TurnRequest``; a store provides ``OutboxRows``, which read
``TurnRows`` and write inside its transaction; ``take_turn`` decides, and returns a ``TurnResult``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Protocol

import msgspec

from holdfast.devices.rules import device_queue as queue
from holdfast.devices.rules.device_queue import (
    Cause,
    CommandState,
    Correlation,
    Head,
    HeadPhase,
    HeadVerdict,
    Patience,
    StoredCommand,
)
from holdfast.devices.rules.group_rate import GroupRate, Pair, RolloutRates

ROUNDS_MAX = 16
"""Commands of one device that a turn closes unsent, one after another; the next turn goes on."""

DOUBLINGS_MAX = 16
"""Times that the pause after a refusal is doubled."""


class CommandAnswer(msgspec.Struct, frozen=True):
    """A device's answer to a try. With a ``reason``: no try can ever reach the device."""

    device: str
    correlation: Correlation
    body: bytes = b""
    ok: bool = True
    reason: str = ""


class Unsent(msgspec.Struct, frozen=True):
    """A try that was marked as published, and that the broker didn't take.

    Attributes:
        certain: it can't have reached the device. Otherwise the retry interval stands.
        spent: it counted against ``max_tries``; False for a probe.
        refusal: why the broker takes no such command; then the try counts.
    """

    correlation: Correlation
    certain: bool = True
    spent: bool = True
    refusal: str = ""


class Arrival(msgspec.Struct, frozen=True):
    """A mark that a device has new commands. ``command`` is the new one if it replaces unsent ones."""

    id: int
    device: str
    lane: int
    shard: int
    command: int = 0
    supersede_key: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    """A mark that scheduled commands of a device are to be cancelled: all with ids below ``below``, and with
    ``supersede_key`` unless it is None; or only ``command`` unless it is 0."""

    id: int
    device: str
    shard: int
    below: int = 0
    supersede_key: str | None = None
    command: int = 0

    def matches(self, entry: StoredCommand) -> bool:
        """Return whether ``entry`` is to be cancelled."""
        if self.command:
            return entry.id == self.command
        keyed = self.supersede_key in (None, entry.supersede_key)
        return entry.device == self.device and entry.id < self.below and keyed


class Rollout(msgspec.Struct, frozen=True):
    """The progress of one command for many devices. It is ``aborted`` once more than ``abort_share`` (0 to 1)
    of ``total`` have failed or expired. ``rate`` is in devices a second; None for no limit."""

    id: int
    name: str
    total: int
    abort_share: float = 1.0
    done: int = 0
    failed: int = 0
    aborted: bool = False
    created_at: float = 0.0
    rate: float | None = None

    @property
    def over(self) -> bool:
        """True if all its commands are closed."""
        return self.done + self.failed >= self.total

    def after(self, done: int, failed: int) -> Rollout:
        """Return the rollout with more commands closed."""
        all_failed = self.failed + failed
        return msgspec.structs.replace(
            self,
            done=self.done + done,
            failed=all_failed,
            aborted=self.aborted or all_failed > self.abort_share * self.total,
        )


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The events and limits that a dispatcher brings to a turn.

    Attributes:
        outbox: the name of the outbox.
        grants: the epochs of the shards that the dispatcher owns.
        sendable: the owned shards that can send now.
        now: the wall time.
        answers: the answers of devices since the last turn.
        unsent: the tries that the broker didn't take.
        room: how many more devices may be waited for; below 0 if a new shard had too many.
        rate: how many commands may be sent now.
        limit: the rows of each kind that one turn takes.
        away: the devices that are away.
        back: the devices that have just come back.
        shards: the number of the outbox's shards.
        seen: when devices were last seen, if ever, to be stored.
        pause_s: seconds after which an unsent try is repeated the first time; then twice as long, and so on.
        shift_s: seconds by which the wall clock was set since the last turn; due times are shifted along.
        still_out: tries that may have reached their devices only now, or that the store may have forgotten in
            a crash. Their answers are waited for from now on.
        fresh: the shards that have just connected for the first time. An earlier owner's tries may have
            reached devices until now.
        check_dues: cap times that are due much too late: the clock may have been set unnoticed, or a turn of
            unknown outcome may have happened.
        sweep: also close what has expired in the queues.
        groups: the rates of groups of devices.
        rollouts: the dispatcher's share of the rates of rollouts.
        brief: store a pending brief for each closed command.
        slow: the answer times of devices that answer later than they are waited for.
    """

    outbox: str
    grants: Mapping[int, int]
    sendable: Collection[int]
    now: float
    patience: Patience = Patience()
    answers: Sequence[CommandAnswer] = ()
    unsent: Sequence[Unsent] = ()
    room: int = 10_000
    rate: int = 10_000
    limit: int = 1_000
    away: Set[str] = frozenset()
    back: Sequence[str] = ()
    shards: int
    seen: Mapping[str, float | None] = {}
    pause_s: float = 1.0
    shift_s: float = 0.0
    still_out: Sequence[Sending] = ()
    fresh: Collection[int] = ()
    check_dues: bool = False
    sweep: bool = False
    groups: GroupRate | None = None
    rollouts: RolloutRates | None = None
    brief: bool = False
    slow: Mapping[str, float] = {}

    @property
    def command_ids(self) -> Set[int]:
        """The ids of the commands of ``answers`` and ``unsent``."""
        return {each.correlation.command for events in (self.answers, self.unsent) for each in events}

    @property
    def out_max(self) -> int:
        """The most commands that the turn may send again."""
        return max(0, min(self.limit, self.rate)) if self.sendable else 0

    @property
    def ready_max(self) -> int:
        """The most devices that the turn may begin to wait for, if each of its events frees one."""
        return min(self.out_max, max(0, self.room) + len(self.answers) + len(self.unsent))


class TurnRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a turn reads first.

    Attributes:
        epochs: the current epochs of the granted shards, locked until the transaction ends.
        commands: the commands of ``answers`` and ``unsent`` that exist.
        held: the heads in phase HELD of devices that are back.
        arrivals: the oldest arrivals, up to the turn's limit.
        heads: the heads of ``arrivals`` and ``commands`` that exist.
        out: the due heads in phase OUT of sendable shards, the longest due first, up to ``out_max``.
        ready: the other due heads, up to ``ready_max``.
        cancels: the oldest cancels, up to the turn's limit.
        paused: the paused devices; an empty name means all devices.
    """

    epochs: Mapping[int, int]
    commands: Mapping[int, StoredCommand]
    held: Sequence[Head]
    arrivals: Sequence[Arrival]
    heads: Mapping[Pair, Head]
    out: Sequence[Head]
    ready: Sequence[Head]
    cancels: Sequence[Cancel] = ()
    paused: Set[str] = frozenset()


class Sending(msgspec.Struct, frozen=True):
    """A try to be sent now. ``due`` is the wall time at which it is sent again without an answer. ``counts``:
    it counts against ``max_tries``."""

    device: str
    shard: int
    correlation: Correlation
    body: bytes
    trace_id: str
    due: float
    traceparent: str = ""
    counts: bool = True


class TurnResult(msgspec.Struct):
    """The outcome of a turn.

    Attributes:
        sendings: the tries to be sent, now that the turn is committed.
        closed: the commands that were closed.
        unmatched: the answers that fit no try that is out; they changed nothing.
        lost: the shards that have another owner.
        freed: how many devices are no longer waited for.
        repeats: how many of ``sendings`` go to devices that were waited for already.
        more: the limits were reached, so that another turn should follow at once.
        late: how many answers came to an earlier try than the last one.
        paused: the whole outbox is paused.
        moved: the devices whose commands were added for another number of shards, and were moved.
    """

    sendings: list[Sending] = []
    closed: list[StoredCommand] = []
    unmatched: list[CommandAnswer] = []
    lost: list[int] = []
    freed: int = 0
    repeats: int = 0
    more: bool = False
    late: int = 0
    paused: bool = False
    moved: list[str] = []


class OutboxRows(Protocol):
    """The rows of one outbox, in a transaction. Only ``read`` may name shards of other owners."""

    def read(self, request: TurnRequest) -> TurnRows:
        """Read the rows of every turn at once, because a database may be far away."""

    def commands(self, ids: Collection[int]) -> Mapping[int, StoredCommand]:
        """Return the commands that exist."""

    def heads(self, pairs: Collection[Pair]) -> Mapping[Pair, Head]:
        """Return the heads that exist."""

    def shift(self, shards: Collection[int], by_s: float) -> None:
        """Shift the due times of heads that wait for an answer or a device; if ``by_s`` is below 0, of all
        heads, because the others would wait for a time that has passed."""

    def cap_due(self, shards: Collection[int], latest: float) -> None:
        """Set due times after ``latest`` to it. A head whose command has a later time gets it back then."""

    def postpone(self, shards: Collection[int], until: float) -> None:
        """Set due times before ``until`` to it, of heads whose command is out or was."""

    def misplaced_arrivals(self, shards: int, limit: int) -> list[Arrival]:
        """Return up to ``limit`` arrivals whose shard isn't below ``shards``."""

    def gather_cancels(self, shards: int) -> None:
        """Give cancels whose shard isn't below ``shards`` to the first shard."""

    def move_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Store the shards of ``arrivals``, also in all scheduled commands of their devices."""

    def drop_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Delete arrivals."""

    def superseded_by(self, arrivals: Sequence[Arrival]) -> list[StoredCommand]:
        """Return the scheduled commands that are older than one of ``arrivals``, for the same device and with
        the same ``supersede_key``."""

    def replaced(self, entries: Sequence[StoredCommand]) -> Set[int]:
        """Return the ids of the commands that a newer one replaces, in whatever state that one is."""

    def drop_cancels(self, cancels: Sequence[Cancel]) -> None:
        """Delete cancels."""

    def matching_cancels(self, cancels: Sequence[Cancel], limit: int) -> list[StoredCommand]:
        """Return up to ``limit`` scheduled commands that ``cancels`` match."""

    def next_commands(self, pairs: Collection[Pair], now: float) -> Mapping[Pair, StoredCommand | float]:
        """Return the next scheduled command of each head: among commands whose time has come, the oldest with
        the highest priority. If no time has come, return the earliest. A head without scheduled commands is
        missing."""

    def overdue(self, shards: Collection[int], now: float, limit: int) -> list[StoredCommand]:
        """Return up to ``limit`` scheduled commands that have expired, or whose rollout is aborted."""

    def rollouts(self, ids: Collection[int]) -> Mapping[int, Rollout]:
        """Return the rollouts that exist."""

    def save(self, entries: Sequence[StoredCommand]) -> None:
        """Store changed commands."""

    def save_heads(self, heads: Sequence[Head]) -> None:
        """Store heads, also new ones."""

    def save_rollouts(self, closed: Mapping[int, tuple[int, int]]) -> None:
        """Count commands of rollouts as done and as failed, and abort rollouts that failed too often."""

    def save_seen(self, seen: Mapping[str, float | None], away: Set[str]) -> None:
        """Store when devices were last seen, if ever, and whether they are away."""

    def save_briefs(self, closed: Sequence[StoredCommand]) -> None:
        """Store pending briefs of these commands."""

    def drop_briefs(self, shards: Collection[int]) -> None:
        """Delete all pending briefs: the outbox has no queue for them."""


def take_turn(rows: OutboxRows, request: TurnRequest, random: Callable[[], float]) -> TurnResult:
    """Take a turn. ``random`` draws from [0, 1)."""
    return _TurnJudge(rows, request, random).judge()


class _TurnJudge:
    """The decisions of one turn, step by step. ``_heads`` and ``_changed`` are changes that aren't stored
    yet."""

    def __init__(self, rows: OutboxRows, request: TurnRequest, random: Callable[[], float]) -> None:
        self._rows = rows
        self._request = request
        self._random = random
        self._now = request.now
        self._mine: dict[int, int] = {}
        self._found: TurnRows
        self._heads: dict[Pair, Head] = {}
        self._changed: dict[int, StoredCommand] = {}
        self._freed: dict[Pair, Head] = {}
        self._cancelled: set[int] = set()
        self._unwritten = False
        self._result = TurnResult()

    def judge(self) -> TurnResult:
        request, rows, result = self._request, self._rows, self._result
        found = rows.read(request)
        self._mine = {s: e for s, e in request.grants.items() if found.epochs.get(s) == e}
        result.lost = [shard for shard in request.grants if shard not in self._mine]
        if request.shift_s:
            rows.shift(self._mine, request.shift_s)
        if request.check_dues:
            slowest_s = max(request.slow.values(), default=0.0)
            rows.cap_due(self._mine, request.now + request.patience.longest_s(slowest_s))
        fresh = [shard for shard in request.fresh if shard in self._mine]
        if fresh:
            rows.postpone(fresh, request.now + request.patience.interval_s(1, self._random()))
        if request.still_out:
            self._keep_out()
        changed = request.shift_s or request.check_dues or fresh or request.still_out
        self._found = rows.read(request) if changed else found
        result.paused = "" in self._found.paused
        self._take_answers()
        self._take_unsent()
        arrived = self._take_arrivals()
        self._cancel()
        if request.sweep:
            self._sweep()
        if not result.paused:
            self._repeat_unanswered()
        self._send_next(arrived)
        self._store()
        return result

    # --- events

    def _keep_out(self) -> None:
        """Store tries again that the store may have forgotten, and wait for their answers from now on."""
        request, now = self._request, self._now
        found = dict(self._rows.commands({each.correlation.command for each in request.still_out}))
        heads = dict(self._rows.heads({entry.pair for entry in found.values()}))
        entries: dict[int, StoredCommand] = {}
        pairs: dict[Pair, None] = {}
        for correlation in (each.correlation for each in request.still_out):
            entry = found.get(correlation.command)
            if entry is None or entry.shard not in self._mine:
                continue
            head = heads.get(entry.pair) or Head(entry.device, entry.lane, entry.shard)
            if entry.state in queue.CLOSED:
                if not _waits_for(head, entry, correlation):
                    continue
            elif entry.tries < correlation.tries:
                entry = queue.publish(entry, correlation.epoch, now, counts=False)  # it may have been a probe
                entry = msgspec.structs.replace(entry, tries=correlation.tries)
                found[entry.id] = entries[entry.id] = entry
                self._result.freed -= head.phase is not HeadPhase.OUT
                head = head.out(entry.id, head.due)
            elif not queue.fits(entry, entry.device, correlation):
                continue
            due = now + self._interval_s(entry)
            heads[entry.pair] = msgspec.structs.replace(head, due=max(due, head.due or 0.0))
            pairs[entry.pair] = None
        if entries:
            self._rows.save(list(entries.values()))
        if pairs:
            self._rows.save_heads([heads[pair] for pair in pairs])

    def _take_answers(self) -> None:
        """Close commands that were answered, and free their devices."""
        request, found = self._request, self._found.commands
        late: list[CommandAnswer] = []
        for answer in request.answers:
            entry = self._current(found, answer.correlation)
            if entry is not None and queue.fits(entry, answer.device, answer.correlation):
                self._answered(entry, answer)
                self._free_device(entry)
            elif entry is not None and queue.answers(entry, answer.device, answer.correlation):
                late.append(answer)
            else:
                self._result.unmatched.append(answer)
        for answer in late:
            self._take_late_answer(answer)

    def _take_unsent(self) -> None:
        """Give back tries that the broker didn't take, and send them again after a pause."""
        request, found = self._request, self._found.commands
        for unsent in request.unsent:
            entry = self._current(found, unsent.correlation)
            if entry is None or not queue.fits(entry, entry.device, unsent.correlation):
                continue
            if unsent.refusal:
                self._take_refusal(entry, unsent)
                continue
            spent = max(0, entry.spent - unsent.spent)
            self._changed[entry.id] = msgspec.structs.replace(entry, spent=spent)
            if not unsent.certain or not queue.is_out(self._head(entry.pair)):
                continue  # a head that doesn't wait for an answer gets its turn anyway
            head = Head(entry.device, entry.lane, entry.shard)
            if entry.device in request.away:
                self._set_head(head.held(entry.id, self._now + request.patience.probe_s))
                self._result.freed += 1
            else:
                refusals = min(entry.tries - entry.spent, DOUBLINGS_MAX)
                due = self._now + min(request.pause_s * 2.0**refusals, request.patience.retry_max_s)
                self._set_head(head.out(entry.id, due))

    def _take_refusal(self, entry: StoredCommand, unsent: Unsent) -> None:
        """Count a try that the broker refused. The command fails after the last one; before, its retry
        interval stands."""
        spent = entry.spent + (not unsent.spent)
        entry = msgspec.structs.replace(entry, spent=spent, reason=unsent.refusal)
        if spent < self._request.patience.max_tries:
            self._changed[entry.id] = entry
        else:
            self._close(entry, Cause.GIVE_UP, reason=unsent.refusal)
            self._free_device(entry)

    def _take_late_answer(self, answer: CommandAnswer) -> None:
        """Close a command by an answer to an earlier try. Its device may still receive the last try, and
        takes one command at a time: it is waited for one more interval, or until it answers that try too."""
        entry = self._current(self._found.commands, answer.correlation)
        assert entry is not None
        head = self._head(entry.pair)
        if entry.state is CommandState.PUBLISHED and head is not None:
            self._answered(entry, answer)
            self._result.late += 1
            if queue.has_last_try(head):
                self._set_head(head.due_by(self._now + self._interval_s(entry, 1)))
            else:
                self._free(head, was_out=queue.is_out(head))
        elif head and entry.pair not in self._freed and _waits_for(head, entry, answer.correlation):
            self._free(head, was_out=True)
        else:
            self._result.unmatched.append(answer)

    def _answered(self, entry: StoredCommand, answer: CommandAnswer) -> None:
        cause = Cause.ANSWER if answer.ok else Cause.REFUSE
        self._close(entry, cause, answer=answer.body, reason=answer.reason)

    def _interval_s(self, entry: StoredCommand, spent: int | None = None) -> float:
        """Return the seconds to wait for the answer to the last try of ``entry``, as its ``spent``-th."""
        slow_s = self._request.slow.get(entry.device, 0.0)
        spent = entry.spent if spent is None else spent
        return self._request.patience.interval_s(spent, self._random(), slow_s)

    def _free_device(self, entry: StoredCommand) -> None:
        was_out = queue.is_out(self._head(entry.pair))
        self._free(Head(entry.device, entry.lane, entry.shard), was_out=was_out)

    def _free(self, head: Head, *, was_out: bool) -> None:
        self._freed[head.pair] = head.freed(self._now)
        self._result.freed += was_out

    def _head(self, pair: Pair) -> Head | None:
        return self._heads.get(pair) or self._found.heads.get(pair)

    def _current(self, found: Mapping[int, StoredCommand], correlation: Correlation) -> StoredCommand | None:
        entry = self._changed.get(correlation.command) or found.get(correlation.command)
        return entry if entry is not None and entry.shard in self._mine else None

    def _take_arrivals(self) -> list[Head]:
        """Return the heads of devices that have new commands or have come back, and that wait for nothing."""
        request, rows, found = self._request, self._rows, self._found
        arrivals = self._move(arrival for arrival in found.arrivals if arrival.shard in self._mine)
        self._result.more |= len(found.arrivals) >= request.limit
        if arrivals:
            rows.drop_arrivals(arrivals)
        if replacing := [arrival for arrival in arrivals if arrival.supersede_key is not None]:
            for entry in rows.superseded_by(replacing):
                self._close(entry, Cause.SUPERSEDE)
        marks = {(a.device, a.lane): a for a in arrivals}
        arrived = []
        for pair, mark in marks.items():
            head = found.heads.get(pair) or Head(mark.device, mark.lane, mark.shard)
            # A head that is held although its device is there was held by a pause, which may be over.
            resumed = head.phase is HeadPhase.HELD and head.device not in request.away
            if head.phase in (HeadPhase.IDLE, HeadPhase.WAITING) or (resumed and pair not in self._freed):
                arrived.append(head.resumed(mark.shard, self._now))
        arrived += [
            head.resumed(head.shard, self._now)
            for head in found.held
            if head.shard in self._mine and head.pair not in self._freed
        ]
        seen = request.seen
        if self._result.lost:  # their next owners know better
            seen = {
                device: at
                for device, at in seen.items()
                if queue.shard_of(device, request.shards) in self._mine
            }
        if seen:
            rows.save_seen(seen, request.away)
        return arrived

    def _move(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Move arrivals of devices of other shards, and return the others. A program that adds commands may
        assume another number of shards."""
        moved = []
        own = []
        for arrival in arrivals:
            shard = queue.shard_of(arrival.device, self._request.shards)
            if shard == arrival.shard:
                own.append(arrival)
            else:
                moved.append(msgspec.structs.replace(arrival, shard=shard))
        if moved:
            self._rows.move_arrivals(moved)
            self._result.moved += sorted({arrival.device for arrival in moved})
            self._result.more = True
        return own

    def _cancel(self) -> None:
        """Cancel the scheduled commands that callers asked for."""
        cancels = [cancel for cancel in self._found.cancels if cancel.shard in self._mine]
        if not cancels:
            return
        self._write_first()
        limit = self._request.limit
        meant = self._rows.matching_cancels(cancels, limit)
        for entry in meant:
            self._close(entry, Cause.CANCEL)
        if len(meant) < limit:
            self._rows.drop_cancels(cancels)
        else:  # the marks stay until no command is left that matches; until then their shards send nothing
            self._cancelled = {cancel.shard for cancel in cancels}
        self._result.more |= len(meant) >= limit or len(self._found.cancels) >= limit

    def _sweep(self) -> None:
        self._write_first()
        if 0 in self._mine:
            self._rows.gather_cancels(self._request.shards)
            self._move(self._rows.misplaced_arrivals(self._request.shards, self._request.limit))
        overdue = self._rows.overdue(self._mine, self._now, self._request.limit)
        self._result.more |= len(overdue) >= self._request.limit
        for entry in overdue:
            expired = entry.expires_at is not None and entry.expires_at <= self._now
            if expired:
                self._close(entry, Cause.EXPIRE)
            else:
                self._close(entry, Cause.CANCEL, reason="its rollout was aborted")

    # --- due heads

    def _repeat_unanswered(self) -> None:
        """Judge commands that got no answer in time."""
        request, out = self._request, self._found.out
        self._result.more |= 0 < request.out_max <= len(out)
        due = [
            head
            for head in out
            if head.shard in self._mine and head.pair not in self._heads and head.pair not in self._freed
        ]
        found = self._rows.commands({head.command for head in due}) if due else {}
        for head in due:
            entry = self._changed.get(head.command) or found.get(head.command)
            if entry is None or entry.state is not CommandState.PUBLISHED or not self._judge(entry, head):
                self._free(head, was_out=True)
        self._result.repeats = len(self._result.sendings)

    def _send_next(self, arrived: list[Head]) -> None:
        """Fill the room with the next commands of due heads, the longest due first."""
        request = self._request
        room = min(
            request.room + self._result.freed, request.rate - len(self._result.sendings), request.limit
        )
        sendable = [
            shard for shard in self._mine if shard in request.sendable and shard not in self._cancelled
        ]
        if self._result.paused:
            sendable = []
        due: dict[Pair, Head] = {}
        if sendable and room > 0:
            ready = [head for head in self._found.ready if head.shard in self._mine]
            due = {head.pair: head for head in ready[:room] if head.pair not in self._freed}
            self._result.more |= len(self._found.ready) >= min(room, request.ready_max)
        fresh = {head.pair: head for head in arrived} | self._freed
        for pair, head in fresh.items():
            due.setdefault(pair, head)
        going = {}
        for pair, head in due.items():
            if room > 0 and head.shard in sendable:
                going[pair] = head
                room -= 1
            else:
                self._set_head(head)
        self._judge_next(going)

    def _judge_next(self, going: dict[Pair, Head]) -> None:
        """Judge the next commands of heads, round by round until each head has one that stays open."""
        for _ in range(ROUNDS_MAX):
            if not going:
                return
            self._write_first()
            first = self._rows.next_commands(going, self._now)
            rollouts = self._rollouts(first.values())
            keyed = [
                each for each in first.values() if isinstance(each, StoredCommand) and each.supersede_key
            ]
            replaced = self._rows.replaced(keyed) if keyed else frozenset()
            held = [head.command for head in going.values() if head.command]
            found = self._rows.commands(held) if held else {}
            out = {number: entry for number, entry in found.items() if entry.state not in queue.CLOSED}
            again = {}
            for pair, head in going.items():
                entry = out.get(head.command) or first.get(pair)
                if isinstance(entry, StoredCommand):
                    rollout = (
                        rollouts.get(entry.rollout or 0) if entry.state is CommandState.SCHEDULED else None
                    )
                    if entry.state is CommandState.SCHEDULED and entry.id in replaced:
                        self._close(entry, Cause.SUPERSEDE)
                        again[pair] = head
                    elif rollout is not None and rollout.aborted:
                        self._close(entry, Cause.CANCEL, reason="its rollout was aborted")
                        again[pair] = head
                    elif not self._judge(entry, head, rollout):
                        again[pair] = head.freed(head.due)
                elif entry is not None:
                    self._set_head(head.freed(entry))
                else:
                    self._set_head(head.idle())
            going = again
        for head in going.values():  # the next turn goes on with them
            self._set_head(head)
            self._result.more = True

    def _judge(self, entry: StoredCommand, head: Head, rollout: Rollout | None = None) -> bool:
        """Carry out the verdict on a command; return False if that closed it. ``rollout``: its rate counts,
        because this is the first try."""
        request, now = self._request, self._now
        # Another program may have written the row, and one command must not stop all others.
        shard = queue.shard_of(entry.device, request.shards)
        spoilt = entry.spoilt or ("" if entry.shard == shard else "its row names a shard of other devices")
        if spoilt:
            cause = Cause.CANCEL if entry.state is CommandState.SCHEDULED else Cause.GIVE_UP
            self._close(entry, cause, reason=spoilt)
            return False
        if head.shard != shard:  # the command belongs to another shard, which sends it
            self._result.freed += head.phase is HeadPhase.OUT
            self._set_head(head.resumed(shard, now))
            return True
        away = entry.device in request.away
        phase = HeadPhase.HELD if head.phase is HeadPhase.HELD else HeadPhase.WAITING
        paused = entry.device in self._found.paused
        verdict = queue.judge(entry, phase, now, away=away, patience=request.patience, paused=paused)
        match verdict:
            case HeadVerdict.EXPIRE | HeadVerdict.GIVE_UP:
                self._close(entry, Cause.EXPIRE if verdict is HeadVerdict.EXPIRE else Cause.GIVE_UP)
                return False
            case HeadVerdict.HOLD:
                out = entry.id if entry.state is CommandState.PUBLISHED else 0
                self._result.freed += head.phase is HeadPhase.OUT
                self._set_head(head.held(out, now + request.patience.probe_s))
            case _:  # SEND or PROBE
                counts = verdict is HeadVerdict.SEND
                if wait_until := self._wait_until(head.pair, rollout):
                    self._set_head(msgspec.structs.replace(head, due=wait_until))
                else:
                    entry = queue.publish(entry, self._mine[entry.shard], now, counts=counts)
                    self._send(entry, head, counts=counts)
        return True

    def _wait_until(self, pair: Pair, rollout: Rollout | None) -> float:
        """Return until when (wall time) a rate holds back the next command for ``pair``; 0 if it doesn't."""
        request, now = self._request, self._now
        if rollout is not None and rollout.rate is not None and request.rollouts is not None:
            wait_until = request.rollouts.wait_until(rollout.id, rollout.rate, pair, now)
            if wait_until:
                return wait_until
        return request.groups.wait_until(pair, now) if request.groups is not None else 0.0

    def _send(self, entry: StoredCommand, head: Head, *, counts: bool) -> None:
        due = self._now + self._interval_s(entry)
        correlation = Correlation(entry.epoch, entry.id, entry.tries)
        self._changed[entry.id] = entry
        self._set_head(head.out(entry.id, due))
        self._result.sendings.append(
            Sending(
                device=entry.device,
                shard=entry.shard,
                correlation=correlation,
                body=entry.body,
                trace_id=entry.trace_id,
                due=due,
                traceparent=entry.traceparent,
                counts=counts,
            )
        )

    # --- storing

    def _close(
        self, entry: StoredCommand, cause: Cause, *, answer: bytes | None = None, reason: str = ""
    ) -> None:
        self._unwritten |= entry.state is CommandState.SCHEDULED
        closed = queue.close(entry, cause, self._now, answer=answer, reason=reason)
        self._changed[entry.id] = closed
        self._result.closed.append(closed)

    def _set_head(self, head: Head) -> None:
        self._heads[head.pair] = head

    def _write_first(self) -> None:
        """Write before the next read, if scheduled commands were closed: they must not be found again."""
        if self._unwritten:
            self._write()

    def _write(self) -> None:
        if self._changed:
            self._rows.save(list(self._changed.values()))
            self._changed.clear()
        self._unwritten = False

    def _store(self) -> None:
        self._write()
        if self._heads:
            self._rows.save_heads(list(self._heads.values()))
        counts: dict[int, tuple[int, int]] = {}
        for entry in self._result.closed:
            if entry.rollout is not None:
                done, failed = counts.get(entry.rollout, (0, 0))
                bad = entry.state in (CommandState.FAILED, CommandState.EXPIRED)
                counts[entry.rollout] = (done + (not bad), failed + bad)
        if counts:
            self._rows.save_rollouts(counts)
        if self._request.brief and self._result.closed:
            self._rows.save_briefs(self._result.closed)
        elif self._request.sweep and not self._request.brief:
            self._rows.drop_briefs(self._mine)

    def _rollouts(self, entries: Iterable[StoredCommand | float]) -> Mapping[int, Rollout]:
        ids = {
            entry.rollout
            for entry in entries
            if isinstance(entry, StoredCommand) and entry.rollout is not None
        }
        return self._rows.rollouts(ids) if ids else {}


def _waits_for(head: Head, entry: StoredCommand, correlation: Correlation) -> bool:
    """Return whether a head still waits for the answer to the last try of a command that an answer to an
    earlier try closed."""
    last = correlation == Correlation(entry.epoch, entry.id, entry.tries)
    return last and head.phase is HeadPhase.OUT and head.command == entry.id
