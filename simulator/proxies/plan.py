"""Which fault strikes which call: rules, and dice that fall the same for the same seed."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec

T = TypeVar("T")


class CallFault(enum.Enum):
    """What may happen to a call. Those up to CUT befall any service over HTTP, the others SQS alone."""

    RESET = "reset"
    """The connection is reset before the service sees the call."""
    LOSE_REPLY = "lose-reply"
    """The call has its effect, then the connection is reset without an answer."""
    THROTTLE = "throttle"
    """Refused for too many calls, with status 400 or 503."""
    EXPIRE = "expire"
    """Refused, for the credentials are said to have expired."""
    ERROR = "error"
    """HTTP 500, and no effect."""
    ERROR_DONE = "error-done"
    """HTTP 500 after the call had its effect."""
    SLOW = "slow"
    """The answer comes ``delay_s`` later."""
    CUT = "cut"
    """The connection ends in the middle of the answer's body."""

    DUPLICATE = "duplicate"
    """A received message is delivered once more, under a receipt of its own; both receipts work."""
    REORDER = "reorder"
    """The messages of a receive come in another order."""
    NOT_IN_FLIGHT = "not-in-flight"
    """A change of visibility is refused with MessageNotInflight, as for a delivery that has lapsed."""
    FAIL_ENTRIES = "fail-entries"
    """Entries of a batch fail; the others are done."""
    FAIL_ENTRIES_DONE = "fail-entries-done"
    """Entries of a batch are done, and said to have failed."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a fault strikes, and how.

    Attributes:
        fault: what happens.
        operation: the calls it befalls, by name or pattern, such as ``ReceiveMessage`` or ``*Batch``.
        probability: of each such call.
        times: how often at most; None for no limit. With the probability 1 these are "the next n".
        share: of the messages or entries of a call that is struck, how many are: one at least.
        delay_s: how late a SLOW answer is.
        status: of the answer to THROTTLE and EXPIRE.
        code: the service's error code; "" for the one that fits the fault.
        sender_fault: what FAIL_ENTRIES and FAIL_ENTRIES_DONE say about whose fault it was.
    """

    fault: CallFault
    operation: str = "*"
    probability: float = 1.0
    times: int | None = None
    share: float = 0.5
    delay_s: float = 0.2
    status: int = 400
    code: str = ""
    sender_fault: bool = False


class Struck(msgspec.Struct, frozen=True):
    """One line of the log: the fault that struck the ``number``-th call, counted from 1."""

    number: int
    operation: str
    fault: CallFault


class Hit:
    """A fault that strikes, its rule, and dice of its own."""

    def __init__(self, rule: Rule, dice: random.Random) -> None:
        self.rule = rule
        self.dice = dice

    def some(self, things: Iterable[T]) -> list[T]:
        """The share of them that is struck."""
        every = list(things)
        chosen = [thing for thing in every if self.dice.random() < self.rule.share]
        return chosen or (every and [self.dice.choice(every)])

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """All of them in another order, where there is one."""
        if len(things) < 2:
            return list(things)
        turned = self.dice.randrange(1, len(things))
        mixed = [*things[turned:], *things[:turned]]
        head, tail = mixed[:1], mixed[1:]
        self.dice.shuffle(tail)
        return head + tail


class FaultPlan:
    """The rules in force, and what came of them.

    Whether a rule strikes depends on the seed, the rule's place and how many calls it was asked about, and
    on nothing else: the same calls in the same order meet the same faults.
    """

    def __init__(self, rules: Iterable[Rule] = (), seed: int = 0) -> None:
        self.seed = seed
        self.log: list[Struck] = []
        self.rules = list(rules)

    @property
    def rules(self) -> list[Rule]:
        """The rules; setting them starts their counts anew."""
        return self._rules

    @rules.setter
    def rules(self, rules: Iterable[Rule]) -> None:
        self._rules = list(rules)
        self._asked = [0] * len(self._rules)
        self._left = [math.inf if rule.times is None else rule.times for rule in self._rules]

    def add(self, *rules: Rule) -> None:
        """Have more rules, and leave the counts of the others."""
        for rule in rules:
            self._rules.append(rule)
            self._asked.append(0)
            self._left.append(math.inf if rule.times is None else rule.times)

    def strike(self, fault: CallFault, operation: str, number: int) -> Hit | None:
        """The first rule that has this fault strike now, if any does."""
        for place, rule in enumerate(self._rules):
            if rule.fault is not fault or not self._left[place] or not fnmatchcase(operation, rule.operation):
                continue
            self._asked[place] += 1
            dice = random.Random(f"{self.seed}/{place}/{self._asked[place]}")  # noqa: S311 - repeatable
            if dice.random() < rule.probability:
                self._left[place] -= 1
                self.log.append(Struck(number, operation, fault))
                return Hit(rule, dice)
        return None
