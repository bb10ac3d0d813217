"""Models: costly resources that a slot loads once and its streams share."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.common.settings import Limit, check_settings
from holdfast.errors import ConfigError, HandlerFailed
from holdfast.streams.handler import StreamHandler


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared model. Made by ``App.model``, which describes each setting."""

    name: str
    load: Callable[[], Any]
    memory_mb: Limit = 0

    def __post_init__(self) -> None:
        check_settings(f"model {self.name!r}", self)
        if not self.name or not self.name.isprintable():
            raise ConfigError(f"model name {self.name!r} must be a printable text")


U = TypeVar("U", bound=Hashable)


class _Loaded(Generic[U]):
    """One model in memory, and the streams that use it."""

    __slots__ = ("memory_mb", "model", "users")

    def __init__(self, model: Any, memory_mb: int) -> None:
        self.model = model
        self.memory_mb = memory_mb
        self.users: set[U] = set()


class Models(Generic[U]):
    """The models of one slot.

    Args: specs: the declared models. on_load: called with the stream for which a model is being loaded, that
    model ("" when that is over) and the declared models that are loaded. memory_mb: the memory that loaded
    models may take before unused ones are unloaded, least recently used first; 0 for no limit. A model that
    is needed is always loaded."""

    def __init__(
        self,
        specs: Mapping[str, ModelSpec],
        on_load: Callable[[U, str, Sequence[str]], None],
        memory_mb: int = 0,
    ) -> None:
        self._specs = specs
        self._on_load = on_load
        self._memory_mb = memory_mb
        self._loaded: dict[Hashable, _Loaded[U]] = {}  # least recently used first

    def get(self, wanted: str | Callable[[], Any], user: U) -> Any:
        """Return a model for the stream ``user``: a declared one by its name, or one that a function builds.

        Raises HandlerFailed for a name that is not declared, and for a function whose model streams can't
        share. An error of the load itself is passed on."""
        identity = wanted if isinstance(wanted, str) else identity_of(wanted)
        loaded = self._loaded.pop(identity, None)
        if loaded is None:
            loaded = self._load(self._spec(wanted), user)
        self._loaded[identity] = loaded
        loaded.users.add(user)
        return loaded.model

    def leave(self, user: U) -> None:
        """Note that a stream is closed and uses no model any more."""
        for identity, loaded in list(self._loaded.items()):
            if user in loaded.users:
                loaded.users.discard(user)
                self._loaded[identity] = self._loaded.pop(identity)
        if self._make_room(0):
            self._on_load(user, "", self.names)

    @property
    def declared(self) -> Mapping[str, ModelSpec]:
        """The declared models, by name."""
        return self._specs

    @property
    def names(self) -> list[str]:
        """The declared models that are loaded."""
        return sorted(name for name in self._loaded if isinstance(name, str))

    def _spec(self, wanted: str | Callable[[], Any]) -> ModelSpec:
        if not isinstance(wanted, str):
            return ModelSpec(name=label(wanted), load=wanted)
        if wanted not in self._specs:
            known = ", ".join(sorted(self._specs)) or "none"
            raise HandlerFailed(f"the app declares no model {wanted!r} (App.model); it has {known}")
        return self._specs[wanted]

    def _load(self, spec: ModelSpec, user: U) -> _Loaded[U]:
        self._make_room(spec.memory_mb)
        self._on_load(user, spec.name, self.names)
        try:
            loaded: _Loaded[U] = _Loaded(spec.load(), spec.memory_mb)
        except BaseException:
            self._on_load(user, "", self.names)
            raise
        known = self._specs.get(spec.name) is spec
        self._on_load(user, "", sorted([*self.names, spec.name]) if known else self.names)
        return loaded

    def _make_room(self, more_mb: int) -> bool:
        """Unload unused models until ``more_mb`` fits, as far as possible. Return True if any was
        unloaded."""
        if not self._memory_mb:
            return False
        taken_mb = more_mb + sum(loaded.memory_mb for loaded in self._loaded.values())
        unloaded = False
        for identity, loaded in list(self._loaded.items()):
            if taken_mb <= self._memory_mb:
                break
            if loaded.memory_mb and not loaded.users:
                del self._loaded[identity]
                taken_mb -= loaded.memory_mb
                unloaded = True
        if unloaded:
            gc.collect()  # networks are full of cycles, and their memory is needed now
        return unloaded


def identity_of(load: Callable[[], Any]) -> Hashable:
    """Return a value that is equal for functions that load the same model."""
    if isinstance(load, functools.partial):
        return identity_of(load.func), load.args, tuple(sorted(load.keywords.items()))
    owner = getattr(load, "__self__", None)
    if getattr(load, "__closure__", None) or isinstance(owner, StreamHandler):
        raise HandlerFailed(
            "context.model() shares a model by the function that loads it, and this one is another for each"
            " stream, as it uses variables from around it; give it what it needs with functools.partial"
        )
    # A lambda written in open() is a new object at each call but always the same code.
    bare = inspect.isfunction(load) and not (load.__defaults__ or load.__kwdefaults__)
    return load.__code__ if bare else load


def label(load: Callable[[], Any]) -> str:
    """Return the name of a function that loads a model, for logs and errors."""
    if isinstance(load, functools.partial):
        return label(load.func)
    return getattr(load, "__qualname__", type(load).__name__)


def takes_arguments(wanted: str | Callable[[], Any]) -> bool:
    """Return True if what a function builds depends on its arguments, which may be part of a message."""
    if isinstance(wanted, str) or inspect.isclass(wanted):
        return False
    return not inspect.isfunction(wanted) or bool(wanted.__defaults__ or wanted.__kwdefaults__)
