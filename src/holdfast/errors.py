"""The errors of Holdfast, in one hierarchy that says what the caller may do next.

=====================  ==========  ==========================================================
error                  retry       meaning
=====================  ==========  ==========================================================
ConfigError            NEVER       a setting is wrong; the text names it and the fix
NoDatabase             NEVER       the file of a database doesn't exist, and a read makes none
LoginRefused           NEVER       a service refuses the credentials, or can't prove who it is
AlreadyThere           NEVER       a file of that name exists, and must not be replaced
InvalidMessage         NEVER       a message can't be understood; it becomes a dead letter
TooLarge               NEVER       a message, state or result is over a stated limit
ValueLost              NEVER       an object that holds a large body or result is gone, or is damaged
UnsupportedStore       NEVER       a database file can't be used (newer schema, network disk)
OperationRefused       NEVER       an operator's request isn't possible in the present state
NotKnown               NEVER       an operator named something that doesn't exist
EffectRefused          NEVER       the target of an effect never takes it; it becomes a dead letter
Unavailable            SAFE        nothing happened; the same call may be made again
NobodyThere            SAFE        the same, because no process listens at a node's address
NoRoom                 SAFE        a service's disk or quota is full
Damaged                SAFE        a service lost or changed bytes; nothing was put in place
NotOwner               SAFE        a client's request came to the wrong node; it names the owner
Busy                   SAFE        a stream or a target has no room for the moment
TargetAway             SAFE        a stream accepts no message while a target takes none of its effects
NoQuery                NEVER       a stream answers no queries
ReaderLost             STOP        another program reads results under the same name
ResultsExpired         NEVER       results may have expired before their reader read them
TaskFailed             NEVER       a task whose result is asked for didn't succeed
QueryFailed            NEVER       the handler failed at a query, or tried to change something
OutcomeUnknown         SAME        it may have happened; repeat the very same call or reopen
Fenced                 STOP        a newer epoch or commit exists; this opening is over
ClaimLost              STOP        the claim is another's, or at another version
MembershipLost         STOP        the coordinator doesn't know this membership
StateRejected          STOP        checkpointed state doesn't load; the stream parks
SetAside               NEVER       the message was skipped and is a dead letter
HandlerFailed          SAFE        user code raised; the head is tried again, with backoff
ModelFailed            SAFE        a model doesn't load on this node; no message spends a try
SlotDied               SAFE        the child process is gone; its streams restore elsewhere
=====================  ==========  ==========================================================
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import ClassVar


class Retry(enum.Enum):
    """The caller's options after an error: call again, repeat the same call, stop, or never repeat."""

    SAFE = "safe"
    SAME = "same"
    STOP = "stop"
    NEVER = "never"


class HoldfastError(Exception):
    """The base of all errors. ``retry`` says what the caller may do next."""

    retry: ClassVar[Retry] = Retry.NEVER


class ConfigError(HoldfastError):
    """A setting is missing, malformed or contradicts another."""


class NoDatabase(ConfigError):
    """The database file at ``path`` doesn't exist, and a command that only reads makes none."""

    def __init__(self, path: Path, advice: str) -> None:
        super().__init__(f"database file {path} doesn't exist: {advice}")
        self.path = path


class LoginRefused(ConfigError):
    """A service refuses the user, password or key, or its host key or certificate isn't the expected one. The
    text names the credential or the setting, never the secret."""


class AlreadyThere(HoldfastError):
    """A file of that name is already at the destination, and the caller asked not to replace it."""


class InvalidMessage(HoldfastError):
    """A message can't be understood. ``field`` names the field that is missing or wrong, if known."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field


class TooLarge(HoldfastError):
    """Something is over a limit; the text names the limit and its setting."""


class ValueLost(HoldfastError):
    """An object that holds the body of a message, or the body or the result of a task, is gone, or isn't what
    was stored. The text names it."""


class UnsupportedStore(HoldfastError):
    """A database file can't be used safely by this version or on this file system."""


class OperationRefused(HoldfastError):
    """An operator's request isn't possible in the present state; the text says why."""


class NotKnown(OperationRefused):
    """An operator named something that isn't there: no such stream, node, task or dead letter."""


class EffectRefused(HoldfastError):
    """A target will never take an effect, so the effect becomes a dead letter. The text says why."""


class Unavailable(HoldfastError):
    """A service can't be reached or is busy; nothing happened."""

    retry = Retry.SAFE


class TakesNoWrites(Unavailable):
    """A database answers and accepts no writes: it is a standby, or read only for now."""


class Damaged(Unavailable):
    """A service lost or changed the bytes that it was sent. Nothing was put in place, so they may be sent
    again."""


class NoRoom(Unavailable):
    """A service has no room for more: a disk or a quota is full."""


class NobodyThere(Unavailable):
    """A connection to a node was refused: no process listens at its address. This is evidence that the node
    is dead; any other ``Unavailable`` is not."""


class NotOwner(Unavailable):
    """Another node owns the stream. ``member``, ``address`` and ``epoch`` describe the owner as far as this
    node knows, else they are empty and 0. The epoch may be higher by now."""

    def __init__(self, text: str, member: str = "", address: str = "", epoch: int = 0) -> None:
        super().__init__(text)
        self.member = member
        self.address = address
        self.epoch = epoch


class Busy(Unavailable):
    """The stream's inbox is full, or a target has no room. Try again after ``retry_after_s``."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class TargetAway(Unavailable):
    """Too many effects of the stream wait for a target that doesn't take them, so no message is handled. Try
    again after ``retry_after_s``, with the same seq."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class QueryFailed(HoldfastError):
    """The handler raised an error at a query, asked for effects or timers, or ended its slot. Nothing has
    changed."""


class NoQuery(QueryFailed):
    """The stream's handler has no ``query``."""


class OutcomeUnknown(HoldfastError):
    """A call may or may not have taken effect; only the same call may be repeated."""

    retry = Retry.SAME


class Fenced(HoldfastError):
    """The state store refused an open, start or commit, because a later opening or commit exists. ``epoch``
    is the present epoch at the store.
    """

    retry = Retry.STOP

    def __init__(self, text: str, epoch: int) -> None:
        super().__init__(text)
        self.epoch = epoch


class ClaimLost(HoldfastError):
    """The claim belongs to another membership, or has another version than its holder believed."""

    retry = Retry.STOP


class MembershipLost(HoldfastError):
    """The coordinator doesn't know the membership (lapsed, evicted or forgotten)."""

    retry = Retry.STOP


class ReaderLost(HoldfastError):
    """Another program has begun to read a stream's results under the same name."""

    retry = Retry.STOP


class TaskFailed(HoldfastError):
    """A task whose result is asked for didn't succeed. ``outcome`` says why."""

    def __init__(self, text: str, outcome: object) -> None:
        super().__init__(text)
        self.outcome = outcome


class ResultsExpired(HoldfastError):
    """Results may have expired before their named reader read them."""


class StateRejected(HoldfastError):
    """Checkpointed state can't be loaded by this version of the handler."""

    retry = Retry.STOP


class SetAside(HoldfastError):
    """A commit has skipped the message, because it failed too often or came too late. The text says why."""


class HandlerFailed(HoldfastError):
    """The user's code raised an error, or returned a value that can't be stored.

    ``permanent`` is true if no retry can help, such as for a message that doesn't fit its declared type.
    ``detail`` is the traceback, or the stack of the child process that hung.
    """

    retry = Retry.SAFE

    def __init__(self, text: str, *, permanent: bool = False, detail: str = "") -> None:
        super().__init__(text)
        self.permanent = permanent
        self.detail = detail


class ModelFailed(HandlerFailed):
    """A model doesn't load in a slot: its file is missing or a different one, or there is not enough memory.
    The cause is the node, so it counts as no message's try. ``model`` is the model's name."""

    def __init__(self, text: str, model: str, *, detail: str = "") -> None:
        super().__init__(text, detail=detail)
        self.model = model


class SlotDied(HoldfastError):
    """A slot's process ended while it was needed. ``detail`` has the known cause."""

    retry = Retry.SAFE

    def __init__(self, text: str, *, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail
