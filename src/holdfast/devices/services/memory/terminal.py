"""A simulated device, which does one command at a time and behaves as badly as configured.

It takes a command and the time, and returns the answers that it will give, without I/O. The same seed gives
the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import msgspec

from holdfast.errors import ConfigError

MEMORY = 64
"""Ids of commands that a device remembers, to answer old ones."""

Work = Callable[[str, str, bytes], bytes]
"""Returns the answer's payload, given the device, the command's id and its payload."""


class Behaviour(msgspec.Struct, frozen=True):
    """The behaviour of devices. Shares are from 0 to 1, of commands unless noted otherwise.

    Attributes:
        latency_s: the median time from a command to its answer.
        spread: the sigma of that time's log-normal distribution; 0 for a constant time.
        loss: the share that is lost before the device.
        answer_loss: the share whose answer is lost.
        duplicate: the share that is answered twice.
        late, late_s: the share that is answered later, and the delay.
        garbage: the share that is answered with random bytes.
        foreign: the share that is answered with the id of an older command, or of none.
        silent: the share of devices that never answer.
        crash, crash_s: the share at which the device goes away instead, and for how long.
        heartbeat_s: the interval of heartbeats; 0 for none.
    """

    latency_s: float = 0.0
    spread: float = 0.0
    loss: float = 0.0
    answer_loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    late_s: float = 15.0
    garbage: float = 0.0
    foreign: float = 0.0
    silent: float = 0.0
    crash: float = 0.0
    crash_s: float = 5.0
    heartbeat_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "answer_loss", "duplicate", "late", "garbage", "foreign", "silent", "crash"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a share from 0 to 1, not {getattr(self, name)}")
        for name in ("latency_s", "spread", "late_s", "crash_s", "heartbeat_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} can't be below 0, but is {getattr(self, name)}")


class ScheduledAnswer(msgspec.Struct, frozen=True):
    """An answer to the command ``id`` that a device gives after ``after_s``. ``last`` ends its work on the
    command that it received."""

    after_s: float
    id: str
    payload: bytes
    last: bool = False


class Terminal:
    """One device.

    Args:
        work: carries out a command, and returns the answer's payload. It may get the same command again.
            Without it every command is a success.

    Attributes:
        silent: it never answers.
        received, crowded: commands that came, and the ones that came while it was busy, which it drops.
        at_once: the most commands that it had at a time.
        lost, crashes: lost commands and answers, and how often it went away.
    """

    def __init__(self, device: str, behaviour: Behaviour, seed: str, work: Work | None = None) -> None:
        self.device = device
        self.received = 0
        self.lost = 0
        self.crashes = 0
        self.crowded = 0
        self.at_once = 0
        self._behaviour = behaviour
        self._random = Random(f"{seed}/{device}")  # noqa: S311 (to play, not to hide)
        self._work = work or _success
        self.silent = self._random.random() < behaviour.silent
        self._busy = False
        self._away_until = -math.inf
        self._old: list[str] = []

    def away(self, now: float) -> bool:
        """Return whether it is switched off at this time."""
        return now < self._away_until

    def receive(self, command: str, payload: bytes, now: float) -> list[ScheduledAnswer]:
        """Take a command, and return the answers that the device will give."""
        behaviour, chance = self._behaviour, self._random.random
        if self.away(now) or chance() < behaviour.loss:
            self.lost += 1
            return []
        self.received += 1
        self.at_once = max(self.at_once, 1 + self._busy)
        if self._busy:
            self.crowded += 1
            return []
        if chance() < behaviour.crash:
            self._away_until = now + behaviour.crash_s
            self.crashes += 1
            return []
        answer = self._work(self.device, command, payload)
        self._remember(command)
        if self.silent:
            return []
        if chance() < behaviour.answer_loss:
            self.lost += 1
            return []
        after_s = self._latency_s()
        if chance() < behaviour.late:
            return [ScheduledAnswer(after_s + behaviour.late_s, command, answer)]
        answers = [ScheduledAnswer(after_s, command, answer, last=True)]
        if chance() < behaviour.garbage:
            answers = [ScheduledAnswer(after_s, "", self._random.randbytes(40), last=True)]
        elif chance() < behaviour.foreign:
            foreign = self._random.choice([*self._old[:-1], "0.0.0"])
            answers = [ScheduledAnswer(after_s, foreign, answer, last=True)]
        elif chance() < behaviour.duplicate:
            answers.append(ScheduledAnswer(after_s + self._latency_s(), command, answer))
        self._busy = True
        return answers

    def finish(self, answer: ScheduledAnswer) -> None:
        """Note that an answer was given, or dropped because the device is away."""
        if answer.last:
            self._busy = False

    def _latency_s(self) -> float:
        latency_s = self._behaviour.latency_s
        if latency_s and self._behaviour.spread:
            latency_s *= self._random.lognormvariate(0.0, self._behaviour.spread)
        return latency_s

    def _remember(self, command: str) -> None:
        self._old.append(command)
        del self._old[:-MEMORY]


def _success(device: str, command: str, payload: bytes) -> bytes:
    return msgspec.json.encode({"messageId": command, "code": 200})
