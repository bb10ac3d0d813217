"""Runs seeds, in this process or over all cores, and says what came of them."""

from __future__ import annotations

import hashlib
import multiprocessing
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simulator import acting, archiving, devices, invariants, scenario, tasks, upkeep, world
from simulator.loop import Deadlock, run
from simulator.mutations import RULES, broken

__all__ = ["RULES", "WORLDS", "SeedOutcome", "replay", "simulate", "sweep"]

FRESH_MAX = 10**12
"""Below it lie the first seeds of fresh sweeps."""


class WorldKind(NamedTuple):
    """A kind of world: what a seed means there, its life, and what must hold."""

    make: Callable[[int], Any]
    world: Callable[[Any, bool], Any]
    check: Callable[[Any, str], list[str]]


WORLDS = {
    "streams": WorldKind(scenario.make, world.World, invariants.check),
    "acting": WorldKind(acting.make, acting.ActingWorld, acting.check),
    "upkeep": WorldKind(upkeep.make, upkeep.UpkeepWorld, upkeep.check),
    "archiving": WorldKind(archiving.make, archiving.ArchivingWorld, archiving.check),
    "tasks": WorldKind(tasks.make, tasks.TaskWorld, tasks.check),
    "devices": WorldKind(devices.make, devices.DeviceWorld, devices.check),
}


class SeedOutcome(msgspec.Struct, frozen=True):
    """What came of one seed. ``trace`` is a hash over everything that the services saw."""

    seed: int
    wrong: list[str]
    counts: dict[str, int]
    trace: str
    virtual_s: float


def simulate(
    seed: int, rule: str | None = None, verbose: bool = False, *, kind: str = "streams"
) -> SeedOutcome:
    """Live through one seed in the world of a broken rule, or of that kind, and check it."""
    with broken(rule):
        try:
            return run(_live(seed, verbose, WORLDS[RULES[rule].world if rule else kind]))
        except Deadlock as error:
            return SeedOutcome(seed, [str(error)], {}, "", 0.0)


async def _live(seed: int, verbose: bool, kind: WorldKind) -> SeedOutcome:
    world = kind.world(kind.make(seed), verbose)
    unfinished = await world.live()
    wrong = kind.check(world, unfinished)
    trace = hashlib.blake2b(repr(world.log).encode(), digest_size=8).hexdigest()
    return SeedOutcome(seed, wrong, dict(world.counts), trace, world.clock.monotonic())


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


def _one(work: tuple[int, str | None, str]) -> SeedOutcome:
    seed, rule, kind = work
    return simulate(seed, rule, kind=kind)


def outcomes(seeds: Iterable[int], rule: str | None, kind: str, jobs: int) -> Iterator[SeedOutcome]:
    """Outcomes in order of seed."""
    works = [(seed, rule, kind) for seed in seeds]
    if jobs == 1:
        yield from map(_one, works)
        return
    with multiprocessing.get_context("spawn").Pool(jobs or None) as pool:
        yield from pool.imap(_one, works, chunksize=4)


def fresh() -> int:
    """A first seed far from all that were run before, and from those of any other sweep."""
    return secrets.randbelow(FRESH_MAX)


def kept(path: Path, kind: str) -> list[int]:
    """The seeds of a kind of world that failed in earlier sweeps, as ``keep`` wrote them down."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(seed) for world, seed in map(str.split, lines) if world == kind]


def keep(path: Path, kind: str, seed: int) -> None:
    """Write down a seed that failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(f"{kind} {seed}\n")


def sweep(
    first: int, seeds: int, rule: str | None, kind: str, jobs: int, failures: Path | None = None
) -> int:
    """Run seeds until one fails; 0 if that is what was to happen. With ``failures``, a file: first those that
    failed before, then all, and those that fail now are written down there."""
    say = sys.stdout.write
    before = kept(failures, kind) if failures else []
    began, counts, ran, failed = time.monotonic(), Counter[str](), 0, 0
    for outcome in outcomes([*before, *range(first, first + seeds)], rule, kind, jobs):
        ran += 1
        counts.update(outcome.counts)
        if outcome.wrong:
            failed += 1
            _tell(outcome, rule, kind)
            if failures is None:
                break
            if outcome.seed not in before:
                keep(failures, kind, outcome.seed)
    took_s = time.monotonic() - began
    say(f"{ran} seeds from {first} on in {took_s:.1f} s, {ran / took_s:.1f} seeds/s\n")
    for event, count in sorted(counts.items()):
        say(f"  {event}: {count}\n")
    if failed:
        return 0 if rule else 1
    say(f"no violation{f' although {rule!r} is broken' if rule else ''}\n")
    return 1 if rule else 0


def _tell(outcome: SeedOutcome, rule: str | None, kind: str) -> None:
    which = f"--break {rule}" if rule else f"--world {kind}"
    again = f"python -m simulator --seed {outcome.seed} {which}"
    sys.stdout.write(f"seed {outcome.seed} fails; replay it with: {again}\n")
    for wrong in outcome.wrong:
        sys.stdout.write(f"  {wrong}\n")
    sys.stdout.flush()
