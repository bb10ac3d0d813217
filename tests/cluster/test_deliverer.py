"""The deliverer: how targets are called, and when they are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from holdfast.cluster.deliverer import BY_URL, CALLS_AT_ONCE, LANES_MAX, PAUSE_MAX_S, Deliverer, Targets
from holdfast.cluster.stats import Stats
from holdfast.cluster.timings import Timings
from holdfast.common.acts import Effect
from holdfast.errors import Busy, ConfigError, EffectRefused, Unavailable
from holdfast.ports.target import OutgoingEffect

URL = "https://host/alerts"


async def no_time() -> None:
    """Takes effects immediately."""


class Office:
    """A target at any URL. It takes effects, or raises ``error``."""

    max_batch = 2
    ordered = False

    def __init__(self) -> None:
        self.takes: Callable[[], Awaitable[object]] = no_time
        self.opened: list[str] = []
        self.calls: list[list[str]] = []
        self.error: BaseException | None = None

    def open(self, url: str) -> Office:
        self.opened.append(url)
        if "broken" in url:
            raise ConfigError("no library")
        if "odd" in url:
            raise ValueError("odd")
        if "wrong" in url:
            raise EffectRefused("nothing serves that")
        return self

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        self.calls.append([effect.id for effect in effects])
        await self.takes()
        if self.error is not None:
            raise self.error


class Bench:
    """A deliverer of one node, whose clock stands still."""

    def __init__(self) -> None:
        self.office = Office()
        self.now = 100.0
        self.log = CapturingLogger()
        self.work: list[Any] = []
        self.answers: list[tuple[str, str, str]] = []
        host = SimpleNamespace(
            tasks=SimpleNamespace(spawn=self.work.append),
            stats=Stats(),
            timings=Timings(),
            log=self.log,
            clock=SimpleNamespace(monotonic=lambda: self.now, wall=lambda: self.now),
            membership=SimpleNamespace(alive=True),
            tracer=None,
        )
        self.host = host
        self.deliverer = Deliverer(host, Targets({}, self.office.open), {})  # type: ignore[arg-type]

    async def hand_over(self, *ids: str, target: str = URL) -> list[tuple[str, str, str]]:
        """Hand effects over; returns what became of each."""
        self.answers = []
        for name in ids:
            effect = Effect(1, 0, name, target, name, b"{}", "0:1", at=0.0)
            self.deliverer.hand_over("cameras", "cameras/gate", (effect,), partial(self._note, name))
        while self.work:
            work = [*self.work]
            self.work.clear()
            await asyncio.gather(*work)
        return self.answers

    def _note(self, name: str, outcome: str, count: int, why: str) -> None:
        assert count == 1
        self.answers.append((name, outcome, why))

    def warnings(self) -> list[str]:
        return [call.args[0] for call in self.log.calls if call.method_name == "warning"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_target_that_asks_for_a_pause_is_left_alone_for_as_long(bench: Bench) -> None:
    bench.office.error = Busy("come again", 30.0)
    assert await bench.hand_over("a") == [("a", "failed", "come again")]
    bench.office.error = None
    bench.now += 29.9
    assert await bench.hand_over("a", "b") == [(name, "failed", "come again") for name in "ab"]
    assert bench.office.calls == [["a"]]
    bench.now += 0.2
    assert await bench.hand_over("a") == [("a", "taken", "")]


async def test_what_waited_behind_a_pause_waits_on(bench: Bench) -> None:
    bench.office.error = Busy("come again", 30.0)
    assert await bench.hand_over(*"abc") == [(name, "failed", "come again") for name in "abc"]
    assert bench.office.calls == [["a", "b"]]


async def test_a_target_that_hangs_has_one_call_and_rests_after_it_for_as_long(bench: Bench) -> None:
    async def hang() -> None:
        bench.now += 15.0

    bench.office.takes, bench.office.error = hang, Unavailable("no answer")
    assert await bench.hand_over("a") == [("a", "failed", "no answer")]
    assert [outcome for _, outcome, _ in await bench.hand_over(*"bcdef")] == ["failed"] * 5
    assert bench.office.calls == [["a"], ["b", "c"]], "the others wait for no call that hangs"
    bench.office.takes, bench.office.error = no_time, None
    bench.now += 14.9
    assert await bench.hand_over("a") == [("a", "failed", "no answer")]
    bench.now += 0.2
    assert await bench.hand_over("a") == [("a", "taken", "")]


async def test_a_target_that_fails_at_once_is_tried_as_ever(bench: Bench) -> None:
    bench.office.error = Unavailable("away")
    for _ in range(5):
        await bench.hand_over("a")
    assert len(bench.office.calls) == 5


async def test_only_a_target_that_answers_has_many_calls_at_once(bench: Bench) -> None:
    under_way: list[int] = []
    calls = 0

    async def wait() -> None:
        nonlocal calls
        calls += 1
        under_way.append(calls)
        await asyncio.sleep(0)
        calls -= 1

    bench.office.takes = wait
    ids = [str(number) for number in range(100)]
    bench.office.error = Unavailable("away")
    await bench.hand_over(*ids)
    assert max(under_way) == 1
    bench.office.error = None
    await bench.hand_over(*ids)
    await bench.hand_over(*ids)
    assert max(under_way) == CALLS_AT_ONCE
    assert len(bench.answers) == 100


async def test_no_target_can_ask_for_a_pause_without_end(bench: Bench) -> None:
    bench.office.error = Busy("come again", 1e9)
    await bench.hand_over("a")
    bench.office.error = None
    bench.now += PAUSE_MAX_S
    assert await bench.hand_over("a") == [("a", "taken", "")]


async def test_an_operator_hears_once_that_a_target_is_away(bench: Bench) -> None:
    bench.office.error = Unavailable("away")
    for _ in range(3):
        await bench.hand_over("a")
    bench.office.error = None
    await bench.hand_over("a")
    assert [(call.method_name, call.args[0]) for call in bench.log.calls] == [
        ("warning", "target unavailable"),
        ("info", "target available"),
    ]


async def test_a_call_that_fails_alone_does_not_make_its_target_away(bench: Bench) -> None:
    for _ in range(3):
        bench.office.error = Unavailable("a moment")
        await bench.hand_over("a")
        bench.office.error = None
        await bench.hand_over("a")
    assert bench.log.calls == []


async def test_one_refused_effect_does_not_keep_the_others_of_its_call(bench: Bench) -> None:
    async def take(effects: Sequence[OutgoingEffect]) -> None:
        if any(effect.id == "b" for effect in effects):
            raise EffectRefused("b is wrong: token=hunter2")

    bench.office.take = take  # type: ignore[method-assign]
    assert sorted(await bench.hand_over("a", "b")) == [
        ("a", "taken", ""),
        ("b", "refused", "b is wrong: token=***"),
    ]


async def test_a_url_that_this_node_cannot_open_waits_and_a_wrong_one_is_refused(bench: Bench) -> None:
    assert await bench.hand_over("a", target="broken://x") == [("a", "failed", "no library")]
    assert await bench.hand_over("a", target="wrong://x") == [("a", "refused", "nothing serves that")]
    assert await bench.hand_over("a", target="undeclared") == [
        ("a", "failed", "the target is not declared on this node; declare it in the app")
    ]
    assert bench.warnings() == ["cannot open target"] * 3
    assert bench.deliverer.errors == {
        "broken://x": "no library",
        "undeclared": "the target is not declared on this node; declare it in the app",
    }


async def test_a_package_that_fails_to_open_a_target_ends_no_node(bench: Bench) -> None:
    assert await bench.hand_over("a", target="odd://x") == [("a", "failed", "ValueError('odd')")]
    assert bench.deliverer.errors == {"odd://x": "ValueError('odd')"}


async def test_a_target_of_a_package_that_would_end_its_process_takes_nothing(bench: Bench) -> None:
    bench.office.error = SystemExit(1)
    assert await bench.hand_over("a") == [("a", "failed", "SystemExit(1)")]


async def test_the_last_error_of_a_target_is_known_until_it_takes_effects(bench: Bench) -> None:
    for error in (Unavailable("login: password=hunter2"), ValueError("odd")):
        bench.office.error = error
        await bench.hand_over("a")
    assert bench.deliverer.errors == {URL: "ValueError('odd')"}
    bench.office.error = Unavailable("login: password=hunter2")
    assert await bench.hand_over("a") == [("a", "failed", "login: password=***")]
    bench.office.error = None
    await bench.hand_over("a")
    assert bench.deliverer.errors == {}
    bench.office.error = Unavailable("away")
    for n in range(LANES_MAX + 1):
        await bench.hand_over("a", target=f"https://host/{n}")
    assert len(bench.deliverer.errors) == LANES_MAX


async def test_a_target_is_opened_once_and_urls_without_end_take_no_memory_without_end(bench: Bench) -> None:
    for _ in range(3):
        await bench.hand_over("a")
    assert bench.office.opened == [URL]
    for n in range(LANES_MAX + 10):
        await bench.hand_over("a", target=f"https://host/{n}")
    await bench.hand_over("a")
    assert bench.office.opened.count(URL) == 2, "the oldest was forgotten"


async def test_a_target_that_hangs_has_one_call_however_many_others_there_are(bench: Bench) -> None:
    called, goes_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        called.set()
        await goes_on.wait()

    bench.office.takes = hang
    hanging = asyncio.ensure_future(bench.hand_over("a"))
    await called.wait()
    bench.office.takes = no_time
    for n in range(LANES_MAX + 10):
        await bench.hand_over("other", target=f"https://host/{n}")
    await bench.hand_over("b")
    assert ["b"] not in bench.office.calls
    goes_on.set()
    await hanging
    assert bench.office.calls[-1] == ["b"]


async def test_nothing_is_handed_over_once_the_membership_has_ended(bench: Bench) -> None:
    bench.host.membership.alive = False
    assert await bench.hand_over("a") == [("a", "failed", "")]
    assert bench.office.calls == []


async def test_effects_are_timed_by_target_and_those_by_url_together(bench: Bench) -> None:
    """Handlers may make up URLs without end: they make no label."""
    for number in range(5):
        await bench.hand_over("a", target=f"{URL}/{number}")
    took = bench.host.timings.effect_seconds
    assert [(target, sum(each.counts)) for target, each in took.items()] == [(BY_URL, 5)]
    assert took.of(BY_URL).sum_s == 5 * bench.now, "from the commit, which was at 0"


async def test_an_effect_that_is_not_taken_is_not_timed(bench: Bench) -> None:
    bench.office.error = Unavailable("away")
    await bench.hand_over("a")
    assert sum(bench.host.timings.effect_seconds.of(BY_URL).counts) == 0
