"""What a user writes: a stream handler, and the context it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

M = TypeVar("M")
T = TypeVar("T")
M_contra = TypeVar("M_contra", contravariant=True)
H_contra = TypeVar("H_contra", contravariant=True)


class Context(Protocol):
    """What a handler may ask of its slot. One per stream; its place fields follow the message in hand."""

    key: str
    """The stream's key, as the message named it."""
    run: int
    seq: int
    """Place of the message in hand (0 where the stream has no seq)."""
    attempt: int
    """1 on the first try of this message in this opening."""

    @overload
    def model(self, wanted: str) -> Any: ...
    @overload
    def model(self, wanted: Callable[[], T]) -> T: ...
    def model(self, wanted: str | Callable[[], Any]) -> Any:
        """A costly resource, loaded once a slot and shared by its streams: the model that the app declares by
        that name, or what a function builds.

        A function is one of a module, or a ``functools.partial`` of one with hashable arguments.
        """

    def fetch(self, url: str) -> bytes:
        """Bytes of an object (a frame) from the object store, or in a data URL. Raises FileNotFoundError."""

    async def fetch_async(self, url: str) -> bytes:
        """The same for async handlers."""

    def progress(self, note: str = "") -> None:
        """Say that work advances: restarts the handler's timeout."""


class StreamHandler(Generic[M]):
    """Base of stateful handlers: an instance lives for one key, in one slot.

    ``open`` → ``process`` for every message in order → ``snapshot`` at each checkpoint → ``close``.
    ``process`` may be ``async def``. A result is anything JSON can hold, or bytes, or None for none.
    Raise to have the message tried again; state is then restored from the last checkpoint first.
    """

    version: ClassVar[int] = 1
    """Version of the snapshot's format; raise it when the format changes and write ``migrate``."""

    def open(self, context: Context, state: bytes | None) -> None:
        """Begin with checkpointed state, or None for a new stream."""

    def process(self, message: M, context: Context) -> Any:
        """Handle one message; return its result."""
        raise NotImplementedError

    def snapshot(self) -> bytes:
        """The state to checkpoint; ``open`` must be able to continue from it exactly.

        A handler without this method keeps no state.
        """
        return b""

    def close(self) -> None:
        """The stream leaves this slot (idle, moved); release what ``open`` took."""

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        """Bring state of an older ``version`` to this one. Raise if it can't be."""
        raise ValueError(f"state has version {version}, {cls.__name__} has {cls.version} and no migrate()")


class HandlerClass(Protocol[H_contra, M_contra]):
    """A class of handlers, for type checkers: its instances are H and take messages of type M."""

    def process(self, handler: H_contra, message: M_contra, context: Context, /) -> Any: ...
