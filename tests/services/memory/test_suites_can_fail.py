"""The suites notice a rule that is switched off."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import ANY

import pytest

from holdfast.ports.clock import Clock
from holdfast.rules.streams import ledger
from holdfast.rules.tasks import task as rules
from holdfast.services.memory import queue as queues
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.services.memory.state import MemoryState
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.testing.conformance import (
    CoordinatorConformance,
    QueueConformance,
    RegistryConformance,
    StateConformance,
    TasksConformance,
)

Test = Callable[..., Awaitable[None]]

QUEUE, COORDINATOR, STATE = QueueConformance(), CoordinatorConformance(), StateConformance()
TASKS, REGISTRY = TasksConformance(), RegistryConformance()


def nothing(*args: Any) -> None:
    pass


def always(*args: Any) -> bool:
    return True


def never(*args: Any) -> bool:
    return False


def any_claim(self: MemoryCoordinator, claim: Any) -> bool:
    return self._standing(claim.key) is not None


def any_checkpoint(standing: Any, *args: Any) -> Any:
    return standing


def any_version(*args: Any) -> Any:
    return ANY


# What is switched off, with what in its place, and which test must notice. (In the queue: and where it is.)
QUEUE_CASES = [
    (MemoryQueue, "_is_stale", never, QUEUE.test_a_stale_receipt_changes_nothing),
    (MemoryQueue, "_show", nothing, QUEUE.test_a_message_that_is_given_back_shows_at_once),
    (queues, "check_batch", nothing, QUEUE.test_batches_over_max_batch_are_refused),
]

COORDINATOR_CASES = [
    ("_may_transfer", any_claim, COORDINATOR.test_a_stale_transfer_changes_nothing),
    ("_may_transfer", any_claim, COORDINATOR.test_one_of_several_transfers_wins),
    ("_may_release", always, COORDINATOR.test_a_stale_release_changes_nothing),
    ("_guard_target", nothing, COORDINATOR.test_a_transfer_to_a_dead_member_is_refused),
    ("_guard_lives", nothing, COORDINATOR.test_a_dead_membership_can_t_claim),
    ("_change", nothing, COORDINATOR.test_watching_sees_joins_claims_and_leaves_in_order),
]

STATE_CASES = [
    ("guard_epoch", any_checkpoint, STATE.test_an_old_epoch_can_t_commit),
    ("guard_epoch", any_checkpoint, STATE.test_a_start_at_another_epoch_is_refused),
    ("guard_number", nothing, STATE.test_only_the_next_number_is_accepted),
    ("guard_number", nothing, STATE.test_an_old_commit_after_the_next_is_refused),
    ("guard_number", nothing, STATE.test_one_of_several_next_commits_wins),
    ("is_repeat", never, STATE.test_many_repeats_at_once_apply_once),
]

TASKS_CASES = [
    ("current_attempt", any_checkpoint, TASKS.test_a_lapsed_attempt_is_taken_over_and_fenced),
    ("current_attempt", any_checkpoint, TASKS.test_of_several_ends_the_first_counts),
    ("current_attempt", any_checkpoint, TASKS.test_batches_go_in_order_and_one_refusal_harms_no_other),
    ("expired", always, TASKS.test_expiry_drops_old_tasks_that_do_not_run),
    ("ENDED", frozenset(), TASKS.test_asking_again_gets_the_same_answer),
]

REGISTRY_CASES = [
    ("_version", any_version, REGISTRY.test_another_version_refuses_a_write),
    ("_version", any_version, REGISTRY.test_one_of_several_writes_wins),
    ("_version", any_version, REGISTRY.test_no_write_of_many_is_lost),
]


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


def call(test: Test, adapter: object) -> Awaitable[None]:
    """Run a suite's test with the adapter as every client it asks for."""
    return test(*[adapter] * len(inspect.signature(test).parameters))


async def fails(check: Awaitable[None]) -> None:
    """The check ends with a failed assertion, a wrong error, or one that doesn't come in time."""
    with pytest.raises((Exception, pytest.fail.Exception)):
        await check


@pytest.mark.parametrize("place,rule,instead,test", QUEUE_CASES, ids=name)
async def test_the_queue_suite_can_fail(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, place: object, rule: str, instead: object, test: Test
) -> None:
    queue = MemoryQueue(clock)
    monkeypatch.setattr(place, rule, instead)
    await fails(call(test, queue))


@pytest.mark.parametrize("rule,instead,test", COORDINATOR_CASES, ids=name)
async def test_the_coordinator_suite_can_fail(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, rule: str, instead: object, test: Test
) -> None:
    coordinator = MemoryCoordinator(clock)
    monkeypatch.setattr(MemoryCoordinator, rule, instead)
    await fails(call(test, coordinator))


@pytest.mark.parametrize("rule,instead,test", STATE_CASES, ids=name)
async def test_the_state_suite_can_fail(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, rule: str, instead: object, test: Test
) -> None:
    state = MemoryState(clock)
    monkeypatch.setattr(ledger, rule, instead)
    await fails(call(test, state))


@pytest.mark.parametrize("rule,instead,test", TASKS_CASES, ids=name)
async def test_the_tasks_suite_can_fail(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, rule: str, instead: object, test: Test
) -> None:
    tasks = MemoryTasks(clock)
    monkeypatch.setattr(rules, rule, instead)
    await fails(call(test, tasks))


@pytest.mark.parametrize("rule,instead,test", REGISTRY_CASES, ids=name)
async def test_the_registry_suite_can_fail(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, rule: str, instead: object, test: Test
) -> None:
    registry = MemoryRegistry(clock)
    monkeypatch.setattr(MemoryRegistry, rule, instead)
    await fails(call(test, registry))
