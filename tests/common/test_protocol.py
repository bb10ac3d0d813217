"""Several owners of one key against one store, over a network that delays, loses, repeats and reorders.

Three nodes, any of which may believe that the key is its own. The store decides by the ledger's rules and
remembers everything; what an owner does is checked against that memory. Tests end by healing: then every
message must be settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import Place
from holdfast.errors import Fenced
from holdfast.rules.streams import ledger
from holdfast.rules.streams.commands import (
    CheckClaim,
    Command,
    Dropped,
    HandOff,
    Open,
    Peek,
    Reclaim,
    Release,
    Return,
    Run,
    Settle,
    Start,
    Transfer,
    Write,
)
from holdfast.rules.streams.ledger import Checkpoint, Commit
from holdfast.rules.streams.options import OwnerOptions
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.rules.streams.sequencer import Rules

KEY = "cameras/1"
NODES = 3
GONE = NODES  # a node that no longer lives
GAP_S = 10.0
IDLE_S = 60.0

FAILURES = ("raises", "never fits", "dies", "is killed", "does not open")
STEPS = st.lists(st.integers(0, 999), min_size=6, max_size=24)

Feed: TypeAlias = Callable[[], None]


class Store:
    """The ledger's rules, and a memory of all that was asked and taken."""

    def __init__(self) -> None:
        self.standing: Checkpoint | None = None
        self.accepted: list[Commit] = []
        self.written: dict[str, Commit] = {}
        self.handled: list[str] = []
        self.aside: set[str] = set()

    @property
    def epoch(self) -> int:
        return self.standing.epoch if self.standing else 0

    def open(self, expect: int, member: str) -> Checkpoint:
        self.standing = ledger.open_(self.standing, KEY, expect, member)
        return self.standing

    def start(self, epoch: int, head: str) -> int:
        self.standing = ledger.start(self.standing, KEY, epoch, head)
        assert self.standing.started is not None
        return self.standing.started.openings

    def commit(self, commit: Commit) -> None:
        assert self.written.setdefault(commit.id, commit) == commit, "one id, two contents"
        after = ledger.commit(self.standing, commit, 0.0)
        if after is None:
            return
        assert commit.epoch == self.epoch, "below the last opened epoch"
        assert commit.number == len(self.accepted) + 1, "the history is one line"
        self.standing = after
        self.accepted.append(commit)
        self.handled.extend(result.name for result in commit.results)
        self.aside.update(aside.name for aside in commit.aside)
        self.check()

    def check(self) -> None:
        assert self.standing is not None
        assert len(self.handled) == len(set(self.handled)), "committed twice"
        assert decoded(self.standing.state) == self.handled, "the state is of exactly what was handled"

    def passed_over(self, place: Place) -> bool:
        """True if an accepted commit recorded that the place was skipped."""
        assert self.standing is not None
        logs = (self.standing.log, *self.standing.past)
        return any(log is not None and log.run == place.run and log.skipped(place.seq) for log in logs)

    def covers(self, place: Place) -> bool:
        return place.name in self.handled or self.set_aside(place)

    def set_aside(self, place: Place) -> bool:
        return place.name in self.aside or self.passed_over(place)


def decoded(state: bytes | None) -> list[str]:
    return state.decode().split() if state else []


class Shell:
    """What a node keeps for its owner."""

    def __init__(self, node: int, version: int, owner: OwnerMachine) -> None:
        self.node = node
        self.version = version  # of the claim
        self.owner = owner
        self.held: dict[str, Place] = {}  # by receipt
        self.run: tuple[int, Run] | None = None  # by generation
        self.handler: list[str] | None = None  # what the slot remembers


class Call(msgspec.Struct, eq=False):
    """A command on its way to a service, or its answer on the way back (then with ``feed``)."""

    shell: Shell
    generation: int
    command: Command
    feed: Feed | None = None


class Protocol(RuleBasedStateMachine):
    """Everything that may happen to one key."""

    @initialize(
        kind=st.sampled_from(["dense", "dense", "increasing", "absent"]),
        on_gap=st.sampled_from(["skip", "dead-letter"]),
        inbox_limit=st.sampled_from([1, 3, 64]),
        checkpoint_every=st.sampled_from([1, 3]),
        on_failure=st.sampled_from(["skip", "park"]),
        on_late=st.sampled_from(["dead-letter", "discard"]),
        max_tries=st.integers(1, 2),
        count=st.integers(1, 12),
    )
    def begin(self, kind: Any, on_gap: Any, inbox_limit: int, count: int, **rules: Any) -> None:
        order = Rules(kind, 0, GAP_S, on_gap, inbox_limit)
        self.owner_rules = OwnerOptions(order, max_starts=3, idle_timeout_s=IDLE_S, **rules)
        self.now = 0.0
        self.store = Store()
        self.claim: tuple[int, int] | None = None  # node, version
        self.versions = 0
        self.shells: list[Shell | None] = [None] * NODES
        self.queue: dict[Place, int] = {}  # receive counts of what is not deleted
        self.created: set[Place] = set()
        self.receipts = 0
        self.killers: set[Place] = set()  # messages whose handler takes the node along
        self.kills = 0
        self.calls: list[Call] = []
        self.answers: list[Call] = []
        self.strays: list[Call] = []  # requests that nobody waits for, and that may yet arrive
        self.create(0, 0, count)

    # -- the shells' part -----------------------------------------------------------------------------------

    def perform(self, shell: Shell) -> None:
        """Take what an owner commands. Called after every event."""
        owner = shell.owner
        commands, owner.agenda.commands = owner.agenda.commands, []
        for command in commands:
            match command:
                case Run():
                    self.begin_run(shell, command)
                case Return() | HandOff():
                    self.let_go(shell, command.messages)
                case Dropped():
                    assert owner.phase is OwnerPhase.DROPPED
                    assert not shell.held, "kept by nobody"
                    if self.shells[shell.node] is shell:
                        self.shells[shell.node] = None
                case Settle():
                    self.check_settle(command)
                    self.let_go(shell, command.messages)
                    self.calls.append(Call(shell, owner.generation, command))
                case _:
                    if isinstance(command, Write | Start):
                        self.check_alone(shell)
                    if isinstance(command, Transfer | Release):
                        assert not self.run_of(shell), "it leaves at a message boundary"
                    self.calls.append(Call(shell, owner.generation, command))

    def check_alone(self, shell: Shell) -> None:
        """While a commit or a start is unanswered no other is composed."""
        mine = [
            call.command
            for call in (*self.calls, *self.answers)
            if call.shell is shell and call.generation == shell.owner.generation
        ]
        assert not [command for command in mine if isinstance(command, Write | Start)]

    def check_settle(self, settle: Settle) -> None:
        """Only what an accepted commit covers is buried or deleted, and what wasn't handled is buried."""
        buried = [letter.held for letter in settle.letters]
        discards = self.owner_rules.on_late == "discard"
        for held in settle.messages:
            assert self.store.covers(held.place), "deleted, and no commit says why"
            assert discards or held.place.name in self.store.handled or held in buried, "just dropped"
        for letter in settle.letters:
            self.check_letter(letter)

    def check_letter(self, letter: PendingDeadLetter) -> None:
        if letter.held is not None:
            assert self.store.set_aside(letter.held.place), "buried, and no commit says why"
        else:
            assert letter.span is not None
            for seq in range(letter.span.first, letter.span.last + 1):
                assert self.store.passed_over(Place(letter.run, seq))

    def let_go(self, shell: Shell, messages: tuple[Held, ...]) -> None:
        for held in messages:
            for receipt in held.receipts:
                del shell.held[receipt.receipt]

    def begin_run(self, shell: Shell, run: Run) -> None:
        assert not self.run_of(shell), "two runs at once"
        assert shell.owner.phase is OwnerPhase.OWNER
        assert not shell.owner.commits.parked
        if run.fresh:
            shell.handler = decoded(run.state)
        assert shell.handler is not None, "nothing is open in the slot"
        shell.run = shell.owner.generation, run

    def feed(self, answer: Call) -> None:
        """The contract: an answer to a command of an earlier generation is void, but for ``settled``."""
        assert answer.feed is not None
        if isinstance(answer.command, Settle) or answer.shell.owner.generation == answer.generation:
            answer.feed()
            self.perform(answer.shell)

    def deliver(self, place: Place, node: int) -> None:
        """A delivery reaches a node: by the queue, forwarded, or by a stale route."""
        shell = self.shells[node] or self.adopt(node)
        if shell is None:
            return
        self.queue[place] += 1
        self.receipts += 1
        receipt = Receipt(f"r{self.receipts}", 0.0)
        held = Held(place, b"", {}, [receipt], self.queue[place])
        if shell.owner.offer(held, self.now) == "accepted":
            shell.held[receipt.receipt] = place
        self.perform(shell)

    def adopt(self, node: int) -> Shell | None:
        if self.claim is None:
            self.take_claim(node)
        if self.claim is None or self.claim[0] != node:
            return None
        shell = Shell(node, self.claim[1], OwnerMachine(KEY, self.owner_rules, self.now))
        self.shells[node] = shell
        self.perform(shell)
        return shell

    def take_claim(self, node: int) -> None:
        self.versions += 1
        self.claim = node, self.versions

    # -- the services' part ---------------------------------------------------------------------------------

    def apply(self, call: Call) -> Feed:
        """A request takes effect. Returns how its answer is fed to the owner."""
        owner, command = call.shell.owner, call.command
        try:
            match command:
                case Peek():
                    standing = self.store.standing
                    return lambda: owner.peeked(standing, self.now)
                case Open(expect):
                    opened = self.store.open(expect, str(call.shell.node))
                    return lambda: owner.opened(opened, self.now)
                case Start(head):
                    epoch = owner.epoch if call.generation == owner.generation else -1
                    openings = self.store.start(epoch, head)
                    return lambda: owner.started(openings, self.now)
                case Write(commit):
                    self.store.commit(commit)
                    return lambda: owner.committed(self.now)
                case CheckClaim() | Reclaim():
                    ours = self.check_claim(call.shell, command)
                    return lambda: owner.claim_checked(ours, self.now)
                case Transfer(target):
                    outcome = self.transfer(call.shell, int(target))
                    return lambda: owner.transferred(outcome, self.now)
                case Release():
                    if self.claim == (call.shell.node, call.shell.version):
                        self.claim = None
                    return owner.released
                case Settle():
                    for held in command.messages:
                        self.queue.pop(held.place, None)
                    return lambda: owner.settled(self.now)
                case _:
                    raise AssertionError(command)
        except Fenced:
            refused = owner.open_failed if isinstance(command, Open) else owner.fenced
            return lambda: refused(self.now)

    def check_claim(self, shell: Shell, command: CheckClaim | Reclaim) -> bool:
        if isinstance(command, Reclaim):
            if command.epoch is not None and command.epoch != self.store.epoch:
                return False
            if self.claim is None:
                self.take_claim(shell.node)
        if self.claim is None or self.claim[0] != shell.node:
            return False
        shell.version = self.claim[1]
        return True

    def transfer(self, shell: Shell, target: int) -> Any:
        if self.claim == (shell.node, shell.version):
            if target == GONE:
                return "kept"
            self.take_claim(target)
        return "done" if self.claim is not None and self.claim[0] == target else "refused"

    # -- what may happen ------------------------------------------------------------------------------------

    def choose(self, things: list[Any], number: int) -> Any:
        return things[number % len(things)]

    @rule(seq=st.integers(0, 9), run=st.sampled_from([0, 0, 0, 1]), count=st.integers(1, 4))
    def create(self, seq: int, run: int, count: int) -> None:
        for number in range(seq, seq + count):
            place = self.place(number, run)
            if place not in self.created:
                self.created.add(place)
                self.queue[place] = 0

    def place(self, seq: int, run: int) -> Place:
        absent = self.owner_rules.order.kind == "absent"
        return Place(0, 0, f"{run}-{seq}") if absent else Place(run, seq)

    @precondition(lambda self: self.queue)
    @rule(number=st.integers(0, 999), count=st.integers(1, 8), node=st.integers(0, NODES - 1), then=STEPS)
    def receive(self, number: int, count: int, node: int, then: list[int]) -> None:
        self.deliver_some(number, count, node)
        self.go_on(then)

    def deliver_some(self, number: int, count: int, node: int) -> None:
        places = sorted(self.queue)
        first = number % max(1, len(places))
        for place in places[first : first + count]:
            self.deliver(place, node)

    @property
    def owner_node(self) -> int:
        return 0 if self.claim is None else self.claim[0]

    @rule(then=STEPS)
    def go_on(self, then: list[int]) -> None:
        """Requests take effect, answers arrive, runs end: often the oldest first, but in any order. Some
        requests or their answers are lost, some runs fail."""
        for number in then:
            going: list[Any] = [*self.answers, *self.calls, *self.runs()]
            if not going or number % 4 == 3:
                self.deliver_some(number, 1 + number % 5, self.owner_node)
                continue
            thing = self.choose(going, number) if number % 3 == 1 else going[0]
            if isinstance(thing, tuple):
                self.end_run(thing[0], thing[1], number)
            elif thing.feed is not None:
                self.answers.remove(thing)
                self.feed(thing)
            elif number % 7 == 6:
                self.lose(thing, applied=number % 2 == 0)
            else:
                self.calls.remove(thing)
                self.answer(thing, self.apply(thing))

    def answer(self, call: Call, feed: Feed) -> None:
        self.answers.append(Call(call.shell, call.generation, call.command, feed))

    def lose(self, call: Call, *, applied: bool) -> None:
        """Nobody knows. An opening counts as failed; anything else is sent again."""
        self.strays.append(call)
        if applied:
            self.apply(call)
        if isinstance(call.command, Open):
            self.calls.remove(call)
            owner = call.shell.owner
            self.answer(call, lambda: owner.open_failed(self.now))

    @precondition(lambda self: self.strays)
    @rule(number=st.integers(0, 999), again=st.booleans())
    def a_stray_takes_effect(self, number: int, again: bool) -> None:
        stray = self.choose(self.strays, number)
        if not again:
            self.strays.remove(stray)
        if not isinstance(stray.command, Transfer | Release | Reclaim):
            self.apply(stray)

    def run_of(self, shell: Shell) -> Run | None:
        """What the slot works at, unless the opening that asked for it is over."""
        generation, run = shell.run or (-1, None)
        return run if generation == shell.owner.generation else None

    def runs(self) -> list[tuple[Shell, Run]]:
        shells = [shell for shell in self.shells if shell is not None]
        return [(shell, run) for shell in shells if (run := self.run_of(shell))]

    def end_run(self, shell: Shell, run: Run, number: int) -> None:
        count = number // 5 % 5
        if number % 5 == 4:
            self.fail(shell, run, count, FAILURES[number // 5 % len(FAILURES)])
        else:
            self.succeed(shell, run, 1 + count)

    def succeed(self, shell: Shell, run: Run, count: int) -> None:
        if any(held.place in self.killers for held in run.messages[:count]):
            self.kill(shell)
            return
        shell.run = None
        assert shell.handler is not None
        names = [held.place.name for held in run.messages[:count]]
        shell.handler += names
        state = " ".join(shell.handler).encode()
        shell.owner.ran([name.encode() for name in names], state, 1, "", "", False, self.now)
        self.perform(shell)

    def fail(self, shell: Shell, run: Run, count: int, how: str) -> None:
        if how == "does not open" and not run.fresh:
            return
        shell.run = shell.handler = None
        owner = shell.owner
        if how in ("dies", "is killed"):
            owner.slot_died(how == "dies", "segfault", "core", self.now)
        elif how == "does not open" and run.state is None:
            owner.load_failed("no model", "trace", self.now)
        elif how == "does not open":
            owner.rejected("does not load", self.now)
        else:
            held = run.messages[: min(count, len(run.messages) - 1)]
            results: list[bytes | None] = [one.place.name.encode() for one in held]
            owner.ran(results, None, 0, "Boom", "trace", how == "never fits", self.now)
        self.perform(shell)

    @rule(
        node=st.integers(0, NODES - 1),
        trouble=st.sampled_from(
            ["node dies", "claim forgotten", "claim taken", "heard of it", "slot dies", "parked", "resumed"]
        ),
        then=STEPS,
    )
    def trouble(self, node: int, trouble: str, then: list[int]) -> None:
        self.cause(trouble, node)
        self.go_on(then)

    def cause(self, trouble: str, node: int) -> None:
        shell = self.shells[node]
        if trouble in ("parked", "resumed"):
            self.operate("by hand" if trouble == "parked" else "", node)
        elif trouble in ("claim forgotten", "claim taken"):
            self.claim = None
            if trouble == "claim taken":
                self.take_claim(node)
        elif shell is None:
            return
        elif trouble == "node dies":
            self.kill(shell)
        elif trouble == "heard of it":
            shell.owner.vanished()
            self.perform(shell)
        elif all(shell is not busy for busy, _ in self.runs()):
            shell.handler = None
            shell.owner.unloaded()
            self.perform(shell)

    def kill(self, shell: Shell) -> None:
        """Requests may have left the node before; what it had still to delete is delivered again."""
        self.kills += 1
        self.shells[shell.node] = None
        mine = [call for call in self.calls if call.shell is shell]
        self.strays += [call for call in mine if not isinstance(call.command, Settle)]
        self.calls = [call for call in self.calls if call.shell is not shell]
        self.answers = [answer for answer in self.answers if answer.shell is not shell]
        if self.claim is not None and self.claim[0] == shell.node:
            self.claim = None

    def operate(self, parked: str, poke: int) -> None:
        """An operator parks or resumes the stream, and tells a node or nobody."""
        standing = self.store.open(self.store.epoch, "operator")
        number = standing.number + 1
        self.store.commit(
            Commit(
                KEY,
                standing.epoch,
                number,
                f"{standing.epoch}.{number}",
                standing.log,
                standing.past,
                window=self.owner_rules.order.window,
                parked=parked,
            )
        )
        for shell in filter(None, self.shells[poke : poke + 1]):
            shell.owner.poked()
            self.perform(shell)

    @rule(to=st.sampled_from(["0", "1", "2", str(GONE), ""]), then=STEPS)
    def a_move_is_asked_for(self, to: str, then: list[int]) -> None:
        for shell in filter(None, self.shells):
            if to != str(shell.node):
                shell.owner.move(to, self.now)
                self.perform(shell)
        self.go_on(then)

    def tick(self) -> None:
        for shell in filter(None, self.shells):
            if shell.owner.agenda.wake_at is not None and shell.owner.agenda.wake_at <= self.now:
                shell.owner.ticked(self.now)
                self.perform(shell)

    # -- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def each_message_is_settled_returned_or_held(self) -> None:
        for shell in filter(None, getattr(self, "shells", [])):
            kept = [receipt.receipt for held in shell.owner.inbox.to_extend() for receipt in held.receipts]
            assert sorted(kept) == sorted(shell.held)

    @invariant()
    def nothing_leaves_the_queue_uncovered(self) -> None:
        for place in getattr(self, "created", ()):
            assert place in self.queue or self.store.covers(place), "lost"

    @invariant()
    def committed_seqs_are_a_prefix(self) -> None:
        if not hasattr(self, "store") or self.store.standing is None:
            return
        if self.owner_rules.order.kind == "absent":
            return
        assert self.store.handled == sorted(self.store.handled), "out of order"
        for log in (self.store.standing.log, *self.store.standing.past):
            if log is not None and self.owner_rules.order.kind == "dense":
                passed = [seq for seq in range(log.start, log.seq + 1) if not log.skipped(seq)]
                handled = {Place(log.run, seq).name for seq in passed}
                assert handled == {name for name in self.store.handled if name.startswith(f"{log.run}:")}

    # -- healing --------------------------------------------------------------------------------------------

    def answer_all(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            self.answer(call, self.apply(call))
        answers, self.answers = self.answers, []
        for answer in answers:
            self.feed(answer)

    def finish_runs(self) -> None:
        for shell, run in self.runs():
            self.succeed(shell, run, len(run.messages))

    def teardown(self) -> None:
        """Without faults all of the queue is settled, whatever went before, and the key is let go."""
        if not hasattr(self, "store"):
            return
        for shell in filter(None, self.shells):
            if self.claim is None or self.claim[0] != shell.node:
                shell.owner.vanished()
                self.perform(shell)
        for _ in range(200):
            if not self.queue and not any(self.shells):
                break
            if self.store.standing is not None and self.store.standing.parked:
                self.operate("", NODES)
            held = {place for shell in filter(None, self.shells) for place in shell.held.values()}
            for place in sorted(set(self.queue) - held):
                self.deliver(place, self.owner_node)
            for _ in range(6):
                self.answer_all()
                self.finish_runs()
            self.now += GAP_S
            self.tick()
            self.each_message_is_settled_returned_or_held()
        assert not self.queue, "never settled"
        assert not any(self.shells), "never released"
        self.nothing_leaves_the_queue_uncovered()
        self.committed_seqs_are_a_prefix()


@pytest.mark.nightly
def test_one_owner_commits_in_order_in_the_model_of_the_protocol() -> None:
    run_state_machine_as_test(Protocol, settings=settings(max_examples=80, stateful_step_count=50))


@settings(max_examples=50)
@given(
    count=st.integers(1, 12),
    killer=st.integers(0, 11),
    order=st.permutations(range(12)),
    checkpoint_every=st.sampled_from([1, 3]),
    kind=st.sampled_from(["dense", "increasing", "absent"]),
)
def test_a_message_that_kills_nodes_is_passed_over_and_no_other(
    count: int, killer: int, order: list[int], checkpoint_every: int, kind: str
) -> None:
    world = Protocol()
    world.begin(kind, "skip", 64, 0, checkpoint_every=checkpoint_every, max_tries=2)
    for seq in [seq for seq in order if seq < count]:
        world.create(seq, 0, 1)
    world.killers = {world.place(killer, 0)} & world.created
    world.teardown()
    assert world.store.aside == {place.name for place in world.killers}
    assert world.kills <= 2 * world.owner_rules.max_starts
