"""A simulated device: does one command at a time, and behaves as badly as it is told to.

Pure: it takes a command and the time and says what it will say, and when. The same seed gives the same life.
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
"""Takes the device, the command's id and its payload; gives the answer's payload."""


class Behaviour(msgspec.Struct, frozen=True):
    """The behaviour of devices. Shares are from 0 to 1, and of commands unless said otherwise.

    Attributes:
        latency_s: the median time from a command to its answer.
        spread: how far that varies: the sigma of a log-normal distribution, 0 for not at all.
        loss: never heard.
        answer_loss: done, but the answer never arrives.
        duplicate: answered twice.
        late, late_s: answered so much later.
        garbage: answered with what nobody understands.
        foreign: answered with the id of something else: an older command, or none that ever was.
        silent: of the devices, those that never answer.
        crash, crash_s: instead of doing it the device goes away for so long.
        heartbeat_s: signs of life; 0 for none.
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

    @property
    def perfect(self) -> bool:
        """Nothing but prompt answers, one to each command."""
        return msgspec.structs.replace(self, heartbeat_s=0.0, late_s=15.0, crash_s=5.0) == Behaviour()


class ScheduledAnswer(msgspec.Struct, frozen=True):
    """An answer that a device will give, ``after_s`` from now, to the command ``id``. ``last`` ends its work
    on the command that it heard."""

    after_s: float
    id: str
    payload: bytes
    last: bool = False


class Terminal:
    """One device.

    Args:
        work: does what a command's payload says, and gives the answer's payload; it may be asked to do the
            same again. Without one every command is a success.

    Attributes:
        silent: it never answers.
        heard, crowded: commands that came, and how many of them while it was still busy, which it drops.
        at_once: the most that it had to do at any time.
        lost, crashes: commands and answers that were lost, and how often it went away.
    """

    def __init__(self, device: str, behaviour: Behaviour, seed: str, work: Work | None = None) -> None:
        self.device = device
        self.heard = 0
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
        """Return True if it is switched off at this time: it hears and says nothing."""
        return now < self._away_until

    def hear(self, command: str, payload: bytes, now: float) -> list[ScheduledAnswer]:
        """Take a command with the id ``command``, and return the answers that it will give."""
        behaviour, chance = self._behaviour, self._random.random
        if self.away(now) or chance() < behaviour.loss:
            self.lost += 1
            return []
        self.heard += 1
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
        said = [ScheduledAnswer(after_s, command, answer, last=True)]
        if chance() < behaviour.garbage:
            said = [ScheduledAnswer(after_s, "", self._random.randbytes(40), last=True)]
        elif chance() < behaviour.foreign:
            strange = self._random.choice([*self._old[:-1], "0.0.0"])
            said = [ScheduledAnswer(after_s, strange, answer, last=True)]
        elif chance() < behaviour.duplicate:
            said.append(ScheduledAnswer(after_s + self._latency_s(), command, answer))
        self._busy = True
        return said

    def said(self, answer: ScheduledAnswer) -> None:
        """It has said so, or is away by now."""
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
