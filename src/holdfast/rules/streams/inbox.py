"""Decides what an owner does with each delivery: hold it, merge it with another, settle it, or give it back.

Deliveries are held unjudged until the stream is open. Then each is judged by the last answered checkpoint.
What an owner has no room for stays in the queue, or goes back there; ``backlog`` decides when the owner takes
it.

Another owner may have opened the stream, or a standby of the store may lack the last commits. A delivery of a
message that a commit covers is therefore deleted only once the store has shown that commit (``Doubts``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import TIMER_RUN, Life, Place
from holdfast.rules.streams.backlog import Backlog, Order
from holdfast.rules.streams.commands import Agenda, Peek, RefuseRequests, Return, Settle
from holdfast.rules.streams.commit_plan import BatchEntry, CommitPlan
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.restarts import Restarts, answered_run, come_back
from holdfast.rules.streams.sequencer import Sequencer, Verdict

SET_ASIDE = (Verdict.LATE, Verdict.FAR)
"""The verdicts of messages that don't run. A commit records such a message before it becomes a dead
letter."""


class Doubts:
    """The reads of the store by one opening, and the deliveries that wait for one."""

    __slots__ = ("_again", "_number", "_seen", "covered", "is_looking")

    def __init__(self) -> None:
        self.covered: dict[Place, tuple[Held, Verdict]] = {}
        """The deliveries of messages that a commit covers, each with its verdict."""
        self.is_looking = False
        """True while a read isn't answered."""
        self._seen: set[Place] = set()
        """The places in ``covered`` that the read under way decides."""
        self._number = 0
        self._again = False

    def look(self, number: int) -> bool:
        """Return True if the store is to be read now, and must then have at least commit ``number``. While a
        read is under way, another one follows it."""
        self._again = self.is_looking
        if self.is_looking:
            return False
        self.is_looking = True
        self._seen, self._number = set(self.covered), number
        return True

    def doubt(self, place: Place, number: int) -> bool:
        """Note that a covered message was delivered. Return True if the store is to be read now."""
        if not self.is_looking:
            return self.look(number)
        self._seen.discard(place)
        return False

    def is_lost(self, number: int) -> bool:
        """Return True if the store, which has commit ``number``, has lost a later one."""
        return number < self._number

    def answered(self) -> list[tuple[Held, Verdict]]:
        """Note that the store knows the commits of this owner. Return the deliveries that this decides."""
        seen, self._seen, self.is_looking = self._seen, set(), False
        return [self.covered.pop(place) for place in list(self.covered) if place in seen]

    @property
    def looks_again(self) -> bool:
        """True if the store is to be read once more after an answer."""
        return bool(self.covered) or self._again


class Inbox:
    """The deliveries that one owner holds: ``held`` ones are judged, ``unjudged`` ones came before the stream
    was open."""

    __slots__ = ("agenda", "backlog", "commits", "doubts", "held", "restarts", "rules", "seq", "unjudged")

    seq: Sequencer
    commits: CommitPlan
    """The parts of the present opening."""

    def __init__(self, rules: OwnerOptions, agenda: Agenda, backlog: Backlog, restarts: Restarts) -> None:
        self.rules, self.agenda = rules, agenda
        self.backlog, self.restarts = backlog, restarts
        self.held: dict[Place, Held] = {}
        self.unjudged: dict[Place, Held] = {}
        self.doubts = Doubts()

    def __len__(self) -> int:
        return len(self.held) + len(self.unjudged) + len(self.doubts.covered)

    @property
    def all(self) -> tuple[Held, ...]:
        """All messages, in any state."""
        covered = [held for held, _ in self.doubts.covered.values()]
        return (*self.held.values(), *covered, *self.unjudged.values())

    def to_extend(self) -> Iterator[Held]:
        """Yield the messages whose deliveries must be extended. Left out are the ones that wait for a message
        which the queue hasn't delivered: it delivers that one only when it may deliver these again too."""
        behind = set(self.seq.behind_gap())
        for held in self.all:
            if held.place not in behind:
                yield held

    # -- deliveries -----------------------------------------------------------------------------------------

    def offer(self, held: Held, now: float, *, is_open: bool, is_moving: bool) -> bool:
        """Take a delivery; return False if there is no room for it. ``is_open``: the stream is open.
        ``is_moving``: it is about to move to another node."""
        if is_open and self.restarts.after_s is not None:
            self.restarts.place(held, self.seq, now, waits=bool(self.held))
        if self._joins(held):
            return True
        if is_open:
            is_leaving = is_moving and self.backlog.is_reserved and not is_request(held)
            taken = not is_leaving and self._judge(held, now)
        elif taken := len(self.unjudged) < self.rules.order.inbox_limit:
            self.unjudged[held.place] = held
        if not taken:
            come_back(held, self.seq.log)
            self.turn_away(held, now)
        return taken

    def turn_away(self, held: Held, now: float) -> None:
        """Note that a message finds no room. What the queue keeps for this owner comes in order, so a dense
        stream, which waits for each seq anyhow, awaits nothing then."""
        if is_request(held):
            return  # its client asks again, or not
        is_awaited = self.rules.order.kind != "dense" or not self.backlog.is_reserved
        self.backlog.turned_away(self._order_of(held) if is_awaited else None, now)

    def _order_of(self, held: Held) -> Order | None:
        """Return the place of a message in the order of the stream; None if it has none yet."""
        if self.rules.order.kind == "absent":
            return None if held.turn is None else (0, held.turn)
        return None if self.restarts.after_s is not None else (held.place.run, held.place.seq)

    def _joins(self, held: Held) -> bool:
        """Merge another delivery of a message that is held; return False if it isn't."""
        place = held.place
        standing = self.held.get(place) or self.unjudged.get(place)
        if standing is None and place in self.doubts.covered:
            standing, _ = self.doubts.covered[place]
            if not is_request(held):
                self._doubt(place)
        if standing is None:
            return False
        if self.backlog.away:
            self.backlog.came(self._order_of(held))
        self.merge(standing, held)
        return True

    def merge(self, standing: Held, again: Held) -> None:
        """Add the receipt of another delivery of a held message. All its deliveries are deleted after the
        commit."""
        if standing.after is not None:  # the message before it may be finished by now
            standing.after = None if again.after is None else min(standing.after, again.after)
        self.seq.loosen(standing.place, standing.after)
        known = {receipt.receipt for receipt in standing.receipts}
        standing.receipts.extend(receipt for receipt in again.receipts if receipt.receipt not in known)
        for receipt in again.receipts:
            if receipt.receipt in known and receipt.sender:
                _adopt(standing, receipt)

    def _judge(self, held: Held, now: float, *, just_opened: bool = False) -> bool:
        if self.backlog.away:
            self.backlog.came(self._order_of(held))
        verdict = self.seq.judge(held.place)
        if verdict is Verdict.NEW:
            return self._accept(held, now)
        if verdict in SET_ASIDE:
            if self.commits.is_crowded:
                return False
            self.set_aside(held, verdict, now)
        elif just_opened or is_request(held):  # of a request there is nothing to delete
            self.settle_judged(held, verdict)
        elif len(self.doubts.covered) >= self.rules.order.inbox_limit:
            return False
        else:
            self.doubts.covered[held.place] = held, verdict
            self._doubt(held.place)
        return True

    def _accept(self, held: Held, now: float) -> bool:
        """Take a new message; return False if there is no room."""
        rejected = self.seq.offer(held.place, held.after, held.turn)
        if rejected != held.place:
            self.restarts.heard_at = now
            held.become(Life.WAITING)
            self.held[held.place] = held
            if rejected is not None:
                self._evict(self.held.pop(rejected), now)
            return True
        parked = self.commits.parked
        stays = self.rules.keeps_overflow and not is_request(held)  # in the queue
        if not parked or self.commits.is_crowded or stays:
            return False
        self.held[held.place] = held
        self.commits.append(BatchEntry("parked", held, reason=f"parked: {parked}"), now)
        return True

    def _doubt(self, place: Place) -> None:
        """Have the store show that it still knows the commit that covers a message. A standby that has taken
        over may not have had it, and then neither the deletion of the message, which is to run again."""
        if self.doubts.doubt(place, self.commits.number):
            self.agenda.commands.append(Peek())

    def set_aside(self, held: Held, verdict: Verdict, now: float) -> None:
        """Hold a message that doesn't run until a commit has recorded it."""
        self.held[held.place] = held
        if verdict is Verdict.LATE:
            entry = BatchEntry("late", held, reason="late: the stream had passed this place")
            self.commits.append(entry, now)
            return
        at, most = self.seq.stands_at(held.place), self.rules.order.max_jump
        reason = f"malformed: seq {held.place.seq} is more than {most} (max_jump) beyond {at}"
        self.commits.append(BatchEntry("far", held, reason=f"{reason}, where the stream stood"), now)

    def _evict(self, held: Held, now: float) -> None:
        """Give back a message that finds no room any more."""
        self.turn_away(held, now)
        come_back(held, self.seq.log)
        self.agenda.commands.append(Return((held,)))

    def settle_judged(self, held: Held, verdict: Verdict) -> None:
        """Settle a delivery of a message that an earlier commit covers."""
        held.become(Life.COMMITTED)
        held.aside = held.skipped_before if verdict is Verdict.SKIPPED else ""
        letters = (PendingDeadLetter(held.aside, held),) if held.aside else ()
        self.settle(letters, (held,), duplicate=True)

    def settle(
        self, letters: tuple[PendingDeadLetter, ...], messages: tuple[Held, ...], *, duplicate: bool = False
    ) -> None:
        """Have dead letters sent, then messages deleted, then their senders notified."""
        self.agenda.settling += 1
        self.agenda.commands.append(Settle(letters, messages, duplicate))

    # -- openings -------------------------------------------------------------------------------------------

    def judge_held(self, now: float, *, just_opened: bool = False) -> None:
        """Judge what came before the stream was open, or while it was being handed over."""
        unjudged, self.unjudged = self.unjudged, {}
        arrived = list(unjudged.values())
        if self.restarts.after_s is not None:
            arrived.sort(key=lambda held: held.place)  # low numbers show a new run, so they come first
            self.restarts.run = max(self.restarts.run, answered_run(self.seq.log))
            for held in arrived:
                self.restarts.go_on_from(held, self.seq)
        for held in arrived:
            self.restarts.place(held, self.seq, now, waits=bool(self.held))
            # Its place was different before its run was known.
            if not self._joins(held) and not self._judge(held, now, just_opened=just_opened):
                self._evict(held, now)

    def reopen(self) -> None:
        """Hold all messages unjudged again, because the opening is over."""
        judged = [*self.held.values(), *(held for held, _ in self.doubts.covered.values())]
        for held in judged:
            held.tries, held.spent, held.retry_at = 0, False, 0.0
            come_back(held, self.seq.log)
        unjudged, self.unjudged = self.unjudged, {held.place: held for held in judged}
        for held in unjudged.values():
            if held.place in self.unjudged:  # it had another name as long as its run was known
                self.merge(self.unjudged[held.place], held)
            else:
                self.unjudged[held.place] = held
        self.held, self.doubts = {}, Doubts()

    def empty(self) -> tuple[Held, ...]:
        """Let all messages go, as they came, and return them."""
        gone = self.all
        self.held, self.unjudged, self.doubts = {}, {}, Doubts()
        for held in gone:
            come_back(held, self.seq.log)
        return gone

    def known(self) -> None:
        """Note that the store knows the commits of this opening: settle what they cover."""
        for held, verdict in self.doubts.answered():
            self.settle_judged(held, verdict)
        if self.doubts.looks_again:
            self.look()

    def look(self) -> None:
        """Read the store: another owner may have opened the stream, or the store may have lost a commit."""
        if self.doubts.look(self.commits.number):
            self.agenda.commands.append(Peek())

    # -- commits --------------------------------------------------------------------------------------------

    def committed(self, entries: Sequence[BatchEntry]) -> None:
        """Settle the messages of an accepted commit. Only now are they dead-lettered, deleted and
        reported."""
        letters: list[PendingDeadLetter] = []
        messages: list[Held] = []
        for entry in entries:
            held = entry.held
            if held is not None:
                held.become(Life.COMMITTED)
                held.result = entry.result
                assert entry.kind != "gap" and entry.kind != "park"  # noqa: PT018 - those are of no message
                held.covered_as = entry.kind
                held.aside = "" if entry.kind == "done" else entry.reason
                if held.place.run == TIMER_RUN:
                    del self.commits.timers.firings[held.place]
                    continue
                messages.append(self.held.pop(held.place))
                if entry.kind != "done" and not (entry.kind == "late" and self.rules.on_late == "discard"):
                    letters.append(_letter_of(entry, held))
            elif entry.kind == "gap" and self.rules.order.on_gap == "dead-letter":
                letters.append(PendingDeadLetter(entry.reason, run=entry.run, span=entry.span))
        if messages or letters:
            self.settle(tuple(letters), tuple(messages))

    def judged_again(self, place: Place, verdict: Verdict, now: float) -> None:
        """Note that a message which waited is no longer new after a commit."""
        if verdict in SET_ASIDE:
            self.set_aside(self.held[place], verdict, now)
        else:
            self.settle_judged(self.held.pop(place), verdict)

    # -- what doesn't stay ----------------------------------------------------------------------------------

    def put_back(self, now: float) -> tuple[Held, ...]:
        """Let the messages go that the next owner will take from the queue, in order, and return them. There
        are none where only clients wait for theirs."""
        gone = [
            held
            for held in self.held.values()
            if held.receipts and not any(receipt.request or receipt.sender for receipt in held.receipts)
        ]
        if gone:
            self.seq.take(tuple(held.place for held in gone))
        for held in gone:
            del self.held[held.place]
            self.turn_away(held, now)  # it may stay after all
            come_back(held, self.seq.log)
        return tuple(gone)

    def refuse_requests(self, now: float) -> None:
        """Have clients wait for no target, while too many effects are pending. A message with a seq keeps its
        place and is handled later, so that the order stays, and the same seq again gets its result. Without a
        seq, what wasn't begun is given up, because the client may send it again as another message."""
        refused: list[Receipt] = []
        for held in [held for held in self.held.values() if held.life is Life.WAITING]:
            asked = [receipt for receipt in held.receipts if receipt.request]
            refused += asked
            held.receipts = [receipt for receipt in held.receipts if not receipt.request]
            is_new = self.rules.order.kind == "absent" and not (held.tries or held.suspect)
            if asked and is_new and not held.receipts:
                self.seq.take((held.place,))
                del self.held[held.place]
        if refused:
            effects = self.commits.effects
            next_at = effects.next_at(now, now + self.agenda.wall_ahead_s)
            wait_s = 0.0 if next_at is None else max(0.0, next_at - now)
            pending = effects.report()
            assert pending is not None
            refusal = RefuseRequests(tuple(refused), pending.target, pending.count, wait_s)
            self.agenda.commands.append(refusal)


def is_request(held: Held) -> bool:
    """Return True if only clients have brought the message."""
    return all(receipt.request for receipt in held.receipts)


def _adopt(standing: Held, receipt: Receipt) -> None:
    """Update the sender of a delivery that is offered again, perhaps by another node: reports go to the
    newest one."""
    for known in standing.receipts:
        if known.receipt == receipt.receipt:
            known.sender, known.number, known.reply_to = receipt.sender, receipt.number, receipt.reply_to


def _letter_of(entry: BatchEntry, held: Held) -> PendingDeadLetter:
    """Return the dead letter of a message that a commit sets aside."""
    return PendingDeadLetter(
        entry.reason, held, detail=held.detail, waits=entry.kind == "parked", skipped=entry.kind == "skip"
    )
