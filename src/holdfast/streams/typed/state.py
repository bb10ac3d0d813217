"""The state of a stream as its handler declares it, and handlers that keep such a state."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from holdfast.errors import ConfigError, StateRejected
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.typed.state_codec import StateCodec, decode_plain, is_typed, name_of


class TypedState:
    """The type of a stream's state, how it begins, and how state of earlier versions becomes state of this
    one. ``initial`` returns the state of a new key; by default it is the type's default.

    Raises ConfigError for a type that can't hold state, and for one that has no default without ``initial``.
    """

    def __init__(self, kind: Any, initial: Callable[[str], Any] | None = None, version: int = 1) -> None:
        self.codec = StateCodec(kind)
        self.kind = kind
        self.version = version
        if initial is None and (missing := _without_default(kind)):
            raise ConfigError(
                f"state type {name_of(kind)} has no default for {', '.join(missing)}; give it one, or pass"
                " initial=, a function that returns the state of a new key"
            )
        self._initial = initial
        self._steps: dict[int, Callable[[Any], Any]] = {}

    def begin(self, key: str) -> Any:
        """Return the state of a new key."""
        return (
            self._initial(key) if self._initial is not None else (typing.get_origin(self.kind) or self.kind)()
        )

    def add_step(self, from_version: int, step: Callable[[Any], Any]) -> None:
        """Add the migration from one version to the next. Raises ConfigError if there is no such step."""
        if not 1 <= from_version < self.version:
            raise ConfigError(
                f"migrate(from_version={from_version}): the stream declares version={self.version}, so steps"
                f" begin at versions from 1 to {self.version - 1}"
            )
        if from_version in self._steps:
            raise ConfigError(f"migrate(from_version={from_version}) is declared twice")
        self._steps[from_version] = step

    def check_steps(self, stream: str) -> None:
        """Raise ConfigError if a migration is declared and a later one is missing."""
        begun = range(min(self._steps, default=self.version), self.version)
        if missing := [version for version in begun if version not in self._steps]:
            raise ConfigError(
                f"stream {stream!r}: migrate(from_version={missing[0]}) is missing, so state of earlier"
                f" versions can't become state of version {self.version}"
            )

    def migrate(self, data: bytes, version: int) -> bytes:
        """Convert state of an earlier version. Raises ValueError if a step is missing, or if what comes out
        doesn't fit the type."""
        state: Any = decode_plain(data) if is_typed(data) else data
        if not self._steps and is_typed(data):
            return data  # fields with defaults are read from state of earlier versions
        for number in range(version, self.version):
            if number not in self._steps:
                raise ValueError(f"no migrate(from_version={number}) is declared")
            state = self._steps[number](state)
        return self.codec.encode(self.codec.convert(state))


class TypedHandler(StreamHandler[Any]):
    """A handler whose state has a type, described by ``typed``. The current state is ``state``."""

    typed: ClassVar[TypedState]
    state: Any

    def open(self, context: Context, state: bytes | None) -> None:
        """Load the state of the last commit, or begin a new one."""
        self.state = self.typed.begin(context.key) if state is None else self.typed.codec.decode(state)
        self.typed.codec.check(self.state)

    def snapshot(self) -> bytes:
        """Return the state as bytes."""
        return self.typed.codec.encode(self.state)

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        """Convert state of an earlier version by the declared steps."""
        return cls.typed.migrate(state, version)


def typed_state_of(handler: type[StreamHandler[Any]]) -> TypedState | None:
    """Return the typed state of a handler class; None if it keeps bytes or nothing."""
    return handler.typed if issubclass(handler, TypedHandler) else None


def state_for_users(handler: type[StreamHandler[Any]], data: bytes, version: int) -> Any:
    """Return committed state of a version: of the declared type, or the bytes that the handler keeps. Raises
    StateRejected if it doesn't fit."""
    if (typed := typed_state_of(handler)) is None:
        return data
    try:
        if version > typed.version:
            raise ValueError(
                f"it has version {version}, newer than version {typed.version} of {handler.__name__}"
            )
        return typed.codec.decode(data if version == typed.version else typed.migrate(data, version))
    except Exception as error:
        raise StateRejected(f"the state of {handler.__name__} can't be read: {error}") from error


def with_state(handler: type[StreamHandler[Any]], state: TypedState) -> type[StreamHandler[Any]]:
    """Return a handler class whose attribute ``state`` is kept."""
    base: Any = handler
    return type(
        handler.__name__,
        (base, TypedHandler),
        {
            "typed": state,
            "version": state.version,
            "__doc__": handler.__doc__,
            "__module__": handler.__module__,
        },
    )


def _without_default(kind: Any) -> list[str]:
    """Return the fields of a state type that have no default."""
    if typing.is_typeddict(kind):
        return list(kind.__annotations__)
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [
            field.name
            for field in dataclasses.fields(kind)
            if field.init and field.default is missing and field.default_factory is missing
        ]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.name for field in msgspec.structs.fields(kind) if field.required]
    fields = getattr(kind, "model_fields", {})
    return [name for name, field in fields.items() if field.is_required()]
