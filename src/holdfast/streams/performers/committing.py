"""Sends commits, and settles the messages of accepted commits."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from holdfast.cluster.deliverer import Deliverer, HandOverOutcome
from holdfast.cluster.deliveries import DeliveryTracker, Settlement
from holdfast.cluster.host import Host
from holdfast.cluster.tracer import OpenSpan, trace_of
from holdfast.common.held import Held
from holdfast.common.message import CommitPlace
from holdfast.errors import Fenced, TooLarge
from holdfast.ports.state import StateStore
from holdfast.rules.streams import ledger
from holdfast.rules.streams.commands import HandOver, RefuseRequests, Settle, Write
from holdfast.rules.streams.ledger import Commit
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.rules.streams.sequencer import Gap
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.requests import Requests
from holdfast.streams.traces import begin_commit


class Committer:
    """Performs commits, settlements, and hand-overs of effects. ``streams`` names the declared streams."""

    def __init__(
        self,
        owners: OwnerRegistry,
        host: Host,
        streams: Collection[str],
        state: StateStore,
        deliveries: Mapping[str, DeliveryTracker],
        deliverer: Deliverer,
        requests: Requests,
    ) -> None:
        self._owners = owners
        self._host = host
        self._clock, self._stats, self._log = host.clock, host.stats, host.log
        self._state = state
        self._deliveries = deliveries
        self._deliverer = deliverer
        self._requests = requests
        timings = host.timings
        self._took_delivery = timings.delivery_seconds.each(streams)
        self._took_commit = timings.commit_seconds.each(streams)
        self._took_stall = timings.stall_seconds.each(streams)
        owners.perform_by(
            {
                Write: self.write,
                Settle: self.settle,
                HandOver: self.hand_over,
                RefuseRequests: self.refuse_requests,
            }
        )

    # -- commits ----------------------------------------------------------------------------------------

    async def write(self, entry: OwnedStream, generation: int, command: Write) -> None:
        owner, commit, sent_at = entry.owner, command.commit, self._clock.monotonic()
        span = self._begin_span(entry) if entry.traced else None
        try:
            await self._owners.retry(entry, generation, partial(self._state.commit, commit))
        except Fenced:
            if span is not None:
                span.end("another opening of the stream has fenced this one")
            self._stats.fenced += 1
            self._owners.answer(entry, generation, owner.fenced)
            return
        except TooLarge as error:
            text = str(error)
            if span is not None:
                span.end(text)
            self._log.error("commit too large", key=entry.key, error=text)
            self._owners.answer(entry, generation, lambda now: owner.refused(text, now))
            return
        self._took_commit[entry.spec.name].note(self._clock.monotonic() - sent_at)
        if span is not None:
            span.end()
        self._note_commit(entry, commit)
        if command.gaps:
            self._log_gaps(entry, command.gaps)
        self._owners.answer(entry, generation, owner.committed)

    def _begin_span(self, entry: OwnedStream) -> OpenSpan | None:
        if self._host.tracer is None:
            return None
        span = begin_commit(self._host.tracer, entry.spec.name, entry.plain_key, entry.traced)
        entry.traced = []
        return span

    def _note_commit(self, entry: OwnedStream, commit: Commit) -> None:
        self._stats.commits += 1
        self._stats.committed += commit.done
        if entry.last is not None and entry.last.epoch == commit.epoch:
            entry.last = ledger.commit(entry.last, commit, entry.last.at) or entry.last
            entry.committed_at = self._clock.monotonic()
            if entry.owner.phase is OwnerPhase.DROPPED:
                self._owners.note_number(entry.key, commit.number)
        entry.reopened = 0

    def _log_gaps(self, entry: OwnedStream, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._stats.gaps_skipped += 1
            self._stats.seqs_missed += gap.span.last - gap.span.first + 1
            self._log.warning(
                "gap skipped", key=entry.key, run=gap.run, first=gap.span.first, last=gap.span.last
            )

    # -- what follows -----------------------------------------------------------------------------------

    def settle(self, entry: OwnedStream, _: int, command: Settle) -> None:
        """Have the delivery tracker send the dead letters, delete the messages and report to senders; answer
        the requests that wait for these messages."""
        owner, tracker = entry.owner, self._deliveries[entry.spec.name]
        asked = [held for held in command.messages if held.is_asked]

        def archived() -> None:
            self._answer_requests(entry, command, [held for held in asked if not held.aside])

        if asked and not tracker.archives:
            archived()
        self._stats.duplicates -= 0 if command.duplicate else len(command.messages)
        for held in command.messages:
            self._stats.duplicates += len(held.receipts)

        def done() -> None:
            if asked:  # the dead letter is sent, so the client may delete its message
                self._answer_requests(entry, command, [held for held in asked if held.aside])
            self._owners.feed(entry, owner.settled)

        if not command.duplicate:
            self._note_times(entry, command)
            if command.letters:
                self._log_dead_letters(entry, command)
        commit = None
        if tracker.archives:
            commit = CommitPlace(owner.epoch, owner.commits.number, self._clock.wall())
        settlement = Settlement(entry.key, command.letters, command.messages, done, commit, archived)
        tracker.settle(settlement, at_once=bool(asked) and tracker.archives)

    def _note_times(self, entry: OwnedStream, command: Settle) -> None:
        """Note the times from delivery to settlement."""
        now, took = self._clock.monotonic(), self._took_delivery[entry.spec.name]
        for held in command.messages:
            if held.receipts and (received_at := held.receipts[0].received_at) != math.inf:
                took.note(now - received_at)
        if entry.stands_since is not None:
            since = max(entry.stands_since, waited_since(command.messages, entry.since))
            self._took_stall[entry.spec.name].note(now - since)
            entry.stands_since = None

    def _log_dead_letters(self, entry: OwnedStream, command: Settle) -> None:
        for letter in command.letters:
            if letter.held is not None:
                self._log.warning(
                    "message set aside",
                    key=entry.key,
                    message=letter.held.place.name,
                    reason=letter.reason,
                    **trace_of(letter.held.traceparent),
                )

    def _answer_requests(self, entry: OwnedStream, command: Settle, messages: Sequence[Held]) -> None:
        for held in messages:
            self._requests.settled(entry.key, held, command.duplicate)

    def hand_over(self, entry: OwnedStream, _: int, command: HandOver) -> None:
        owner, epoch, effect_id = entry.owner, entry.owner.epoch, command.effects[0].id

        def answer(outcome: HandOverOutcome, count: int, reason: str) -> None:
            if outcome == "taken":
                event = partial(owner.effects_taken, effect_id, count, epoch)
            elif outcome == "refused":
                event = partial(owner.effect_refused, effect_id, epoch, reason)
            else:
                event = partial(owner.effect_failed, effect_id, epoch, error=reason)
            self._owners.feed(entry, event)

        self._deliverer.hand_over(entry.spec.name, entry.key, command.effects, answer)

    def refuse_requests(self, entry: OwnedStream, _: int, command: RefuseRequests) -> None:
        self._requests.refused(entry.key, command)


def waited_since(messages: Iterable[Held], owned_since: float) -> float:
    """Return since when the first of some messages waits to be handled, as far as this node knows: minus
    infinity for one that was delivered before, and ``owned_since`` for one that no queue has delivered."""
    first = math.inf
    for held in messages:
        if held.receives > 1:
            return -math.inf
        first = min([first, *(receipt.received_at for receipt in held.receipts)])
    return owned_since if first == math.inf else first
