"""What an owner tells its shell to do. Each command names the event method that takes its answer."""

from __future__ import annotations

import msgspec

from holdfast.common.held import Held, Letter
from holdfast.streams.rules.ledger import Commit
from holdfast.streams.rules.sequencer import Gap


class Peek(msgspec.Struct, frozen=True):
    """Read the checkpoint. Answer: ``peeked``."""


class Open(msgspec.Struct, frozen=True):
    """Open at ``expect``. Answer: ``opened`` or ``open_failed``."""

    expect: int


class CheckClaim(msgspec.Struct, frozen=True):
    """Is the claim still ours? Answer: ``claim_checked``."""


class Reclaim(msgspec.Struct, frozen=True):
    """Claim again if the store shows ``epoch``. Answer: ``claim_checked``."""

    epoch: int | None


class LoadModels(msgspec.Struct, frozen=True):
    """Load the models that the stream declares, before anything of it is counted or run. Answer:
    ``models_loaded``, ``models_failed`` or ``slot_died``."""


class Start(msgspec.Struct, frozen=True):
    """Count an opening that begins ``head``. ``alone``: it has been begun so often that nothing else which
    is suspected may run on this node meanwhile, or it would be blamed too. Answer: ``started`` or
    ``fenced``."""

    head: str
    alone: bool = False


class Run(msgspec.Struct, frozen=True):
    """Run messages in the slot, after opening the handler from ``state`` if ``fresh``.
    Answer: ``ran``, ``load_failed``, ``models_failed``, ``rejected`` or ``slot_died``."""

    messages: tuple[Held, ...]
    fresh: bool
    state: bytes | None
    version: int
    limit: int


class Write(msgspec.Struct, frozen=True):
    """Send the commit, and again unchanged for as long as its outcome is unknown. ``gaps`` are what it passes
    over since nobody brought it in time.
    Answer: ``committed``, ``refused`` or ``fenced``."""

    commit: Commit
    gaps: tuple[Gap, ...] = ()


class Settle(msgspec.Struct, frozen=True):
    """Send the letters; then delete every receipt; then report to senders. Answer: ``settled``, whatever
    the generation. Goes on even after DROPPED: all of it is covered by an accepted commit.

    ``duplicate``: an earlier commit covers the message, and this delivery of it was not needed."""

    letters: tuple[Letter, ...]
    messages: tuple[Held, ...]
    duplicate: bool = False


class Return(msgspec.Struct, frozen=True):
    """Messages that this owner won't handle go back: to their senders, own ones to the router."""

    messages: tuple[Held, ...]


class Transfer(msgspec.Struct, frozen=True):
    """Hand the claim to ``target``. Answer: ``transferred``."""

    target: str


class HandOff(msgspec.Struct, frozen=True):
    """Forward what is held, if anything, to the new owner, into custody; foreign ones are sent back to their
    senders. Whoever asks for the stream is told where it went."""

    target: str
    messages: tuple[Held, ...]


class Release(msgspec.Struct, frozen=True):
    """Give up the claim. Answer: ``released``."""


class Dropped(msgspec.Struct, frozen=True):
    """The end: forget this owner."""


Command = (
    Peek
    | Open
    | CheckClaim
    | Reclaim
    | LoadModels
    | Start
    | Run
    | Write
    | Settle
    | Return
    | Transfer
    | HandOff
    | Release
    | Dropped
)
