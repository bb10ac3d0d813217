"""The deliverer: effects reach their targets together, and each gets its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from holdfast.cluster.deliverer import Deliverer, Targets
from holdfast.cluster.lifecycle import Tasks
from holdfast.common.acts import Effect
from holdfast.errors import InvalidMessage, OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.target import OutgoingEffect
from holdfast.services.memory.queue import MemoryQueue
from tests.cluster.fakes import Log, make_host, settle_down

VIRTUAL = True


class Target:
    """Takes effects, or raises what the test says."""

    max_batch = 3
    ordered = True

    def __init__(self) -> None:
        self.taken: list[list[str]] = []
        self.raises: dict[str, Exception] = {}

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        for effect in effects:
            if effect.id in self.raises:
                raise self.raises[effect.id]
        self.taken.append([effect.id for effect in effects])


class Rig:
    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.target, self.queue, self.log = Target(), MemoryQueue(clock), Log()
        self.host: Any = make_host(clock=clock, tasks=tasks, log=self.log)
        self.deliverer = Deliverer(self.host, Targets({"door": self.target}), {"cameras": self.queue})
        self.answers: dict[str, tuple[str, str]] = {}

    async def hand_over(self, *names: str, target: str = "door", refused: str = "") -> None:
        for name in names:
            effect = Effect(1, 0, name, target, "k", b"{}", "0:1", 0.0, refused=refused)
            self.deliverer.hand_over(
                "cameras",
                "cameras/1",
                (effect,),
                partial(self._note, name),
            )
        await settle_down()

    async def hand_over_run(self, names: str) -> None:
        """Hand over effects with one key together, as the owner of a stream does. What isn't taken waits."""
        effects = [Effect(1, 0, name, "door", "k", b"{}", "0:1", 0.0) for name in names]

        def answer(outcome: str, count: int, reason: str) -> None:
            for effect in effects[:count]:
                self.answers[effect.id] = (outcome, reason)
            if outcome == "taken":
                del effects[:count]
                if effects:
                    self.deliverer.hand_over("cameras", "cameras/1", tuple(effects), answer)

        self.deliverer.hand_over("cameras", "cameras/1", tuple(effects), answer)
        await settle_down()

    def _note(self, name: str, outcome: str, count: int, reason: str) -> None:
        assert count == 1
        self.answers[name] = (outcome, reason)


@pytest.fixture
async def rig(clock: Clock, tasks: Tasks) -> Rig:
    return Rig(clock, tasks)


async def test_effects_share_calls_and_each_is_answered(rig: Rig) -> None:
    await rig.hand_over("a", "b", "c", "d")
    assert rig.target.taken == [["a", "b", "c"], ["d"]]
    assert rig.answers == dict.fromkeys("abcd", ("taken", ""))
    assert rig.host.stats.effects == 4


@pytest.mark.parametrize(
    "error, told",
    [
        (Unavailable("away"), "away"),
        (OutcomeUnknown("no answer"), "no answer"),
        (OperationRefused("login"), "login"),
        (OSError("bug"), "OSError('bug')"),
    ],
)
async def test_an_error_that_may_pass_fails_and_refuses_nothing(
    rig: Rig, error: Exception, told: str
) -> None:
    rig.target.raises["a"] = error
    await rig.hand_over("a")
    assert rig.answers == {"a": ("failed", told)}


async def test_an_effect_that_is_refused_takes_no_other_with_it(rig: Rig) -> None:
    rig.target.raises["b"] = InvalidMessage("no such door")
    await rig.hand_over("a", "b", "c")
    assert rig.target.taken == [["a"], ["c"]]
    assert rig.answers["b"] == ("refused", "no such door")


async def test_effects_of_one_key_share_calls_where_the_target_keeps_their_order(rig: Rig) -> None:
    await rig.hand_over_run("abcde")
    assert rig.target.taken == [["a", "b", "c"], ["d", "e"]]
    assert rig.answers == dict.fromkeys("abcde", ("taken", ""))


async def test_effects_of_one_key_come_one_by_one_where_a_target_may_take_any_of_a_call(rig: Rig) -> None:
    rig.target.ordered = False
    await rig.hand_over_run("abc")
    assert rig.target.taken == [["a"], ["b"], ["c"]]


async def test_an_effect_that_is_refused_keeps_those_behind_it_waiting(rig: Rig) -> None:
    rig.target.raises["b"] = InvalidMessage("no such door")
    await rig.hand_over_run("abc")
    assert rig.target.taken == [["a"]]
    assert rig.answers == {"a": ("taken", ""), "b": ("refused", "no such door")}


async def test_a_call_holds_whole_runs_and_no_more_than_the_target_takes(rig: Rig) -> None:
    first, second = (
        [Effect(1, 0, name, "door", name[0], b"{}", "", 0.0) for name in names]
        for names in (("a1", "a2"), ("b1", "b2"))
    )
    for run in (first, second):
        rig.deliverer.hand_over("cameras", "cameras/1", tuple(run), lambda *_: None)
    await settle_down()
    assert rig.target.taken == [["a1", "a2"], ["b1", "b2"]]


async def test_nothing_is_handed_over_past_the_membership(rig: Rig) -> None:
    rig.host.membership.alive = False
    await rig.hand_over("a")
    assert rig.target.taken == []
    assert rig.answers == {"a": ("failed", "")}


async def test_what_was_refused_goes_to_the_dead_letters_of_its_stream(rig: Rig) -> None:
    await rig.hand_over("a", refused="no such door")
    [letter] = rig.queue.letters.values()
    assert (letter.id, letter.body, letter.reason) == ("cameras/1:a", b"{}", "no such door")
    assert (letter.stream, letter.key, letter.attributes) == (
        "cameras",
        "1",
        {"effect": "a", "target": "door", "target_key": "k", "hops": "0"},
    )
    assert rig.answers == {"a": ("taken", "")}
    assert (rig.host.stats.effects, rig.host.stats.set_aside) == (0, 1)
