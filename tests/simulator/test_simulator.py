"""The runtime keeps its promises in simulated trouble, and the simulator sees when it doesn't."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import RunLog
from holdfast.rules.streams.sequencer import Sequencer
from simulator import acting, invariants, scenario, tasks, world
from simulator.faults import Weather
from simulator.mutations import RULES, broken
from simulator.runner import WORLDS, SeedOutcome, WorldKind, simulate
from simulator.scenario import GAP_TIMEOUT_S, RESULTS_MAX, PlannedMessage, Scenario
from tests.simulator.protections import by_tier

SEEDS_A_TEST = 20
QUICK = 2
"""Tests of this many ranges of seeds are in the gate; the rest run at night, as fresh seeds do."""

LIKELY = {
    "archive-first": 2, "archive-again": 4,
    "backlog-awaited": 366, "backlog-turn": 366, "backlog-read-on": 2,
    "batch-count": 53, "batch-first": 110, "follow-up-again": 9, "follow-up-answer": 13, "follow-up-first": 1,
    "task-pause": 9, "task-pause-free": 9, "task-effects-first": 1, "task-effects-again": 1,
    "task-delay": 13,
    "due-lease": 3, "due-parked": 4, "effect-expiry": 3, "effect-pump": 1, "effect-reset": 3,
    "effect-rest": 3, "older-given": 7, "effect-forwards": 135, "forward-share": 58,
    "gap-silence": 375, "state-readers": 5,
    "due-adopts": 11, "due-claims": 1, "due-in-time": 4, "due-written": 2, "effect-answer": 4,
    "effect-drop": 4, "effect-stays": 9, "effect-failure": 5, "effect-order": 2, "effect-queue": 2,
    "effect-refusal": 4, "effect-refused-commit": 25, "effect-run": 118, "effect-taken": 4,
    "effect-unknown": 7, "query-committed": 206, "timer-mark": 4, "timer-setting": 4, "timer-parked": 9,
    "effect-id": 32, "effect-failed": 18,
    "claim-changed": 206, "commit-number": 26, "conditional-release": 13, "epoch-at-commit": 64,
    "identity-window": 19, "judge-again": 65, "jump-limit": 2,
    "model-fault": 25, "open-expects": 12,

    "poison-count": 7, "queue-order": 112, "receipt-merging": 0, "reissue": 199, "repeat-unknown": 4,
    "restart": 50, "restart-clock": 61, "restart-quiet": 171, "room-for-lower": 14, "sender-forwards": 9,
    "skip-before-letter": 7, "start-once": 143, "stored-result": 4, "suspects-alone": 201,
    "task-ended": 9, "task-epoch": 0, "task-maximum": 15,
    "task-outcome-first": 5, "task-reissue": 11,
    "task-stand-in": 9, "task-strict": 35, "task-success": 9, "task-tries": 16,
    "too-large": 25, "transfer-version": 45,
    "task-effects-early": 5, "timer-counted": 2, "timer-time": 8, "timer-fired": 4,
    "follow-up-early": 9, "follow-up-once": 9, "task-effects-failed": 0, "task-given": 5,
}  # fmt: skip
"""Seeds that noticed when last searched for, tried first: to search takes long."""

HEAL_LIMIT_S, TASKS_HEAL_LIMIT_S, ACTING_HEAL_LIMIT_S = 60.0, 300.0, 400.0
"""Few seeds need as long, and to wait in vain for the usual limit takes long."""


def beginnings(count: int, step: int, quick: int = QUICK) -> list[Any]:
    """The first seeds of tests that take ``step`` seeds each."""
    return [
        pytest.param(first, marks=() if first < quick * step else pytest.mark.nightly)
        for first in range(0, count, step)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("first", beginnings(100, SEEDS_A_TEST))
def test_no_seed_breaks_an_invariant_of_streams(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert simulate(seed).wrong == []


ARCHIVING_SEEDS_A_TEST = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", beginnings(40, SEEDS_A_TEST))
def test_no_seed_breaks_an_invariant_of_streams_that_act(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert simulate(seed, kind="acting").wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("first", beginnings(20, ARCHIVING_SEEDS_A_TEST))
def test_no_seed_breaks_an_invariant_beside_resets_expiry_and_older_nodes(first: int) -> None:
    for seed in range(first, first + ARCHIVING_SEEDS_A_TEST):
        assert simulate(seed, kind="upkeep").wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("first", beginnings(40, ARCHIVING_SEEDS_A_TEST))
def test_no_seed_breaks_an_invariant_of_streams_that_are_archived(first: int) -> None:
    for seed in range(first, first + ARCHIVING_SEEDS_A_TEST):
        assert simulate(seed, kind="archiving").wrong == []


TASK_SEEDS_A_TEST = 5


@pytest.mark.slow
@pytest.mark.parametrize("first", beginnings(40, TASK_SEEDS_A_TEST))
def test_no_seed_breaks_an_invariant_of_tasks(first: int) -> None:
    for seed in range(first, first + TASK_SEEDS_A_TEST):
        assert simulate(seed, kind="tasks").wrong == []


def live(monkeypatch: pytest.MonkeyPatch, seed: int = 4, **story: Any) -> SeedOutcome:
    """Live through one story in fair weather, told by clients who ask together."""
    fair: dict[str, Any] = {"kind": "dense", "first": 0, "fifo": False, "weather": Weather(), "faults": ()}
    asked: dict[str, Any] = {"clients": 1.0, "together": True, "inbox_limit": 64, "idle_timeout_s": 1.0}
    asked["gap_timeout_s"] = GAP_TIMEOUT_S
    drawn: Scenario = msgspec.structs.replace(scenario.make(seed), **fair | asked | story)
    monkeypatch.setitem(WORLDS, "story", WorldKind(lambda _: drawn, world.World, invariants.check))
    return simulate(drawn.seed, kind="story")


def test_what_runs_beside_a_client_s_poison_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's message that is asked for again looks like a new one."""
    seconds = (0.3, 0.01, 0.01)
    messages = tuple(
        PlannedMessage(0.1, "k0", 0, seq, kills=-(seq == 1), seconds=seconds[seq]) for seq in range(3)
    )
    assert live(monkeypatch, messages=messages).wrong == []
    with broken("suspects-alone"):
        lives = (live(monkeypatch, seed, messages=messages) for seed in range(40))
        [wrong] = next(outcome.wrong for outcome in lives if outcome.wrong)
    assert "0 kills nothing and was dead-lettered: poison" in wrong


@pytest.mark.slow
@pytest.mark.parametrize("first", [{"kills": -1}, {"fill": RESULTS_MAX}], ids=["kills", "is too large"])
def test_where_a_run_starts_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, Any]
) -> None:
    """Each time that the first message ends an opening, its owner would wait again for the lowest."""
    messages = tuple(PlannedMessage(0.1, "k0", 0, seq, **({} if seq else first)) for seq in range(3))
    outcome = live(monkeypatch, messages=messages, first="lowest")
    assert outcome.wrong == []
    assert outcome.virtual_s < 2 * GAP_TIMEOUT_S
    monkeypatch.setattr(Sequencer, "was_begun", lambda self, head: False)
    assert live(monkeypatch, messages=messages, first="lowest").virtual_s > 4 * GAP_TIMEOUT_S


def test_what_makes_a_commit_too_large_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fills = (0, RESULTS_MAX, 0, RESULTS_MAX // 2, RESULTS_MAX // 2)
    messages = tuple(PlannedMessage(0.1, "k0", 0, seq, fill=fill) for seq, fill in enumerate(fills))
    assert live(monkeypatch, messages=messages).wrong == []
    with broken("too-large"):
        [wrong] = live(monkeypatch, messages=messages).wrong
    assert "4 clients without an answer" in wrong, "it is tried for ever with what comes with it"


@pytest.mark.parametrize("seed, kind", [(3, "streams"), (12, "streams"), (26, "streams"), (5, "tasks")])
def test_a_seed_replays_the_same_run(seed: int, kind: str) -> None:
    first, second = simulate(seed, kind=kind), simulate(seed, kind=kind)
    assert first == second
    assert first.counts, "this seed has faults"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_protection_is_switched_off_by_something_with_its_parameters(rule: str) -> None:
    """Else every seed would notice, by a TypeError."""
    mutation = RULES[rule]
    whole: Any = inspect.getattr_static(mutation.where, mutation.name)
    instead: Any = mutation.instead
    if isinstance(whole, property) and isinstance(instead, property):
        whole, instead = whole.fget, instead.fget
    if callable(whole) and callable(instead):
        parameters = inspect.signature(whole).parameters.values()
        names = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        inspect.signature(instead).bind(*[None] * (len(parameters) - len(names)), **dict.fromkeys(names))


def test_the_seeds_that_are_kept_are_among_those_that_the_docs_state() -> None:
    assert {rule for rule, seed in LIKELY.items() if seed >= RULES[rule].seeds} == set()


@pytest.mark.parametrize("rule", by_tier(WORLDS.keys() - {"devices"}))
def test_a_seed_fails_where_a_protection_is_missing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    acts = RULES[rule].world in ("acting", "upkeep")  # targets may be away for long
    monkeypatch.setattr(world, "HEAL_LIMIT_S", ACTING_HEAL_LIMIT_S if acts else HEAL_LIMIT_S)
    monkeypatch.setattr(acting, "HEAL_LIMIT_S", ACTING_HEAL_LIMIT_S)
    monkeypatch.setattr(tasks, "HEAL_LIMIT_S", TASKS_HEAL_LIMIT_S)
    seeds = LIKELY.get(rule, 0), *range(RULES[rule].seeds)
    for seed in seeds:
        if simulate(seed, rule).wrong and not simulate(seed, kind=RULES[rule].world).wrong:
            return
    pytest.fail(f"{len(seeds)} seeds did not notice that {rule!r} is missing: {RULES[rule].says}")


@pytest.mark.parametrize("seq, may_be", [(3, True), (4, True), (5, False)])
def test_only_what_its_stream_had_passed_counts_as_late(seq: int, may_be: bool) -> None:
    streams = invariants.Streams()
    letter = DeadLetter(f"s/k:0:{seq}", b"", "late", key="s/k", seq=f"{seq}")
    streams.asides_log["s/k", f"0:{seq}"] = RunLog(0, 0, 4)
    assert invariants.is_late(streams, "s/k", letter) is may_be
