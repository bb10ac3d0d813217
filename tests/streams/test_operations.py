"""What operators do to streams, on stores in memory."""

from typing import Any

import msgspec
import pytest

from holdfast.common.acts import Effect
from holdfast.common.message import Place, Span
from holdfast.common.protocol import Done, Reply, Request, StreamChanged
from holdfast.errors import Fenced, LoginRefused, OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.ports.dead_letters import dead_letters
from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import Checkpoint, Commit, RunLog, Timer
from holdfast.rules.streams.sequencer import Rules, Sequencer, Verdict, Wait
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.state import MemoryState
from holdfast.streams import operations
from holdfast.system.clock import SystemClock

KEY = "detect/cam-1"


class SetClock(SystemClock):
    """The system's clock, but that its wall time stands until a test sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_s = 1000.0

    def wall(self) -> float:
        return self.wall_s


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def state(clock: Clock) -> MemoryState:
    return MemoryState(clock)


@pytest.fixture
def queue(clock: Clock) -> MemoryQueue:
    return MemoryQueue(clock)


async def commit(store: MemoryState, **fields: Any) -> Checkpoint:
    """Open the stream as an owner does and commit once."""
    standing = await store.peek(KEY)
    opened = await store.open(KEY, standing.epoch if standing else 0, "m")
    number = opened.number + 1
    await store.commit(
        Commit(KEY, opened.epoch, number, f"{opened.epoch}.{number}", **{"log": opened.log, **fields})
    )
    return store.standing[KEY]


def judge(checkpoint: Checkpoint, place: Place, **rules: Any) -> Verdict:
    return Sequencer(Rules(**rules), checkpoint).judge(place)


async def test_pausing_fences_the_owner_and_keeps_all_else(state: MemoryState) -> None:
    before = await commit(
        state, log=RunLog(1, 0, 9), past=(RunLog(0, 0, 5),), identities=("1:a", "1:b"), window=9, state=b"s"
    )
    paused = await operations.pause(state, KEY)
    assert (paused.parked, paused.epoch, paused.number) == ("paused", before.epoch + 1, before.number + 1)
    same = {"log", "past", "recent", "state", "state_version", "done", "skipped"}
    assert all(getattr(paused, name) == getattr(before, name) for name in same)
    with pytest.raises(Fenced):
        await state.commit(Commit(KEY, before.epoch, before.number + 1, "owner", before.log))


async def test_operations_are_no_messages_where_numbers_start_anew_after_a_quiet_time(
    state: MemoryState, queue: MemoryQueue, clock: SetClock
) -> None:
    await commit(state, log=RunLog(0, 0, 9, quiet_s=5.0), timers=(Timer("up", 5e9, b"", "1.1.0"),))
    clock.wall_s += 10.0
    assert (await operations.pause(state, KEY)).log == RunLog(0, 0, 9, quiet_s=15.0)
    clock.wall_s += 10.0
    resumed, _ = await operations.resume(state, queue, KEY)
    assert resumed.log == RunLog(0, 0, 9, quiet_s=25.0)
    clock.wall_s += 10.0
    assert (await operations.skip(state, KEY)).log == RunLog(0, 0, 10, (Span(10, 10),), 35.0)
    clock.wall_s += 10.0
    skipped = await operations.skip(state, KEY, 2, 1)
    assert skipped.log == RunLog(1, 0, 2, (Span(0, 2),), 45.0)
    clock.wall_s += 10.0
    effect = Effect(0, 0, "e" * 32, "hall", "", b"", "1:2", clock.wall_s)
    assert (await operations.add_effect(state, KEY, effect)).log == RunLog(1, 0, 2, (Span(0, 2),), 55.0)
    clock.wall_s += 10.0
    dropped, _ = await operations.drop_effects(state, KEY)
    assert dropped.log == RunLog(1, 0, 2, (Span(0, 2),), 65.0)


async def test_pausing_keeps_the_count_of_a_head_that_kills_and_resuming_forgets_it(
    state: MemoryState, queue: MemoryQueue
) -> None:
    before = await commit(state, log=RunLog(0, 0, 9))
    for epoch in range(before.epoch, before.epoch + 3):
        await state.start(KEY, epoch, "0:head")
        await state.open(KEY, epoch, "n")
    paused = await operations.pause(state, KEY)
    assert paused.started is not None
    assert (paused.started.head, paused.started.openings) == ("0:head", 3)
    resumed, _ = await operations.resume(state, queue, KEY)
    assert (resumed.started, resumed.parked) == (None, "")


async def test_resuming_sends_the_overflow_again_in_order(state: MemoryState, queue: MemoryQueue) -> None:
    await commit(state, log=RunLog(0, 0, 9), parked="state does not load")

    def letter(seq: int, reason: str, key: str = "cam-1") -> DeadLetter:
        place = Place(0, seq)
        # Ids in reverse, so that only their places can put them in order.
        return DeadLetter(
            f"{99 - seq}",
            b"%d" % seq,
            reason,
            stream="detect",
            key=key,
            run=0,
            seq=place.name.partition(":")[2],
        )

    parked = [letter(seq, "parked: state does not load") for seq in range(10, 40)]
    for start in range(0, len(parked), queue.max_batch):
        await queue.bury(parked[start : start + queue.max_batch])
    await queue.bury([letter(41, "failed"), letter(42, "parked: it too", "cam-2")])
    _, sent = await operations.resume(state, queue, KEY)
    assert sent == 30
    bodies: list[int] = []
    while got := await queue.receive(10, 0, 30, "m"):
        bodies.extend(int(delivery.body) for delivery in got)
    assert bodies == list(range(10, 40))
    assert {left.reason async for left in dead_letters(queue)} == {"failed", "parked: it too"}


# --- skip


async def test_skipping_the_next_of_a_dense_stream(state: MemoryState) -> None:
    await commit(state, log=RunLog(0, 0, 9, (Span(3, 3),)))
    skipped = await operations.skip(state, KEY)
    assert skipped.log == RunLog(0, 0, 10, (Span(3, 3), Span(10, 10)))
    assert skipped.skipped == 1
    assert judge(skipped, Place(0, 10)) is Verdict.SKIPPED
    assert judge(skipped, Place(0, 11)) is Verdict.NEW
    again = await operations.skip(state, KEY)
    assert again.log is not None
    assert again.log.seq == 11


async def test_skip_passes_every_seq_up_to_the_given_one(state: MemoryState) -> None:
    await commit(state, log=RunLog(0, 0, 9))
    skipped = await operations.skip(state, KEY, through=14)
    assert skipped.log == RunLog(0, 0, 14, (Span(10, 14),))
    assert skipped.skipped == 5
    with pytest.raises(OperationRefused, match="passed already; the stream stands at 14"):
        await operations.skip(state, KEY, through=14)


async def test_skipping_into_a_new_run_keeps_the_old(state: MemoryState) -> None:
    await commit(state, log=RunLog(0, 0, 9))
    skipped = await operations.skip(state, KEY, through=2, run=1)
    assert skipped.past == (RunLog(0, 0, 9),)
    assert skipped.log == RunLog(1, 0, 2, (Span(0, 2),))
    assert judge(skipped, Place(0, 9)) is Verdict.DONE
    assert judge(skipped, Place(1, 3)) is Verdict.NEW
    with pytest.raises(OperationRefused, match="run 0 is over"):
        await operations.skip(state, KEY, through=20, run=0)


@pytest.mark.parametrize("kind", ["dense", "increasing", "absent"])
@pytest.mark.parametrize("first_ever", [True, False])
async def test_skip_passes_a_failing_head_in_every_kind_of_stream(
    state: MemoryState, kind: str, first_ever: bool
) -> None:
    """Whatever order the stream has, the head is known as skipped, and what comes next as new."""
    by_id = kind == "absent"
    done, head, after = (Place(0, 0, i) if by_id else Place(0, n) for n, i in ((4, "a"), (5, "b"), (6, "c")))
    fields: dict[str, Any] = {"log": None}
    if not first_ever:
        names = () if kind == "dense" else (done.name,)
        fields = {"log": RunLog(0, 0 if by_id else 4, 1 if by_id else 4), "identities": names, "window": 9}
    standing = await commit(state, **fields)
    await state.start(KEY, standing.epoch, head.name)
    skipped = await operations.skip(state, KEY)
    assert skipped.started is None
    assert judge(skipped, head, kind=kind) is Verdict.SKIPPED
    assert judge(skipped, after, kind=kind) is Verdict.NEW
    if not first_ever:
        assert judge(skipped, done, kind=kind) is Verdict.DONE


async def test_a_skip_that_knows_no_gap_asks_for_a_seq(state: MemoryState) -> None:
    await commit(state, log=RunLog(0, 0, 9), identities=("0:a",), window=9)
    with pytest.raises(OperationRefused, match="name the seq to skip"):
        await operations.skip(state, KEY)


# --- reset


async def test_resetting_forgets_all_but_the_fence(state: MemoryState) -> None:
    before = await commit(
        state,
        log=RunLog(1, 0, 9),
        past=(RunLog(0, 0, 5),),
        identities=("1:a",),
        window=9,
        state=b"s",
        parked="why",
    )
    after = await operations.reset(state, KEY)
    assert (after.log, after.past, after.recent, after.state, after.parked) == (None, (), (), None, "")
    assert after.epoch > before.epoch
    assert after.number > before.number


@pytest.mark.parametrize("keep_place", [False, True])
async def test_after_a_reset_nothing_is_known_of_what_was_begun(state: MemoryState, keep_place: bool) -> None:
    """Else messages that come anew ran alone in every opening to come, or were passed over as poison."""
    opened = await state.open(KEY, 0, "m")
    for seq in (9, 8):
        await state.start(KEY, opened.epoch, Place(0, seq).name)
    after = await operations.reset(state, KEY, keep_place=keep_place)
    for told in (after, await state.peek(KEY)):
        assert told is not None
        assert (told.started, told.suspects) == (None, ())


async def test_after_a_reset_the_start_of_the_stream_is_waited_for_again(state: MemoryState) -> None:
    """What openings had begun of the forgotten run says nothing of where the next one starts."""
    opened = await state.open(KEY, 0, "m")
    for seq in (9, 8):
        await state.start(KEY, opened.epoch, Place(0, seq).name)
    await commit(state, log=RunLog(0, 8, 9))
    after = await operations.reset(state, KEY)
    sequencer = Sequencer(Rules(first="lowest", gap_timeout_s=10.0), after)
    sequencer.offer(Place(0, 5))
    assert sequencer.next(0.0, 8) == Wait(10.0, gap=True)


async def test_resetting_the_state_alone_keeps_the_place(state: MemoryState) -> None:
    before = await commit(state, log=RunLog(1, 0, 9), identities=("1:a",), window=9, state=b"s")
    after = await operations.reset(state, KEY, keep_place=True)
    assert (after.log, after.recent, after.state) == (before.log, before.recent, None)


# --- what may come between


EFFECT = Effect(1, 0, "id-1", "alerts", "", b"{}", "0:1", 5.0)
TIMER = Timer("silent", 50.0, b"7", "1.1")


async def test_a_reset_clears_timers_and_keeps_pending_effects(state: MemoryState) -> None:
    await commit(state, effects=(EFFECT,), timers=(TIMER,), due=5.0)
    after = await operations.reset(state, KEY)
    assert (after.effects, after.timers, after.due) == ((EFFECT,), (), 5.0)


async def test_pausing_and_resuming_keep_effects_and_timers(state: MemoryState, queue: MemoryQueue) -> None:
    await commit(state, effects=(EFFECT,), timers=(TIMER,), due=0.0, parked="broken")
    await operations.pause(state, KEY)
    after, _ = await operations.resume(state, queue, KEY)
    assert (after.effects, after.timers, after.due) == ((EFFECT,), (TIMER,), 50.0)


async def test_skipping_a_timer_that_kills_nodes_sets_its_body_aside(state: MemoryState) -> None:
    head = "wake:silent:1.1"
    await commit(state, timers=(TIMER,), due=50.0, starting=head)
    after = await operations.skip(state, KEY)
    assert after.timers == ()
    [letter] = after.effects
    assert (letter.body, letter.cause, letter.refused) == (b"7", head, "skipped by the operator")


async def test_dropping_effects_sends_them_to_the_dead_letters_in_their_place(state: MemoryState) -> None:
    others = (
        msgspec.structs.replace(EFFECT, id="id-2", target="reports"),
        msgspec.structs.replace(EFFECT, id="id-3"),
    )
    await commit(state, effects=(EFFECT, *others), due=1e12)
    after, count = await operations.drop_effects(state, KEY, target="alerts")
    assert count == 2
    assert [(effect.id, effect.refused) for effect in after.effects] == [
        ("id-1", "dropped by the operator"),
        ("id-2", ""),
        ("id-3", "dropped by the operator"),
    ]
    assert after.due < 1e12, "a node looks after it now"
    with pytest.raises(OperationRefused, match="no such effect is pending"):
        await operations.drop_effects(state, KEY, ids=["id-1"])
    after, count = await operations.drop_effects(state, KEY)
    assert (count, all(effect.refused for effect in after.effects)) == (1, True)


async def test_an_operation_on_an_unknown_key_is_refused(state: MemoryState, queue: MemoryQueue) -> None:
    for operation in (operations.pause, operations.skip, operations.reset):
        with pytest.raises(OperationRefused, match="no stream 'detect/cam-1'"):
            await operation(state, KEY)
    with pytest.raises(OperationRefused):
        await operations.resume(state, queue, KEY)
    assert state.standing == {}


class Troubled(MemoryState):
    """Another owner opens between peek and open; the answers of open and commit are lost once."""

    trouble: tuple[str, ...] = ("fenced", "open lost", "commit lost")

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        if member == "operator" and "fenced" in self.trouble:
            self.trouble = self.trouble[1:]
            await super().open(key, expect, "other")
        opened = await super().open(key, expect, member)
        if member == "operator" and "open lost" in self.trouble:
            self.trouble = self.trouble[1:]
            raise OutcomeUnknown("lost")
        return opened

    async def commit(self, commit: Commit) -> None:
        await super().commit(commit)
        if self.standing[KEY].member == "operator" and "commit lost" in self.trouble:
            self.trouble = self.trouble[1:]
            raise OutcomeUnknown("lost")


async def test_an_operation_is_applied_once_despite_lost_answers(clock: Clock) -> None:
    state = Troubled(clock)
    before = await commit(state, log=RunLog(0, 0, 9))
    skipped = await operations.skip(state, KEY)
    assert skipped.log == RunLog(0, 0, 10, (Span(10, 10),))
    assert skipped.number == before.number + 1
    assert state.trouble == ()


class Deaf(MemoryState):
    """Takes a commit without an answer, and then does what ``then`` says; at the first commit only."""

    then: Any = None

    async def commit(self, commit: Commit) -> None:
        await super().commit(commit)
        if self.standing[KEY].member == "operator" and self.then is not None:
            then, self.then = self.then, None
            await then(self)
            raise OutcomeUnknown("lost")


async def go_on(state: MemoryState) -> None:
    """An owner opens the stream and handles what is next."""
    log = state.standing[KEY].log or RunLog(0, 0, -1)
    await commit(state, log=msgspec.structs.replace(log, seq=log.seq + 1), starting="0:x")


async def nothing(state: MemoryState) -> None:
    """Nobody comes between."""


@pytest.mark.parametrize("then", [nothing, go_on])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_skip_whose_answer_is_lost_skips_one_message(clock: Clock, then: Any, begun: bool) -> None:
    state = Deaf(clock)
    standing = await commit(state, log=RunLog(0, 0, 9))
    if begun:
        await state.start(KEY, standing.epoch, Place(0, 10).name)
    state.then = then
    skipped = await operations.skip(state, KEY)
    assert skipped.log is not None
    assert skipped.log.skips == (Span(10, 10),)


async def test_a_skip_by_identity_whose_answer_is_lost_skips_one_message(clock: Clock) -> None:
    state = Deaf(clock)
    standing = await commit(state, log=RunLog(0, 0, 1), identities=("0:a",), window=9)
    await state.start(KEY, standing.epoch, "0:b")
    state.then = nothing
    skipped = await operations.skip(state, KEY)
    assert (skipped.log, skipped.recent) == (RunLog(0, 0, 2, (Span(2, 2),)), ("0:a", "!0:b"))


async def test_a_head_that_was_handled_meanwhile_is_not_skipped(
    state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the one after it, which nobody asked to skip."""
    await commit(state, log=RunLog(0, 0, 9))
    taken = state.commit

    async def commit_too_late(late: Commit) -> None:
        monkeypatch.setattr(state, "commit", taken)
        await go_on(state)
        await taken(late)

    monkeypatch.setattr(state, "commit", commit_too_late)
    with pytest.raises(OperationRefused, match="seq 10 is passed already"):
        await operations.skip(state, KEY)


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Unavailable("away")])
async def test_a_store_that_stays_away_names_what_may_be_skipped(clock: Clock, error: Exception) -> None:
    state = Deaf(clock)
    await commit(state, log=RunLog(0, 0, 9))

    async def go_away(state: MemoryState) -> None:
        async def away(key: str) -> Checkpoint | None:
            raise error

        state.peek = away  # type: ignore[method-assign]

    state.then = go_away
    with pytest.raises(OutcomeUnknown, match="skip --through 10 --run 0 may have been done"):
        await operations.skip(state, KEY)


async def test_a_reset_whose_answer_is_lost_is_not_done_twice(clock: Clock) -> None:
    """It would forget what was handled since."""
    state = Deaf(clock)
    await commit(state, log=RunLog(0, 0, 9), state=b"s")
    state.then = nothing
    assert (await operations.reset(state, KEY)).number == 2
    state.then = go_on
    with pytest.raises(OutcomeUnknown, match="the reset may have been done"):
        await operations.reset(state, KEY)
    assert (await state.peek(KEY) or Checkpoint(KEY)).log == RunLog(0, 0, 0)


async def test_a_mark_that_stayed_behind_is_not_the_head(state: MemoryState) -> None:
    standing = await commit(state, log=RunLog(0, 0, 9))
    await state.start(KEY, standing.epoch, Place(0, 9).name)
    assert (await operations.skip(state, KEY)).log == RunLog(0, 0, 10, (Span(10, 10),))


async def test_an_operation_gives_up_in_the_end(clock: Clock) -> None:
    state = Troubled(clock)
    await commit(state, log=RunLog(0, 0, 9))
    state.trouble = ("fenced",) * 99
    with pytest.raises(Fenced):
        await operations.pause(state, KEY)


# --- poke


class RecordingPeer:
    """A peer that notes whom it called."""

    def __init__(self, reply: Reply | Exception) -> None:
        self.reply = reply
        self.calls: list[tuple[str, Request]] = []

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        self.calls.append((address, request))
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@pytest.mark.parametrize(
    "reply, told",
    [
        (Done(), "node-a"),
        (Done(ok=False), ""),
        (Unavailable("gone"), ""),
        (OutcomeUnknown("?"), ""),
        (LoginRefused("its certificate has expired"), ""),
    ],
)
async def test_poke_reaches_the_owner_if_there_is_one(clock: Clock, reply: Any, told: str) -> None:
    coordinator = MemoryCoordinator(clock)
    peer: Any = RecordingPeer(reply)
    assert await operations.poke(coordinator, peer, KEY) == ""
    assert peer.calls == []
    await coordinator.join(Member("m", "node-a", "http://a"), 30)
    await coordinator.claim(KEY, "m")
    assert await operations.poke(coordinator, peer, KEY) == told
    assert peer.calls == [("http://a", StreamChanged("m", "detect", KEY))]
