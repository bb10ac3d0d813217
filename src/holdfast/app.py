"""An app: the streams that a node runs, declared in a module that the node imports."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import ConfigError
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import StreamSpec, names_of

H = TypeVar("H")


class App:
    """Declares streams. ``name`` is for people; apps that share a store need streams of different names."""

    def __init__(self, name: str) -> None:
        if not name.isidentifier():
            raise ConfigError(
                f"app name {name!r} must be letters, digits and underscores, not starting with a digit"
            )
        self.name = name
        self.streams: dict[str, StreamSpec] = {}
        self.models: dict[str, ModelSpec] = {}

    def model(self, name: str, load: Callable[[], Any], *, memory_mb: int = 0) -> None:
        """Declare a model: a costly resource, such as a network with its weights, that streams share.

        A slot loads it once, before the first stream that names it in ``models=`` opens there; handlers get
        it with ``context.model(name)``. New streams go to nodes and slots that have their models loaded.

        Args:
            name: what streams call it.
            load: builds it; called without arguments, in the slot. A load may take ``model_timeout_s``, and
                is no part of any handler's ``timeout_s``.
            memory_mb: what it takes when loaded, in MiB. With the setting ``model_memory_mb``, slots unload
                models that no stream uses to make room for others.

        Raises ConfigError for a name that is taken.
        """
        if name in self.models:
            raise ConfigError(f"model {name!r} is declared twice in app {self.name!r}")
        self.models[name] = ModelSpec(name=name, load=load, memory_mb=memory_mb)

    def stream(self, name: str, *, message: Any = dict, **settings: Any) -> Callable[[H], H]:
        """Declare a stream: decorates a StreamHandler class, or a function for a stream without state.

        Args:
            name: the stream's name, and its queue's.
            message: what the handler gets: a dataclass, pydantic model, msgspec Struct, dict (any JSON
                object), or bytes (the raw body).
            key: field that holds the key (default ``key``). Dots reach into nested objects. For raw
                bytes key, seq and run are the names of message attributes. A tuple gives several names,
                for messages of several forms: the first that a message has counts.
            seq: field of the seq, if the stream has one; ``queue`` for the queue's own order numbers.
                Numbers may be texts of digits.
            run: field of the run, if numbers may start again. In a tuple, ``None`` as the last name lets
                messages without a run be of run 0.
            seq_prefix: what a seq that is a text may begin with, such as ``frame`` in ``frame-000017``.
            body_field: over HTTP, a body that is no JSON (an image) comes in this field of the message, as a
                data URL, which ``context.fetch`` reads (default ``url``).
            seq_kind: ``dense`` (default with a field: gaps are seen), ``increasing`` (default with the
                queue's numbers: they are only compared) or ``absent``.
            first_seq: where a run starts: a number, ``first`` (whatever comes first) or ``lowest``
                (the lowest seen within ``gap_timeout_s``; the default).
            start_timeout_s: wait only so long for the start of a stream: for a number that is not there
                the run then starts at the lowest seen. Without it a missing start is a gap like others.
            gap_timeout_s: how long a missing message is waited for. Must outlast the queue's visibility
                unless ``prefer_latency``.
            on_gap: then ``skip`` it (recorded), ``hold`` the stream, or skip it and leave a ``dead-letter``.
            on_late: a message from before what was passed: ``dead-letter`` or ``discard``.
            on_failure: after ``max_tries``: ``skip`` (to the dead letters) or ``park`` the stream.
            max_tries, backoff: tries of a failing message and the delays between them.
            timeout_s: longest time without progress before the slot is killed.
            max_starts: openings that may die with the same message before it is skipped as poison.
            inbox_limit: messages that wait in memory per key.
            identity_window: how many newest identities are remembered where seqs don't tell duplicates.
            checkpoint_every, checkpoint_after_ms: commit after so many messages or so much time;
                and whenever nothing waits.
            idle_timeout_s: a stream without messages for so long is released (default: the node's).
            models: a declared model's name, or several, that the handler uses: loaded before it opens.

        Raises ConfigError for a setting that is unknown or impossible.
        """

        def declare(target: H) -> H:
            if name in self.streams:
                raise ConfigError(f"stream {name!r} is declared twice in app {self.name!r}")
            if settings.get("seq") is not None:
                settings.setdefault("seq_kind", "increasing" if settings["seq"] == "queue" else "dense")
            settings["models"] = names_of(settings.get("models"))
            try:
                spec = StreamSpec(name=name, message=message, handler=_handler_class(target), **settings)
            except TypeError as error:
                raise ConfigError(f"stream {name!r}: {error}; see App.stream for the settings") from None
            for model in spec.models:
                if model not in self.models:
                    raise ConfigError(
                        f"stream {name!r}: models names {model!r}, which is not declared;"
                        f" declare it above with {self.name}.model({model!r}, …)"
                    )
            self.streams[name] = spec
            return target

        return declare


def _handler_class(target: Any) -> type[StreamHandler[Any]]:
    if inspect.isclass(target):
        if not issubclass(target, StreamHandler):
            raise ConfigError(f"{target.__name__} must be a subclass of StreamHandler")
        return target
    if not callable(target):
        raise ConfigError(f"{target!r} is neither a StreamHandler class nor a function")
    function = target

    class Stateless(StreamHandler[Any]):
        __doc__ = function.__doc__

        def process(self, message: Any, context: Context) -> Any:
            return function(message, context)

    Stateless.__name__ = Stateless.__qualname__ = function.__name__
    return Stateless
