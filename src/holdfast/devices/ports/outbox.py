"""The outbox store: commands to devices, added in the caller's own transaction, and the heads of their
devices.

Callers only add rows. The owner of a shard, known by the epoch that the store issued, changes them in turns
(:mod:`holdfast.devices.rules.device_turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import msgspec

from holdfast.devices.rules.device_queue import CommandState, HeadPhase, StoredCommand, shard_of
from holdfast.devices.rules.device_turn import Rollout, TurnRequest, TurnResult
from holdfast.errors import Fenced

OnResult = Callable[[Any, StoredCommand], None]
"""Called with the session of the transaction that closes a command, and the command."""


class NewCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be added. See ``Outbox.add`` for the fields. A store sets ``shard`` and ``lane`` by the
    numbers of a prepared outbox.

    ``created_at`` is the caller's time, to which the other times are relative. A store shifts all of them to
    its own clock; with 0 they are by the store's clock already."""

    outbox: str
    device: str
    shard: int
    body: bytes
    lane: int = 0
    priority: int = 0
    not_before: float = 0.0
    expires_at: float | None = None
    dedupe_key: str | None = None
    supersede_key: str | None = None
    trace_id: str = ""
    traceparent: str = ""
    rollout: int | None = None
    created_at: float = 0.0


def on_store_clock(command: NewCommand, now: float) -> NewCommand:
    """Return ``command`` with its times by the store's clock, which is at ``now``."""
    ahead_s = now - command.created_at
    if not command.created_at:
        return command
    return msgspec.structs.replace(
        command,
        created_at=now,
        not_before=command.not_before + ahead_s if command.not_before else 0.0,
        expires_at=None if command.expires_at is None else command.expires_at + ahead_s,
    )


def place_command(command: NewCommand, shards: int, lanes: int) -> NewCommand:
    """Return ``command`` in its place among these numbers of shards and lanes. Its program may assume
    others."""
    key = command.supersede_key
    lane = command.lane if key is None else crc32(key.encode())
    shard = shard_of(command.device, shards)
    if (command.shard, command.lane) == (shard, lane % lanes):
        return command
    return msgspec.structs.replace(command, shard=shard, lane=lane % lanes)


def fenced(outbox: str, shard: int, epoch: int) -> Fenced:
    """Return the error for an owner of another epoch than the current one."""
    return Fenced(f"shard {shard} of outbox {outbox!r} has epoch {epoch}; another node owns it", epoch)


class WriterSettings(msgspec.Struct, frozen=True):
    """The settings of an outbox for programs in other languages, which add commands to its tables."""

    lanes: int = 1
    expires_in_s: float | None = None
    max_body: int = 131_072


class DeviceStatus(msgspec.Struct, frozen=True):
    """The stored state of a device. ``phases`` are its lanes' phases; ``waiting`` counts its open commands,
    up to a thousand; ``seen_at`` is a wall time. ``paused``: the device itself, not its outbox."""

    outbox: str
    device: str
    shard: int
    phases: tuple[HeadPhase, ...]
    waiting: int
    seen_at: float | None
    away: bool
    paused: bool = False


class KnownDevice(msgspec.Struct, frozen=True):
    """A device that has had commands, with its stored presence."""

    device: str
    seen_at: float | None
    away: bool


@runtime_checkable
class Writer(Protocol):
    """A writer of commands in the caller's transaction."""

    def add(self, commands: Sequence[NewCommand]) -> list[int]:
        """Add commands of one outbox, in this order, and return their ids. A command whose ``dedupe_key`` its
        device already has isn't added, and has the id of the existing one."""

    def add_rollout(
        self, outbox: str, name: str, total: int, rate: float | None, abort_share: float, created_at: float
    ) -> int:
        """Add a rollout, and return its id."""

    def cancel(
        self, outbox: str, *, command: int = 0, device: str = "", supersede_key: str | None = None
    ) -> int:
        """Mark scheduled commands as cancelled: the one with this id, or all of a device, of a key, or of
        both. After the commit the next turn closes the ones that are still scheduled. Return how many are
        scheduled, as this transaction sees it; later ones aren't cancelled."""

    def pause(self, outbox: str, device: str, at: float) -> None:
        """Pause a device, or all of the outbox if it is empty. An earlier pause keeps its time."""

    def resume(self, outbox: str, device: str) -> bool:
        """End a pause of exactly this device or outbox; return False without one."""


class OutboxStore(Protocol):
    """The tables of outboxes. Methods raise Unavailable if nothing was changed, and OutcomeUnknown if a
    change may have happened."""

    async def prepare(self, outbox: str, shards: int, settings: WriterSettings = WriterSettings()) -> None:  # noqa: B008
        """Make an outbox ready. Raises ConfigError if it has another number of shards, or the database can't
        be used."""

    async def names(self) -> list[str]:
        """Return the names of the prepared outboxes, in order."""

    async def writer_settings(self, outbox: str) -> WriterSettings | None:
        """Return the settings of the last ``prepare``; None for an outbox that was never prepared."""

    async def describe(self) -> str:
        """Describe the database, its version and the missing tables, in words. Change nothing."""

    async def epochs(self, outbox: str) -> Mapping[int, int]:
        """Return the current epoch of every shard."""

    async def open(self, outbox: str, shard: int, expect: int, member: str) -> int:
        """Issue a higher epoch if ``expect`` is the current one, and return it. Raises Fenced if it isn't."""

    async def known_devices(self, outbox: str, shard: int) -> list[KnownDevice]:
        """Return the devices of a shard that have had commands, with their stored presence."""

    async def in_flight(self, outbox: str, shards: Collection[int]) -> int:
        """Count the lanes of these shards in which an answer is awaited."""

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        """Take a turn. ``on_result`` is called once for each closed command, in the same transaction. If it
        fails, the command closes without it, and a later sweep calls it again.

        If the database has crashed since the last turn, raise Unavailable once: the crash may have undone
        recent turns that closed nothing."""

    async def pending_briefs(self, outbox: str, shards: Collection[int], limit: int) -> list[StoredCommand]:
        """Return closed commands of these shards with pending briefs (``TurnRequest.brief``), in any
        order."""

    async def confirm_briefs(self, outbox: str, sent: Sequence[StoredCommand]) -> None:
        """Delete the pending briefs of these ends. The brief of a later end of the same command stays."""

    async def next_due(self, outbox: str, shards: Sequence[int]) -> float | None:
        """Return the earliest due time (wall time) of a head of these shards, if there is one."""

    async def wait_for_arrival(self, outbox: str, timeout_s: float) -> None:
        """Wait until a command is added to the outbox, or was since the last call, or ``timeout_s`` have
        passed."""

    async def add(self, commands: Sequence[NewCommand]) -> list[int]:
        """Add commands in a transaction of their own."""

    async def fill(
        self, outbox: str, shard: int, epoch: int, source: str, cursor: str, commands: Sequence[NewCommand]
    ) -> None:
        """Add a page of commands and store its ``cursor``, in one transaction. Raises Fenced if ``epoch`` is
        not the shard's."""

    async def cursor(self, outbox: str, source: str) -> str | None:
        """Return the cursor of the last page."""

    async def count_waiting(self, outbox: str, limit: int) -> int:
        """Count the scheduled commands, up to ``limit``."""

    async def commands(
        self,
        outbox: str,
        *,
        after: int = 0,
        limit: int = 100,
        state: CommandState | None = None,
        device: str = "",
        newest: bool = False,
    ) -> list[StoredCommand]:
        """Return commands with an id above ``after``, in order. With ``newest`` the newest come first, and
        those with an id below ``after`` unless that is 0."""

    async def command(self, command: int) -> StoredCommand | None:
        """Return one command."""

    async def retry(self, command: int) -> bool:
        """Schedule a failed or expired command again, without expiry, and correct its rollout's count. Return
        False if it is in another state, its end isn't reported yet, its rollout was aborted, or its device
        has a newer command with its ``supersede_key``, in whatever state."""

    async def cancel(self, command: int) -> bool:
        """Close a scheduled command as failed; return False if it isn't scheduled. The next sweep calls
        ``on_result``."""

    async def cancel_all(self, outbox: str, *, device: str = "", supersede_key: str | None = None) -> int:
        """Cancel the scheduled commands of a device, of a key, or of both, as ``Writer.cancel`` does."""

    async def pause(self, outbox: str, device: str = "") -> None:
        """Send nothing to a device, or to any, until it is resumed. Answers count."""

    async def resume(self, outbox: str, device: str = "") -> bool:
        """End a pause; return False without one."""

    async def paused(self, outbox: str) -> Mapping[str, float]:
        """Return the paused devices, each with the wall time of its pause. An empty name means all
        devices."""

    async def counts(self, outbox: str) -> Mapping[CommandState, int]:
        """Count the commands in each state."""

    async def devices(
        self, outbox: str, *, after: str = "", limit: int = 100, device: str = ""
    ) -> list[DeviceStatus]:
        """Return devices in order, after the device ``after``; or one device."""

    async def rollouts(
        self, outbox: str, *, after: int = 0, limit: int = 100, newest: bool = False
    ) -> list[Rollout]:
        """Return a page of rollouts, as ``commands`` does."""

    async def abort(self, outbox: str, rollout: int) -> bool:
        """Abort a rollout: its scheduled commands fail by the next sweep. Return False if it is unknown, over
        or aborted."""

    async def now(self) -> float:
        """Return the wall time of the database's clock."""

    async def delete_closed(self, outbox: str, before: float, limit: int, *, archive: bool = False) -> int:
        """Delete up to ``limit`` commands that closed before this wall time and whose end is reported, or
        move them to the archive. Return how many; 0 if none is left."""

    async def close(self) -> None:
        """Release connections, and end waiting calls."""
