"""An outbox: a program adds commands for devices to it, in the transaction of its own change."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Unpack, overload
from zlib import crc32

import msgspec
from msgspec import Meta

from holdfast.devices.ports.outbox import NewCommand, OnResult, Writer
from holdfast.devices.rules.device_queue import NUMBER_MAX, Correlation, StoredCommand, shard_of
from holdfast.devices.rules.dialect import write_id
from holdfast.devices.rules.topics import check_device
from holdfast.devices.spec import CommandFields, CommandOptions, NextPage, OnRefused, OutboxSpec, Page, Source
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.extend.tools import SECONDS_MAX, Fraction, Int32, Positive, check_setting, encode_json, fault
from holdfast.extend.tracing import sending, valid_traceparent

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    Db = Session | Connection | Writer
    AsyncDb = AsyncSession | AsyncConnection

T = TypeVar("T")

RolloutName = Annotated[str, Meta(max_length=255)]
OPTIONS: dict[str, Any] = {
    "priority": Int32,
    "delay_s": Annotated[float, Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)],
    "expires_in_s": Annotated[float, Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)] | None,
    "trace_id": str | None,
    "traceparent": str | None,
}
"""The types of a command's options."""
OWN_EXPIRY = -1.0
"""Value of ``expires_in_s`` for the outbox's own expiry."""
DEFAULTS: dict[str, Any] = {
    "priority": 0,
    "delay_s": 0.0,
    "expires_in_s": OWN_EXPIRY,
    "trace_id": None,
    "traceparent": None,
}
"""The options of most commands. These very objects aren't checked for each command."""
CommandId = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
KEY_MAX = 255
LONGEST_ID = Correlation.longest()
TRACE_MAX = 64


class Outbox:
    """The commands of one kind of device. Made by ``App.outbox``; see there for the settings."""

    def __init__(self, spec: OutboxSpec) -> None:
        self.spec = spec
        self.results: OnResult | None = None
        self.sources: list[Source] = []
        self.wall: Callable[[], float] = time.time
        self._next_lane = itertools.count()

    # --- adding

    @overload
    def add(
        self, db: AsyncDb, *, device: str, command: Any, **options: Unpack[CommandOptions]
    ) -> Awaitable[int]: ...
    @overload
    def add(self, db: Db, *, device: str, command: Any, **options: Unpack[CommandOptions]) -> int: ...
    def add(self, db: Any, *, device: str, command: Any, **options: Unpack[CommandOptions]) -> Any:
        """Add a command for a device, within the transaction of ``db``. It is sent if that commits.

        Args:
            db: a SQLAlchemy session or connection; with an asynchronous one, await the result.
            device: the device's id.
            command: bytes or text, or anything that msgspec can write as JSON.
            dedupe_key: if the device already has a command with this key, nothing is added (default: none).
            supersede_key: the command replaces the device's unsent commands with this key (default: none).
            priority: higher ones go first (default 0).
            delay_s: seconds before which it isn't sent (default 0).
            expires_in_s: seconds after which it isn't sent; ``None`` for never (default: the outbox's).
            trace_id: its name in logs; by default the ``trace_id`` that structlog has bound.
            traceparent: its place in a trace, as W3C Trace Context writes it; by default under the current
                span of OpenTelemetry. An invalid one is left out.
            rollout: the result of ``add_rollout``, for a command that belongs to it (default: none).

        Returns the command's id, or that of the existing one with its ``dedupe_key``. Raises InvalidMessage
        for an invalid device id and for a command that can't be written or carry its id, TooLarge over
        ``max_body``.
        """
        with self._sending([self._new(device=device, command=command, **options)]) as traced:
            return _write(db, lambda writer: writer.add(traced)[0])

    @overload
    def add_many(self, db: AsyncDb, commands: Iterable[CommandFields]) -> Awaitable[list[int]]: ...
    @overload
    def add_many(self, db: Db, commands: Iterable[CommandFields]) -> list[int]: ...
    def add_many(self, db: Any, commands: Iterable[CommandFields]) -> Any:
        """Add many commands at once, each the arguments of ``add`` but ``db``. Return their ids, or with an
        asynchronous ``db`` an awaitable of them."""
        with self._sending(self.new(commands)) as new:
            return _write(db, lambda writer: writer.add(new))

    @overload
    def add_rollout(
        self,
        db: AsyncDb,
        name: str,
        devices: Sequence[str],
        command: Any,
        *,
        rate: float | None = None,
        abort_share: float = 1.0,
        **options: Unpack[CommandOptions],
    ) -> Awaitable[int]: ...
    @overload
    def add_rollout(
        self,
        db: Db,
        name: str,
        devices: Sequence[str],
        command: Any,
        *,
        rate: float | None = None,
        abort_share: float = 1.0,
        **options: Unpack[CommandOptions],
    ) -> int: ...
    def add_rollout(
        self,
        db: Any,
        name: str,
        devices: Sequence[str],
        command: Any,
        *,
        rate: float | None = None,
        abort_share: float = 1.0,
        **options: Unpack[CommandOptions],
    ) -> Any:
        """Add one command for many devices, and count how many have done it.

        Args:
            name: for people.
            rate: devices a second that get it, in the order given; None for all at once.
            abort_share: once more than this share (0 to 1) of the devices has failed or expired, the others
                fail without being sent.
            options: of ``add``, for each command, but no ``dedupe_key``: an existing command would never
                count as done.

        Returns the rollout's id, or with an asynchronous ``db`` an awaitable of it.
        """
        if options.get("dedupe_key") is not None:
            raise ConfigError("a rollout takes no dedupe_key: an existing command would never count as done")
        check_setting("rollout", "name", name, RolloutName)
        _storable("name", name)
        check_setting(f"rollout {name!r}", "rate", rate, Positive | None)
        check_setting(f"rollout {name!r}", "abort_share", abort_share, Fraction)
        made = [
            self._new(device=device, command=command, **_later(options, n / rate if rate else 0.0))
            for n, device in enumerate(devices)
        ]

        with self._sending(made) as traced:

            def write(writer: Writer) -> int:
                rollout = writer.add_rollout(
                    self.spec.name, name, len(traced), rate, abort_share, self.wall()
                )
                writer.add([msgspec.structs.replace(each, rollout=rollout) for each in traced])
                return rollout

            return _write(db, write)

    # --- cancelling and pausing

    @overload
    def cancel(
        self,
        db: AsyncDb,
        *,
        command: int | None = None,
        device: str | None = None,
        supersede_key: str | None = None,
    ) -> Awaitable[int]: ...
    @overload
    def cancel(
        self,
        db: Db,
        *,
        command: int | None = None,
        device: str | None = None,
        supersede_key: str | None = None,
    ) -> int: ...
    def cancel(
        self,
        db: Any,
        *,
        command: int | None = None,
        device: str | None = None,
        supersede_key: str | None = None,
    ) -> Any:
        """Cancel scheduled commands, within the transaction of ``db``. Once it commits, the dispatcher's next
        turn lets them fail as ``cancelled``, unless they have been sent by then, and calls ``on_result``.

        Args:
            db: as for ``add``.
            command: only the command with this id.
            device: all commands of this device.
            supersede_key: all commands with this key, of this device or of any.

        Returns how many are scheduled now, or with an asynchronous ``db`` an awaitable of it. Commands that
        are added later aren't cancelled. Raises ConfigError if no argument says which commands.
        """
        if (command is None) == (device is None and supersede_key is None):
            raise ConfigError("cancel takes either command= or device=, supersede_key= or both of these")
        if command is not None:
            check_setting("cancel", "command", command, CommandId)
            which: dict[str, Any] = {"command": command}
        else:
            which = {"device": _named(device), "supersede_key": _checked_key("supersede_key", supersede_key)}
        return _write(db, lambda writer: writer.cancel(self.spec.name, **which))

    @overload
    def pause(self, db: AsyncDb, device: str | None = None) -> Awaitable[None]: ...
    @overload
    def pause(self, db: Db, device: str | None = None) -> None: ...
    def pause(self, db: Any, device: str | None = None) -> Any:
        """Send nothing to ``device``, or to any device, from the commit of ``db`` until it is resumed. The
        answer to a command that is out counts, and commands expire. With an asynchronous ``db``, await it."""
        named = _named(device)
        return _write(db, lambda writer: writer.pause(self.spec.name, named, self.wall()))

    @overload
    def resume(self, db: AsyncDb, device: str | None = None) -> Awaitable[bool]: ...
    @overload
    def resume(self, db: Db, device: str | None = None) -> bool: ...
    def resume(self, db: Any, device: str | None = None) -> Any:
        """End the pause of ``device``, or of the outbox. Return False if there was none, or with an
        asynchronous ``db`` an awaitable of it."""
        named = _named(device)
        return _write(db, lambda writer: writer.resume(self.spec.name, named))

    @contextlib.contextmanager
    def _sending(self, commands: list[NewCommand]) -> Iterator[list[NewCommand]]:
        """Give commands without a place in a trace one under the caller's span."""
        with sending(self.spec.name, len(commands)) as traceparent:
            if traceparent:
                commands = [
                    each if each.traceparent else msgspec.structs.replace(each, traceparent=traceparent)
                    for each in commands
                ]
            yield commands

    def _new(
        self,
        *,
        device: str,
        command: Any,
        dedupe_key: str | None = None,
        supersede_key: str | None = None,
        priority: int = DEFAULTS["priority"],
        delay_s: float = DEFAULTS["delay_s"],
        expires_in_s: float | None = DEFAULTS["expires_in_s"],
        trace_id: str | None = None,
        traceparent: str | None = None,
        rollout: int | None = None,
    ) -> NewCommand:
        spec, now = self.spec, self.wall()
        check_device(device)
        given = {
            "priority": priority,
            "delay_s": delay_s,
            "expires_in_s": expires_in_s,
            "trace_id": trace_id,
            "traceparent": traceparent,
        }
        for name, value in given.items():
            if value is not DEFAULTS[name] and (text := fault(value, OPTIONS[name])):
                raise InvalidMessage(f"{name} {text}", name)
        if rollout is not None and (text := fault(rollout, CommandId)):
            raise InvalidMessage(f"rollout {text}", "rollout")
        body = _body(command)
        size = len(write_id(spec.dialect, body, LONGEST_ID))
        if size > spec.max_body:
            raise TooLarge(
                f"a command of {size} bytes, its id included, is over max_body of outbox {spec.name!r},"
                f" {spec.max_body}"
            )
        _checked_key("dedupe_key", dedupe_key)
        _checked_key("supersede_key", supersede_key)
        trace_id = _storable("trace_id", _bound_trace_id() if trace_id is None else trace_id)
        lasts_s = spec.expires_in_s if expires_in_s == OWN_EXPIRY else expires_in_s
        return NewCommand(
            outbox=spec.name,
            device=device,
            shard=shard_of(device, spec.shards),
            lane=self._lane(supersede_key),
            body=body,
            priority=priority,
            not_before=now + delay_s if delay_s > 0 else 0.0,
            expires_at=None if lasts_s is None else now + max(delay_s, 0.0) + lasts_s,
            dedupe_key=dedupe_key,
            supersede_key=supersede_key,
            trace_id=trace_id[:TRACE_MAX],
            traceparent=valid_traceparent(traceparent or ""),
            rollout=rollout,
            created_at=now,
        )

    def _lane(self, supersede_key: str | None) -> int:
        if self.spec.lanes == 1:
            return 0
        number = next(self._next_lane) if supersede_key is None else crc32(supersede_key.encode())
        return number % self.spec.lanes

    # --- what a node calls

    def new(self, commands: Iterable[CommandFields]) -> list[NewCommand]:
        """Return commands for a store, each from the arguments of ``add`` but ``db``."""
        return [self._new(**command) for command in commands]

    def on_result(
        self, function: Callable[[Any, StoredCommand], None]
    ) -> Callable[[Any, StoredCommand], None]:
        """Decorate a function that is called for each closed command: ``function(session, command)``.

        It runs on the node, in the transaction that closes the command, so its writes by the session happen
        exactly once a command. It must not commit, and should be quick, because other commands are closed in
        the same transaction. If it fails, the command closes without it, and it is called again later.

        Raises ConfigError if the outbox has one already."""
        if self.results is not None:
            raise ConfigError(f"outbox {self.spec.name!r} has an on_result function already")
        self.results = function
        return function

    def source(
        self,
        name: str,
        *,
        low: int = 1_000,
        high: int = 10_000,
        pause_s: float = 10.0,
        refused: OnRefused | None = None,
    ) -> Callable[[NextPage], NextPage]:
        """Decorate an asynchronous function that fetches pages of commands: ``await next_page(cursor)``
        returns a :class:`holdfast.devices.spec.Page`. One node calls it whenever fewer than ``low`` commands
        wait, until ``high`` do. A page and its cursor are stored together, so none is missed or stored twice.

        Commands that can't be added (``add`` says why) are logged and left out. ``refused`` is called with
        each of them before the page is stored; if it fails, the page is fetched again. Raises ConfigError for
        invalid settings."""
        Source(name, _no_page, low, high, pause_s, refused)  # raises for invalid settings

        def declare(next_page: NextPage) -> NextPage:
            self.sources.append(Source(name, next_page, low, high, pause_s, refused))
            return next_page

        return declare


def _named(device: str | None) -> str:
    return "" if device is None else check_device(device)


async def _no_page(_: str | None) -> Page:
    return Page((), "", more=False)


def _body(command: Any) -> bytes:
    if isinstance(command, bytes):
        return command
    try:
        return command.encode() if isinstance(command, str) else encode_json(command)
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"the command can't be written as JSON: {error}", "command") from None


def _checked_key(name: str, key: str | None) -> str | None:
    """Return ``key``. Raises InvalidMessage for a key that no database keeps."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidMessage(f"{name} is a {type(key).__name__}; give it a text", name)
    if not 0 < len(key) <= KEY_MAX:
        raise InvalidMessage(f"{name} has {len(key)} characters; give it 1 to {KEY_MAX}", name)
    return _storable(name, key)


def _storable(name: str, text: str) -> str:
    """Return ``text``. Raises InvalidMessage for characters that a database refuses."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"{name} is {text!r:.100}, which has half of a character", name) from None
    if "\0" in text:
        raise InvalidMessage(f"{name} is {text!r:.100}: no database keeps a NUL in a text", name)
    return text


def _later(options: CommandOptions, delay_s: float) -> CommandOptions:
    return {**options, "delay_s": options.get("delay_s", 0.0) + delay_s}


def _write(db: Any, write: Callable[[Writer], T]) -> Any:
    """Call ``write`` with a writer of ``db``; if that is asynchronous, when the result is awaited."""
    if isinstance(db, Writer):
        return write(db)
    from holdfast.devices.services.sqlalchemy.writer import SqlWriter  # noqa: PLC0415 (an extra)

    if hasattr(db, "run_sync"):
        return db.run_sync(lambda sync_db: write(SqlWriter(sync_db)))
    return write(SqlWriter(db))


def _bound_trace_id() -> str:
    """Return the ``trace_id`` that the caller has bound with structlog; "" for none."""
    from structlog.contextvars import get_contextvars  # noqa: PLC0415 - not all apps use it

    return str(get_contextvars().get("trace_id", ""))
