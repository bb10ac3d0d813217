"""Runs seeds, in this process or over all cores, and says what came of them."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.testing.simulator import devices, invariants, scenario, tasks, world
from holdfast.testing.simulator.loop import Deadlock, run
from holdfast.testing.simulator.mutations import RULES, broken

__all__ = ["RULES", "WORLDS", "Outcome", "replay", "simulate", "sweep"]


class Kind(NamedTuple):
    """A kind of world: what a seed means there, its life, and what must hold."""

    make: Callable[[int], Any]
    world: Callable[[Any, bool], Any]
    check: Callable[[Any, str], list[str]]


WORLDS = {
    "streams": Kind(scenario.make, world.World, invariants.check),
    "tasks": Kind(tasks.make, tasks.TaskWorld, tasks.check),
    "devices": Kind(devices.make, devices.DeviceWorld, devices.check),
}


class Outcome(msgspec.Struct, frozen=True):
    """What came of one seed. ``trace`` is a hash over everything that the services saw."""

    seed: int
    wrong: list[str]
    counts: dict[str, int]
    trace: str
    virtual_s: float


def simulate(seed: int, rule: str | None = None, verbose: bool = False, *, kind: str = "streams") -> Outcome:
    """Live through one seed in the world of a broken rule, or of that kind, and check it."""
    with broken(rule):
        return run(_live(seed, verbose, WORLDS[RULES[rule].world if rule else kind]))


async def _live(seed: int, verbose: bool, kind: Kind) -> Outcome:
    world = kind.world(kind.make(seed), verbose)
    try:
        unfinished = await world.live()
    except Deadlock as error:
        unfinished = str(error)
    wrong = kind.check(world, unfinished)
    trace = hashlib.blake2b(repr(world.log).encode(), digest_size=8).hexdigest()
    return Outcome(seed, wrong, dict(world.counts), trace, world.clock.monotonic())


def replay(seed: int, rule: str | None, kind: str) -> int:
    """One seed with everything that happens, printed."""
    say = sys.stdout.write
    kind = RULES[rule].world if rule else kind
    say(f"{WORLDS[kind].make(seed)}\n")
    outcome = simulate(seed, rule, verbose=True, kind=kind)
    say(f"seed {seed}: {outcome.virtual_s:.1f} s, trace {outcome.trace}, {outcome.counts}\n")
    for wrong in outcome.wrong:
        say(f"VIOLATION {wrong}\n")
    return 1 if outcome.wrong else 0


def _job(work: tuple[int, str | None, str]) -> Outcome:
    seed, rule, kind = work
    return simulate(seed, rule, kind=kind)


def outcomes(first: int, seeds: int, rule: str | None, kind: str, jobs: int) -> Iterator[Outcome]:
    """Outcomes in order of seed."""
    works = [(seed, rule, kind) for seed in range(first, first + seeds)]
    if jobs == 1:
        yield from map(_job, works)
        return
    with multiprocessing.get_context("spawn").Pool(jobs or None) as pool:
        yield from pool.imap(_job, works, chunksize=4)


def sweep(first: int, seeds: int, rule: str | None, kind: str, jobs: int) -> int:
    """Run seeds until one fails; 0 if that is what was to happen."""
    say = sys.stdout.write
    began, counts, ran = time.monotonic(), Counter[str](), 0
    for outcome in outcomes(first, seeds, rule, kind, jobs):
        ran += 1
        counts.update(outcome.counts)
        if outcome.wrong:
            break
    else:
        outcome = None
    took_s = time.monotonic() - began
    say(f"{ran} seeds in {took_s:.1f} s, {ran / took_s:.1f} seeds/s\n")
    for event, count in sorted(counts.items()):
        say(f"  {event}: {count}\n")
    if outcome is None:
        say(f"no violation{f' although {rule!r} is broken' if rule else ''}\n")
        return 1 if rule else 0
    which = f"--break {rule}" if rule else f"--world {kind}"
    again = f"python -m holdfast.testing.simulator --seed {outcome.seed} {which}"
    say(f"seed {outcome.seed} fails; replay it with: {again}\n")
    for wrong in outcome.wrong:
        say(f"  {wrong}\n")
    return 0 if rule else 1
