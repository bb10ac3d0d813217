"""A state store against the ledger: the same random operations, the same answers.

Inherit, make the store, and let Hypothesis look for a difference::

    class MyStoreMachine(StateMachine):
        async def make(self) -> MyStore:
            return await MyStore.connect("my://...")

    TestMyStore = MyStoreMachine.TestCase

Needs pytest and Hypothesis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.common.acts import Effect, RefusedEffect
from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS, Span
from holdfast.errors import Fenced
from holdfast.ports.state import StateStore
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Aside, Checkpoint, Commit, Result, RunLog, Timer

T = TypeVar("T")

FOREVER = 1e11
"""A wall time that no clock reaches."""

COMMITTED_AT = 1.0
"""Replaces the time of every commit."""

KEYS = ("s/a", "s/a/b", "t/käse \N{SNOWMAN}")

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
heads = st.sampled_from(("0:1", "0:2"))
seqs = st.integers(0, 10**SEQ_DIGITS - 1)
spans = st.tuples(seqs, seqs).map(lambda ends: Span(min(ends), max(ends)))
logs = st.builds(
    RunLog,
    run=st.integers(0, 10**RUN_DIGITS - 1),
    start=seqs,
    seq=seqs,
    skips=st.lists(spans, max_size=2).map(tuple),
)
moments = st.floats(1.0, 1e10)
timers = st.builds(Timer, name=texts, at=moments, body=st.binary(max_size=9), setting=texts)
contents = st.fixed_dictionaries(
    {},
    optional={
        "log": st.none() | logs,
        "past": st.lists(logs, max_size=2).map(tuple),
        "identities": st.lists(texts, max_size=4).map(tuple),
        "window": st.integers(0, 5),
        "state": st.none() | st.binary(max_size=20),
        "state_version": st.integers(0, 3),
        "clear_state": st.booleans(),
        "clear_suspects": st.booleans(),
        "results": st.lists(st.binary(max_size=9), max_size=3),
        "aside": st.lists(st.builds(Aside, name=texts, reason=texts), max_size=2).map(tuple),
        "starting": st.just("") | heads,
        "parked": st.just("") | texts,
        "done": st.integers(0, 9),
        "skipped": st.integers(0, 9),
        "effects": st.lists(st.tuples(texts, texts, st.binary(max_size=9), moments), max_size=3),
        "timers": st.none() | st.lists(timers, max_size=2).map(tuple),
        "due": st.just(0.0) | moments,
    },
)
picks = st.lists(st.booleans(), max_size=6).map(tuple)
"""The choice of pending effects for a commit."""

keys = st.sampled_from(KEYS)
off = st.sampled_from((0, 0, 0, 0, -1, 1))
"""By how much a request differs from the right epoch or number: mostly not at all."""


class StateMachine(RuleBasedStateMachine):
    """Sends a store and the ledger the same right and wrong requests; compares their answers and contents."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._standing: dict[str, Checkpoint] = {}
        self._logged: list[tuple[str, int, Result]] = []
        self._sent: list[Commit] = []

    async def make(self) -> StateStore:
        """Override: make a fresh, empty store."""
        raise NotImplementedError("define make")

    async def reopen(self, store: StateStore) -> StateStore:
        """Override if a store survives its client: close this one and return another client of the same
        store."""
        return store

    @initialize()
    def begin(self) -> None:
        self._store = self._run(self.make())

    @rule(key=keys, off=off, member=st.sampled_from(("member-a", "member-b")))
    def open(self, key: str, off: int, member: str) -> None:
        expect = max(self._epoch(key) + off, 0)
        wanted = _answer(lambda: ledger.open_(self._standing.get(key), key, expect, member))
        answer = self._ask(self._store.open(key, expect, member))
        if isinstance(wanted, Checkpoint):
            assert isinstance(answer, Checkpoint)
            assert answer.epoch >= wanted.epoch
            self._standing[key] = msgspec.structs.replace(wanted, epoch=answer.epoch)
            assert _timeless(answer) == _timeless(self._standing[key])
        else:
            assert answer == wanted

    @rule(key=keys, off=off, head=heads)
    def start(self, key: str, off: int, head: str) -> None:
        epoch = self._epoch(key) + off
        wanted = _answer(lambda: ledger.start(self._standing.get(key), key, epoch, head))
        answer = self._ask(self._store.start(key, epoch, head))
        if isinstance(wanted, Checkpoint):
            self._standing[key] = wanted
            assert wanted.started is not None
            assert answer == wanted.started.openings
        else:
            assert answer == wanted

    @rule(key=keys, off_epoch=off, off_number=off, content=contents, picked=picks)
    def commit(
        self, key: str, off_epoch: int, off_number: int, content: dict[str, Any], picked: tuple[bool, ...]
    ) -> None:
        number = self._standing[key].number + 1 if key in self._standing else 1
        plain = Commit(key, self._epoch(key) + off_epoch, number + off_number, f"id-{len(self._sent)}", None)
        bodies = content.get("results", ())
        results = tuple(Result(f"{number}:{i}", body) for i, body in enumerate(bodies))
        effects = tuple(
            Effect(number, place, f"{plain.id}.{place}", target, effect_key, body, "0:1", at)
            for place, (target, effect_key, body, at) in enumerate(content.get("effects", ()))
        )
        made = {"results": results, "effects": effects} | self._answered(key, picked)
        self._sent.append(msgspec.structs.replace(plain, **content | made))
        self._commit(self._sent[-1])

    def _answered(self, key: str, picked: tuple[bool, ...]) -> dict[str, Any]:
        """Return which pending effects a commit drops, and which it marks as refused."""
        pending = self._standing[key].effects if key in self._standing else ()
        chosen = [effect.id for effect, taken in zip(pending, picked, strict=False) if taken]
        return {
            "dropped": tuple(chosen[::2]),
            "refused": tuple(RefusedEffect(id_, "unknown \N{SNOWMAN}") for id_ in chosen[1::2]),
        }

    @rule(before=moments, limit=st.integers(1, 3), lease_s=st.floats(0.0, 1e6))
    def due(self, before: float, limit: int, lease_s: float) -> None:
        leased = self._run(self._store.due(before, limit, lease_s))
        known = sorted((c.due, c.key) for c in self._standing.values() if 0.0 < c.due < before)
        assert sorted(leased) == sorted(set(leased))
        assert [self._standing[key].due for key in leased] == [due for due, _ in known[:limit]]
        for key in leased:
            after = ledger.lease_due(self._standing[key], before, lease_s)
            assert after is not None
            self._standing[key] = after

    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        if self._sent:
            self._commit(data.draw(st.sampled_from(self._sent[-4:])))

    @rule()
    def expire_results(self) -> None:
        dropped, _ = self._run(self._store.expire(FOREVER, 0.0))
        assert dropped == len(self._logged)
        self._logged.clear()

    @rule()
    def expire_checkpoints(self) -> None:
        committed = [c for c in self._standing.values() if ledger.may_expire(c, FOREVER)]
        assert self._run(self._store.expire(0.0, FOREVER)) == (0, len(committed))
        for checkpoint in committed:
            self._standing[checkpoint.key] = ledger.expire(checkpoint)

    @rule()
    def restart(self) -> None:
        self._store = self._run(self.reopen(self._store))

    @rule()
    def transfer(self) -> None:
        """Go on in another store, where this one's contents can be brought to one."""
        if not hasattr(self._store, "restore"):
            return
        source, target = self._store, self._run(self.make())
        stored = self._run(source.stored(KEYS))  # type: ignore[attr-defined]
        results = self._run(source.results(0, len(self._logged) + 1))
        last = self._run(source.last_cursor())  # type: ignore[attr-defined]
        self._run(target.restore(stored))  # type: ignore[attr-defined]
        self._run(target.restore_results(results, above=last))  # type: ignore[attr-defined]
        assert self._run(target.stored(KEYS)) == stored  # type: ignore[attr-defined]
        assert self._run(target.results(0, len(self._logged) + 1)) == results
        self._run(source.close())
        self._store = target

    @invariant()
    def the_same_is_kept(self) -> None:
        for key in KEYS:
            assert _bare(self._run(self._store.peek(key))) == _bare(self._standing.get(key))
        logged = self._run(self._store.results(0, len(self._logged) + 1))
        assert [(r.key, r.epoch, r.result) for r in logged] == self._logged
        for result in logged:
            assert self._run(self._store.result(result.key, result.result.name)) == result

    def teardown(self) -> None:
        if hasattr(self, "_store"):
            self._run(self._store.close())
        self._runner.close()

    def _commit(self, commit: Commit) -> None:
        before = self._standing.get(commit.key)
        wanted = _answer(lambda: ledger.commit(before, commit, COMMITTED_AT))
        answer = self._ask(self._store.commit(commit))
        if isinstance(wanted, Checkpoint):
            self._standing[commit.key] = wanted
            self._logged += [(commit.key, commit.epoch, result) for result in commit.results]
            assert answer is None
        else:
            assert answer == wanted

    def _epoch(self, key: str) -> int:
        return self._standing[key].epoch if key in self._standing else 0

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def _ask(self, call: Coroutine[Any, Any, T]) -> T | tuple[str, int]:
        return _answer(lambda: self._run(call))


def _answer(call: Callable[[], T]) -> T | tuple[str, int]:
    """Return the answer of a call, or that it was refused and the present epoch."""
    try:
        return call()
    except Fenced as refusal:
        return "fenced at", refusal.epoch


def _timeless(checkpoint: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(checkpoint, at=COMMITTED_AT if checkpoint.at else 0.0)


def _bare(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint without what ``peek`` may leave out."""
    return checkpoint and msgspec.structs.replace(_timeless(checkpoint), recent=())
