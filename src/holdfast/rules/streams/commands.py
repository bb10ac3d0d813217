"""The commands of an owner to its shell, and the agenda on which its parts put them.

The docstring of a command names the event method that takes the answer.
"""

from __future__ import annotations

import msgspec

from holdfast.common.acts import Effect
from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.rules.streams.backlog import Reserve, Take, Unreserve
from holdfast.rules.streams.ledger import Commit
from holdfast.rules.streams.sequencer import Gap


class Peek(msgspec.Struct, frozen=True):
    """Read the checkpoint. Answer: ``peeked``."""


class Open(msgspec.Struct, frozen=True):
    """Open at ``expect``. Answer: ``opened`` or ``open_failed``."""

    expect: int


class CheckClaim(msgspec.Struct, frozen=True):
    """Check whether the claim is still ours. Answer: ``claim_checked``."""


class Reclaim(msgspec.Struct, frozen=True):
    """Claim again if the store shows ``epoch``. Answer: ``claim_checked``."""

    epoch: int | None


class LoadModels(msgspec.Struct, frozen=True):
    """Load the models that the stream declares, before a start is counted or a message runs. Answer:
    ``models_loaded``, ``models_failed`` or ``slot_died``."""


class Start(msgspec.Struct, frozen=True):
    """Count an opening that begins ``head``. ``alone``: the head was begun so often that no other suspect may
    run on this node meanwhile, or the other could be blamed too. ``last``: if this opening ends with it too,
    the head is passed over as poison, so nothing else at all may run meanwhile. Answer: ``started`` or
    ``fenced``."""

    head: str
    alone: bool = False
    last: bool = False


class Run(msgspec.Struct, frozen=True):
    """Run messages in the slot. If ``fresh``, open the handler from ``state`` first. Answer: ``ran``,
    ``load_failed``, ``models_failed``, ``rejected`` or ``slot_died``."""

    messages: tuple[Held, ...]
    fresh: bool
    state: bytes | None
    version: int
    limit: int


class Write(msgspec.Struct, frozen=True):
    """Send the commit, and repeat it unchanged while its outcome is unknown. ``gaps`` are the missing seqs
    that it skips because they didn't come in time. Answer: ``committed``, ``refused`` or ``fenced``."""

    commit: Commit
    gaps: tuple[Gap, ...] = ()


class HandOver(msgspec.Struct, frozen=True):
    """Send a run of effects with one target and key, which accepted commits hold, to their target, as many
    of the first as it takes together; or send one to the dead letters if it was refused. Answer, at any time,
    for the first effect: ``effects_taken``, ``effect_refused`` or ``effect_failed``."""

    effects: tuple[Effect, ...]


class RefuseRequests(msgspec.Struct, frozen=True):
    """Answer clients that their requests aren't handled now: ``pending`` effects wait, the longest for
    ``target``. They may try again after ``retry_after_s``."""

    requests: tuple[Receipt, ...]
    target: str
    pending: int
    retry_after_s: float


class Settle(msgspec.Struct, frozen=True):
    """Send the dead letters, then delete every receipt, then report to senders. Answer: ``settled``, in any
    generation. It goes on even after DROPPED, because an accepted commit covers all of it.

    ``duplicate``: an earlier commit covers the message, so this delivery of it was not needed."""

    letters: tuple[PendingDeadLetter, ...]
    messages: tuple[Held, ...]
    duplicate: bool = False


class Return(msgspec.Struct, frozen=True):
    """Give back messages that this owner won't handle: foreign ones to their senders, this node's to the
    router."""

    messages: tuple[Held, ...]


class PutBack(msgspec.Struct, frozen=True):
    """Put messages of a reserved key back to the queue before the stream leaves, so that the next owner takes
    them in order. Answer: ``were_put_back``."""

    messages: tuple[Held, ...]


class Transfer(msgspec.Struct, frozen=True):
    """Transfer the claim to ``target``. Answer: ``transferred``."""

    target: str


class HandOff(msgspec.Struct, frozen=True):
    """Forward held messages to the new owner and keep custody of them; foreign ones go back to their senders.
    Requests for the stream are from now on referred to the new owner."""

    target: str
    messages: tuple[Held, ...]


class Release(msgspec.Struct, frozen=True):
    """Release the claim. Answer: ``released``."""


class Dropped(msgspec.Struct, frozen=True):
    """Forget this owner, which is at its end."""


Command = (
    Peek
    | Open
    | CheckClaim
    | Reclaim
    | LoadModels
    | Start
    | Run
    | Write
    | HandOver
    | RefuseRequests
    | Settle
    | Return
    | Reserve
    | Take
    | Unreserve
    | PutBack
    | Transfer
    | HandOff
    | Release
    | Dropped
)


class Agenda:
    """The commands and the clock of one owner, shared by its parts."""

    __slots__ = ("commands", "settling", "wake_at", "wall_ahead_s")

    def __init__(self) -> None:
        self.commands: list[Command] = []
        """The commands that the shell hasn't taken yet, in order."""
        self.settling = 0
        """The number of settlements without an answer."""
        self.wake_at: float | None = None
        """The monotonic time to call ``ticked``; None if only another event changes anything."""
        self.wall_ahead_s = 0.0
        """The difference of the wall clock to monotonic time, in seconds."""

    def wake(self, at: float) -> None:
        """Have the owner called at ``at``, or earlier."""
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)
