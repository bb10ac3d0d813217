"""An app: streams, tasks and outboxes that a node runs, declared in a module that the node imports."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.core.settings import check_setting
from holdfast.devices.outbox import Outbox
from holdfast.errors import ConfigError
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import MAX_JUMP, StreamSpec, names_of
from holdfast.tasks.order import Orders
from holdfast.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from holdfast.tasks.periodic import Periodic

H = TypeVar("H")
F = TypeVar("F", bound=Orders)


class App:
    """Declares streams, types of tasks and outboxes. ``name`` is for people, and tells the tasks of one app
    from those of others; apps that share a store need streams of different names."""

    def __init__(self, name: str) -> None:
        check_setting("app", "name", name, str)
        if not name.isidentifier():
            raise ConfigError(
                f"app name {name!r} must be letters, digits and underscores, not starting with a digit"
            )
        self.name = name
        self.streams: dict[str, StreamSpec] = {}
        self.tasks: dict[str, TaskSpec] = {}
        self.outboxes: dict[str, Outbox] = {}
        self.periodics: dict[str, Periodic] = {}
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
            max_jump: a seq that is more than so much beyond where its run stands is taken for a mistake: its
                message is set aside as malformed, and nothing between is skipped. None for no limit (default:
                1,000,000 with ``dense``, else None).
            restart_after_s: where messages have no run, and numbers may start anew: a seq that has fallen,
                after the stream was quiet for so long, begins a new run. Must well outlast the queue's
                visibility.
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
            if settings.get("seq_kind") == "dense":
                settings.setdefault("max_jump", MAX_JUMP)
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

    def outbox(self, name: str, **settings: Any) -> Outbox:
        """Declare an outbox, through which a back office sends commands to devices, and return it.

        Args:
            name: the outbox's; it stands once commands have been added.
            settings: of :class:`holdfast.devices.outbox.Outbox`.

        Raises ConfigError for a setting that is unknown or impossible.
        """
        made = Outbox(name, **settings)
        if name in self.outboxes:
            raise ConfigError(f"outbox {name!r} is declared twice in app {self.name!r}")
        self.outboxes[name] = made
        return made

    def task(self, name: str, *, body: Any = dict, **settings: Any) -> Callable[[H], H]:
        """Declare a type of task: decorates a function of (body, job), sync or async, or a class with such a
        method ``run``; its method ``terminate(job)``, if any, is called if the attempt is told to end.

        Args:
            name: of letters, digits, ``.``, ``-`` and ``_``, such as ``report.publish``.
            body: what the handler gets: a dataclass, pydantic model, msgspec Struct or dict (from JSON), a
                protobuf message class, ``str`` (plain text) or ``bytes`` (the raw body).
            timeout_s: the total time of one attempt.
            tries, backoff: attempts of a failing task, and the delays between them.
            permanent: an exception type, or a tuple of some, after which no retry helps.
            hold: how long a delivery is hidden from others: for its ``timeout`` and ``margin_s``, or by a
                ``lease`` of ``lease_s``, extended while the task advances.
            advances: what shows that it does: one or more of ``progress`` (calls of ``job.progress``),
                ``output`` (on its standard output or error), ``cpu`` (time of its process and what descends
                from it) and ``probe``.
            probe: a function of (body, job), called now and then in a thread beside the handler: while what
                it returns changes, the task advances.
            stall_s: a task that hasn't advanced for so long hangs, and is ended as by its timeout (default:
                ``lease_s`` with a ``lease``; else only the timeout ends it).
            memory_mb: what its process and all that it started may use together, in MiB; 0 for the node's
                ``slot_memory_mb``.
            weight: its share of the slots, where several types of task wait.
            priority: the higher, the sooner, where the producer doesn't say.
            resumable: a task that outlives the queue's longest hold may be begun anew.
            group: field of the body (dots reach into nested ones), or a function of it, that names the
                customer; where the producer doesn't say.
            group_limit: how many tasks of one group may run at once on a node; 0 for any number.
            group_rate: how many of one group may begin in a second; 0 for any number.

        Raises ConfigError for a setting that is unknown or impossible.
        """

        def declare(target: H) -> H:
            if name in self.tasks:
                raise ConfigError(f"task {name!r} is declared twice in app {self.name!r}")
            for setting in ("permanent", "advances"):
                if setting in settings:
                    settings[setting] = names_of(settings[setting])
            if "probe" in settings:
                settings.setdefault("advances", ("progress", "probe"))
            handler: Any = target
            try:
                self.tasks[name] = TaskSpec(name=name, body=body, handler=handler, **settings)
            except TypeError as error:
                raise ConfigError(f"task {name!r}: {error}; see App.task for the settings") from None
            return target

        return declare

    def periodic(
        self,
        name: str,
        cron: str,
        *,
        zone: str = "UTC",
        missed: Literal["all", "last", "skip"] = "last",
        window_s: float = 3600.0,
        timeout_s: float = 60.0,
    ) -> Callable[[F], F]:
        """Send tasks by the clock: decorates a function of the time that has come, in its zone, which returns
        the tasks to send (:class:`holdfast.Order`). They are sent once over all nodes; where an order has no
        trace id, it gets one that follows from name and time.

        Args:
            name: unique in the app.
            cron: when, in the five fields of a cron expression.
            zone: the time zone that it is meant in, such as ``Europe/Berlin``.
            missed: of times that passed while no node ran, and are no longer ago than ``window_s``: send for
                ``all``, for the ``last`` one, or ``skip`` them.
            window_s: for how long after its time it still makes sense to begin.
            timeout_s: how long the function may take. One that takes longer is logged and left alone, and
                called again once it has ended.

        Raises ConfigError for a setting that is impossible.
        """
        # Few apps have any, and cron and time zones, asyncio and protobuf come with it.
        from holdfast.tasks.periodic import DLQ_BACKUP, Periodic  # noqa: PLC0415

        def declare(orders: F) -> F:
            if name in self.periodics:
                raise ConfigError(f"periodic {name!r} is declared twice in app {self.name!r}")
            if name == DLQ_BACKUP:
                raise ConfigError(f"periodic {name!r}: nodes back up dead letters by that name; take another")
            self.periodics[name] = Periodic(
                name=name,
                cron=cron,
                orders=orders,
                zone=zone,
                missed=missed,
                window_s=window_s,
                timeout_s=timeout_s,
            )
            return orders

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
