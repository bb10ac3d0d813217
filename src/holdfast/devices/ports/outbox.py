"""The outbox store: commands to devices, written in the caller's own transaction, and their devices' heads.

Callers only ever add rows. The owner of a shard, known by the epoch that the store issued, changes them, in
turns (:mod:`holdfast.devices.rules.device_turn`): one transaction for answers, results, next heads and what
goes out.
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
"""Called in the transaction that closes a command, with what that transaction is written with."""


class NewCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be added. See ``Outbox.add`` for the fields; ``shard`` and ``lane`` follow from them, and
    from the numbers of these with which the outbox was made ready, once it was.

    ``created_at`` is what the caller's clock says; its other times are meant from then on. That clock may be
    wrong: a store moves all of them by as much as its own is ahead of it. With 0 they are the store's own."""

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
    """``command`` as it is stored ``now``, which is what the store's clock says."""
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
    """Return ``command`` where an outbox with so many shards and lanes has it, whatever its program says."""
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
    """The settings of an outbox that programs in other languages need, to add commands to its tables."""

    lanes: int = 1
    expires_in_s: float | None = None
    max_body: int = 131_072


class DeviceStatus(msgspec.Struct, frozen=True):
    """The known state of a device. ``phases`` are those of its lanes; ``waiting`` counts its commands that
    are not closed, up to a thousand; ``seen_at`` is a wall time, as of which it was there or ``away``.
    ``paused``: it alone, whatever its outbox is."""

    outbox: str
    device: str
    shard: int
    phases: tuple[HeadPhase, ...]
    waiting: int
    seen_at: float | None
    away: bool
    paused: bool = False


class KnownDevice(msgspec.Struct, frozen=True):
    """A device that has had commands: when it was last seen, if ever, and whether it was ``away`` then."""

    device: str
    seen_at: float | None
    away: bool


@runtime_checkable
class Writer(Protocol):
    """A writer of commands in somebody's transaction. Where only a connection of a database is given, an
    adapter makes a writer of it."""

    def add(self, commands: Sequence[NewCommand]) -> list[int]:
        """Add commands of one outbox, in this order; returns their ids. One whose ``dedupe_key`` its device
        has already is not added: its id is that of the standing one."""

    def add_rollout(
        self, outbox: str, name: str, total: int, rate: float | None, abort_share: float, created_at: float
    ) -> int:
        """Add a rollout that commands may name; returns its id."""

    def cancel(
        self, outbox: str, *, command: int = 0, device: str = "", supersede_key: str | None = None
    ) -> int:
        """Ask for scheduled commands back: the one with this id, or those of a device, of a key, or of both.
        Once this is committed the next turn lets those fail that aren't out by then. Returns how many are
        scheduled, as this transaction sees it; what is added later isn't meant."""

    def pause(self, outbox: str, device: str, at: float) -> None:
        """Have nothing sent to a device from now on, or to any of the outbox if that is empty. What has been
        paused already stays so."""

    def resume(self, outbox: str, device: str) -> bool:
        """End a pause, exactly as it was made; False if there is none."""


class OutboxStore(Protocol):
    """The table of commands, and the heads of their devices. Methods raise Unavailable where nothing
    happened, and OutcomeUnknown where a change may have."""

    async def prepare(self, outbox: str, shards: int, settings: WriterSettings = WriterSettings()) -> None:  # noqa: B008
        """Make an outbox ready. Raises ConfigError if it has another number of shards, or the database
        can't be used."""

    async def names(self) -> list[str]:
        """The names of the outboxes that were made ready, in order."""

    async def writer_settings(self, outbox: str) -> WriterSettings | None:
        """Return what ``prepare`` was last told; None for an outbox that was never made ready."""

    async def describe(self) -> str:
        """Describe in words what holds the tables, its version, and which are missing. Change nothing."""

    async def epochs(self, outbox: str) -> Mapping[int, int]:
        """The standing epoch of every shard."""

    async def open(self, outbox: str, shard: int, expect: int, member: str) -> int:
        """Issue a higher epoch if ``expect`` stands, and return it. Raises Fenced if another does."""

    async def known_devices(self, outbox: str, shard: int) -> list[KnownDevice]:
        """The devices of a shard that have had commands, and how they were when it was last stored."""

    async def in_flight(self, outbox: str, shards: Collection[int]) -> int:
        """Count the lanes of devices of these shards in which an answer is waited for."""

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        """Take a turn. ``on_result`` is called once for each command that closes, in the same transaction;
        where it fails, the command closes without it, and a later sweep calls it again.

        Where the database has crashed since the last turn, however that was noticed, it raises Unavailable
        once: the crash may have taken back turns of the last moments that closed nothing."""

    async def pending_briefs(self, outbox: str, shards: Collection[int], limit: int) -> list[StoredCommand]:
        """Closed commands of these shards whose end is to be told as a brief (``TurnRequest.brief``), in any
        order. They stand until ``briefed``, whoever dies."""

    async def confirm_briefs(self, outbox: str, told: Sequence[StoredCommand]) -> None:
        """Forget that these ends are to be told. A later end of the same command isn't meant."""

    async def next_due(self, outbox: str, shards: Sequence[int]) -> float | None:
        """The wall time at which a head of these shards is due, if any is."""

    async def wait_for_arrival(self, outbox: str, timeout_s: float) -> None:
        """Wait until commands have been added to the outbox by anybody, or ``timeout_s`` at most. An
        addition since the last call ends it at once."""

    async def add(self, commands: Sequence[NewCommand]) -> list[int]:
        """Add commands in a transaction of their own."""

    async def fill(
        self, outbox: str, shard: int, epoch: int, source: str, cursor: str, commands: Sequence[NewCommand]
    ) -> None:
        """Add a page of commands and keep its ``cursor``, in one transaction. Raises Fenced if ``epoch`` is
        not the shard's."""

    async def cursor(self, outbox: str, source: str) -> str | None:
        """The cursor that the last page left."""

    async def count_waiting(self, outbox: str, limit: int) -> int:
        """Return how many commands are scheduled; count no further than ``limit``."""

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
        """Commands with an id above ``after``, in order; the ``newest`` first if so asked, and then those
        with an id below ``after``, unless that is 0."""

    async def command(self, command: int) -> StoredCommand | None:
        """One command."""

    async def retry(self, command: int) -> bool:
        """Schedule a failed or expired command anew, without expiry; its rollout counts it as failed no more.
        False if it is neither, its end is yet to be told, its rollout was aborted, or its device has a newer
        command with its ``supersede_key``, whatever has become of that one."""

    async def cancel(self, command: int) -> bool:
        """Let a scheduled command fail, for its rollout too; False if it isn't. ``on_result`` hears of it
        in the next sweep."""

    async def cancel_all(self, outbox: str, *, device: str = "", supersede_key: str | None = None) -> int:
        """Ask for the scheduled commands of a device, of a key, or of both, as ``Writer.cancel`` does."""

    async def pause(self, outbox: str, device: str = "") -> None:
        """Have nothing sent to a device, or to any, until it is resumed; answers are heard as ever."""

    async def resume(self, outbox: str, device: str = "") -> bool:
        """End that pause; False if there is none."""

    async def paused(self, outbox: str) -> Mapping[str, float]:
        """The devices that are paused, each with the wall time since when; an empty name is all of them."""

    async def counts(self, outbox: str) -> Mapping[CommandState, int]:
        """Count the commands in each state."""

    async def devices(
        self, outbox: str, *, after: str = "", limit: int = 100, device: str = ""
    ) -> list[DeviceStatus]:
        """Devices in order, after the device ``after``; or one."""

    async def rollouts(
        self, outbox: str, *, after: int = 0, limit: int = 100, newest: bool = False
    ) -> list[Rollout]:
        """Rollouts with an id above ``after``, in order; the ``newest`` first if so asked, and then those
        with an id below ``after``, unless that is 0."""

    async def abort(self, outbox: str, rollout: int) -> bool:
        """Send nothing more of a rollout: what of it is scheduled fails by the next sweep. What is out may
        still succeed. False if there is no such rollout, or it is over or aborted."""

    async def now(self) -> float:
        """The wall time of the database's clock."""

    async def delete_closed(self, outbox: str, before: float, limit: int, *, archive: bool = False) -> int:
        """Drop up to ``limit`` commands that closed before this wall time and whose result is told, or move
        them to the archive, which nothing here reads; returns how many. Call again until it is 0."""

    async def close(self) -> None:
        """Release connections; ends calls that wait."""
