"""An app: streams, tasks and outboxes that a node runs, declared in a module that the node imports."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from holdfast.common.message import SeqKind
from holdfast.common.retry import Backoff
from holdfast.common.settings import check_setting
from holdfast.errors import ConfigError
from holdfast.streams.handler import Context, HandlerClass, StreamHandler
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import BACKOFF as STREAM_BACKOFF
from holdfast.streams.spec import MAX_JUMP, QUEUE_NUMBER, StreamSpec, names_of
from holdfast.tasks.order import Orders
from holdfast.tasks.spec import BACKOFF as TASK_BACKOFF
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.task_type import TaskDecorator, TaskType

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    # With a default, which typing has from Python 3.13 on.
    from typing_extensions import TypeVar as DefaultTypeVar

    from holdfast.client import Client
    from holdfast.config import ClientSettings
    from holdfast.devices import Dialect, Outbox, Patience, PresenceRules, Topics
    from holdfast.tasks.periodic import Periodic

    B = DefaultTypeVar("B", default=dict[str, Any])
    M = DefaultTypeVar("M", default=dict[str, Any])
else:
    B = TypeVar("B")
    M = TypeVar("M")

N = TypeVar("N")
H = TypeVar("H")
R = TypeVar("R")
F = TypeVar("F", bound=Orders)


class StreamDecorator(Protocol[N]):
    """What ``App.stream`` returns: it takes a handler of messages of type M, and returns it as it is."""

    @overload
    def __call__(self, target: HandlerClass[H, N], /) -> type[H]: ...
    @overload
    def __call__(self, target: Callable[[N, Context], R], /) -> Callable[[N, Context], R]: ...


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
        self._client: Client | None = None
        self._client_pid = 0
        self._connecting = threading.Lock()

    @property
    def client(self) -> Client:
        """The client by which the app's own tasks are sent (``send`` of what ``task`` returns). It is made
        when it is first asked for, and finds services as a node does, unless ``connect`` has said otherwise.
        Any thread may call it."""
        with self._connecting:
            if self._client is None or self._client_pid != os.getpid():
                self._connect()
            assert self._client is not None
            return self._client

    def connect(self, *, config: Path | None = None, **settings: Unpack[ClientSettings]) -> None:
        """Say where the app's own tasks are sent to; the arguments are those of :class:`holdfast.Client`.
        Raises ConfigError."""
        self.disconnect()
        with self._connecting:
            self._connect(config, **settings)

    def disconnect(self) -> None:
        """Close the app's client, for a program that goes on without it. The next thing that is sent opens
        another, with the settings of a node."""
        with self._connecting:
            client, self._client = self._client, None
            if client is not None and self._client_pid == os.getpid():
                client.close()

    def _connect(self, config: Path | None = None, **settings: Unpack[ClientSettings]) -> None:
        from holdfast.client import Client  # noqa: PLC0415 - all services, for those who send

        self._client, self._client_pid = Client(self, config=config, **settings), os.getpid()

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

    def stream(
        self,
        name: str,
        *,
        message: type[M] = dict[str, Any],  # type: ignore[assignment] # the default of M
        key: str | tuple[str, ...] = "key",
        seq: str | tuple[str, ...] | None = None,
        run: str | tuple[str | None, ...] | None = None,
        seq_prefix: str = "",
        body_field: str = "url",
        seq_kind: SeqKind | None = None,
        first_seq: int | Literal["first", "lowest"] = "lowest",
        start_timeout_s: float | None = None,
        gap_timeout_s: float = 45.0,
        on_gap: Literal["skip", "hold", "dead-letter"] = "skip",
        max_jump: int | Literal["auto"] | None = "auto",
        restart_after_s: float | None = None,
        on_late: Literal["dead-letter", "discard"] = "dead-letter",
        on_failure: Literal["skip", "park"] = "skip",
        prefer_latency: bool = False,
        max_tries: int = 3,
        backoff: Backoff = STREAM_BACKOFF,
        timeout_s: float = 30.0,
        max_starts: int = 5,
        inbox_limit: int = 256,
        identity_window: int = 1024,
        checkpoint_every: int = 1,
        checkpoint_after_ms: float = 20.0,
        idle_timeout_s: float | None = None,
        models: str | tuple[str, ...] = (),
    ) -> StreamDecorator[M]:
        """Declare a stream: decorates a StreamHandler class, or a function of (message, context) for a stream
        without state. The handler takes messages of the type ``message``.

        Args:
            name: the stream's name, and its queue's.
            message: the type that the handler gets: a dataclass, pydantic model, msgspec Struct, ``dict``
                (any JSON object; the default), or ``bytes`` (the raw body).
            key: the field that holds the key (default ``"key"``). Dots reach into nested objects. For raw
                bytes key, seq and run are the names of message attributes. A tuple gives several names,
                for messages of several forms: the first that a message has counts.
            seq: the field of the seq, if the stream has one (default: none); ``"queue"`` for the queue's own
                order numbers. Numbers may be texts of digits.
            run: the field of the run, if numbers may start again (default: none). In a tuple, ``None`` as the
                last name lets messages without a run be of run 0.
            seq_prefix: what a seq that is a text may begin with, such as ``frame`` in ``frame-000017``
                (default: nothing).
            body_field: over HTTP, a body that is no JSON (an image) comes in this field of the message, as a
                data URL, which ``context.fetch`` reads (default ``"url"``).
            seq_kind: ``"dense"`` (gaps are seen), ``"increasing"`` (numbers are only compared) or
                ``"absent"``. Default: ``"dense"`` with a field as ``seq``, ``"increasing"`` with the queue's
                numbers, ``"absent"`` without.
            first_seq: where a run starts: a number, ``"first"`` (whatever comes first) or ``"lowest"``
                (the lowest seen within ``gap_timeout_s``; the default).
            start_timeout_s: how many seconds the start of a stream is waited for: for a number that is not
                there the run then starts at the lowest seen. Default: none, and a missing start is a gap
                like others.
            gap_timeout_s: how many seconds a missing message is waited for (default 45). Must outlast the
                queue's visibility unless ``prefer_latency``.
            on_gap: what follows: ``"skip"`` (recorded; the default), ``"hold"`` the stream, or skip it and
                leave a ``"dead-letter"``.
            max_jump: a seq that is more than so much beyond where its run stands is taken for a mistake: its
                message is set aside as malformed, and nothing between is skipped. ``None`` for no limit.
                Default ``"auto"``: 1,000,000 with ``"dense"``, else no limit.
            restart_after_s: where messages have no run, and numbers may start anew: a seq that has fallen,
                after the stream was quiet for so many seconds, begins a new run (default: never). Must well
                outlast the queue's visibility.
            on_late: what becomes of a message from before what was passed: ``"dead-letter"`` (the default) or
                ``"discard"``.
            on_failure: what follows ``max_tries``: ``"skip"`` (to the dead letters; the default) or
                ``"park"`` the stream.
            prefer_latency: whether ``gap_timeout_s`` may be shorter than the queue's visibility (default
                ``False``): fresh results count for more than complete ones.
            max_tries: how often a message that fails is tried (default 3).
            backoff: the delays between tries (default: from 0.2 to 10 seconds).
            timeout_s: seconds without progress after which the slot is killed (default 30).
            max_starts: openings that may die with the same message before it is skipped as poison (default
                5).
            inbox_limit: messages that wait in memory per key (default 256).
            identity_window: how many newest identities are remembered where seqs don't tell duplicates
                (default 1024).
            checkpoint_every: a commit follows after so many messages (default 1), and whenever nothing waits.
            checkpoint_after_ms: or after so many milliseconds (default 20).
            idle_timeout_s: a stream without messages for so many seconds is released (default: the node's).
            models: a declared model's name, or several, that the handler uses (default: none): loaded before
                it opens.

        Raises ConfigError for a setting that is impossible.
        """
        if seq_kind is None:
            seq_kind = "absent" if seq is None else "increasing" if seq == QUEUE_NUMBER else "dense"
        if max_jump == "auto":
            max_jump = MAX_JUMP if seq_kind == "dense" else None

        def declare(target: Any, /) -> Any:
            if name in self.streams:
                raise ConfigError(f"stream {name!r} is declared twice in app {self.name!r}")
            spec = StreamSpec(
                name=name,
                handler=_handler_class(target),
                message=message,
                key=key,
                seq=seq,
                run=run,
                seq_prefix=seq_prefix,
                body_field=body_field,
                seq_kind=seq_kind,
                first_seq=first_seq,
                start_timeout_s=start_timeout_s,
                gap_timeout_s=gap_timeout_s,
                on_gap=on_gap,
                max_jump=max_jump,
                restart_after_s=restart_after_s,
                on_late=on_late,
                on_failure=on_failure,
                prefer_latency=prefer_latency,
                max_tries=max_tries,
                backoff=backoff,
                timeout_s=timeout_s,
                max_starts=max_starts,
                inbox_limit=inbox_limit,
                identity_window=identity_window,
                checkpoint_every=checkpoint_every,
                checkpoint_after_ms=checkpoint_after_ms,
                idle_timeout_s=idle_timeout_s,
                models=names_of(models),
            )
            for model in spec.models:
                if model not in self.models:
                    raise ConfigError(
                        f"stream {name!r}: models names {model!r}, which is not declared;"
                        f" declare it above with {self.name}.model({model!r}, …)"
                    )
            self.streams[name] = spec
            return target

        return declare

    def outbox(
        self,
        name: str,
        *,
        topics: Topics | None = None,
        dialect: Dialect | None = None,
        patience: Patience | None = None,
        presence: PresenceRules | None = None,
        shards: int = 1,
        lanes: int = 1,
        expires_in_s: float | None = 7 * 86_400.0,
        max_body: int = 131_072,
        in_flight_max: int = 10_000,
        rate: float | None = None,
        group: Callable[[str], str] | None = None,
        group_rates: Mapping[str, float] | None = None,
        keep_s: float = 7 * 86_400.0,
        archive: bool = False,
        briefs: str = "",
    ) -> Outbox:
        """Declare an outbox, through which a back office sends commands to devices, and return it.

        Args:
            name: the outbox's; its rows in the database carry it. It stands once commands have been added.
            topics: where devices listen and answer (default: ``devices.Topics()``).
            dialect: how a command's id travels in payloads (default: as ``messageId`` in JSON).
            patience: retry intervals, ``max_tries``, and how often absent devices are tried (default:
                ``devices.Patience()``).
            presence: when a device counts as away (default: ``devices.PresenceRules()``).
            shards: into how many parts the devices are divided, each owned by one node (default 1). It
                stands once the outbox is in use.
            lanes: commands in flight a device (default 1). Beyond one, those with the same ``supersede_key``
                stay in order, and others may pass each other.
            expires_in_s: seconds after which a command isn't sent any more, unless it says so itself (default
                7 days); ``None`` for never.
            max_body: the largest command, in bytes as they are sent, its id included (default 131,072).
            in_flight_max: devices of which answers are awaited at once (default 10,000).
            rate: commands a second (default: as fast as can be).
            group: a function that tells a device's group (default: none).
            group_rates: commands a second by group (default: no limits). These and ``rate`` hold over all
                nodes: each has the part that it has of the shards.
            keep_s: how many seconds closed commands are kept, and keys of ``dedupe_key`` with them (default
                7 days).
            archive: whether they are then moved to the table ``holdfast_outbox_archive`` instead of dropped
                (default ``False``).
            briefs: the queue on which the end of each command is told too (default: on none). ``APP-briefs``
                is the one that the app's clients and ``holdfast briefs`` read.

        Raises ConfigError for a setting that is impossible.
        """
        # The product, which apps without outboxes don't wait for.
        from holdfast import devices  # noqa: PLC0415

        if name in self.outboxes:
            raise ConfigError(f"outbox {name!r} is declared twice in app {self.name!r}")
        made = self.outboxes[name] = devices.Outbox(
            devices.OutboxSpec(
                name=name,
                topics=devices.Topics() if topics is None else topics,
                dialect=devices.JsonDialect() if dialect is None else dialect,
                patience=devices.Patience() if patience is None else patience,
                presence=devices.PresenceRules() if presence is None else presence,
                shards=shards,
                lanes=lanes,
                expires_in_s=expires_in_s,
                max_body=max_body,
                in_flight_max=in_flight_max,
                rate=rate,
                group=group,
                group_rates=group_rates or {},
                keep_s=keep_s,
                archive=archive,
                briefs=briefs,
            )
        )
        return made

    def task(
        self,
        name: str,
        *,
        body: type[B] = dict[str, Any],  # type: ignore[assignment] # the default of B
        timeout_s: float = 300.0,
        tries: int = 3,
        backoff: Backoff = TASK_BACKOFF,
        permanent: type[BaseException] | tuple[type[BaseException], ...] = (),
        hold: Literal["timeout", "lease"] = "timeout",
        margin_s: float = 10.0,
        lease_s: float = 30.0,
        stall_s: float | None = None,
        memory_mb: int = 0,
        weight: float = 1.0,
        priority: int = 0,
        resumable: bool = False,
        group: str | Callable[[B], str] = "",
        group_limit: int = 0,
        group_rate: float = 0.0,
    ) -> TaskDecorator[B]:
        """Declare a type of task: decorates a function of (body, job), sync or async, or a class with such a
        method ``run``; its method ``terminate(job)``, if any, is called if the attempt is told to end.

        What is decorated becomes a :class:`holdfast.TaskType`: ``send`` has a node run it, and a test may
        call it as it is.

        Args:
            name: of letters, digits, ``.``, ``-`` and ``_``, such as ``report.publish``.
            body: the type that the handler gets: a dataclass, pydantic model, msgspec Struct or ``dict``
                (from JSON; ``dict`` is the default), a protobuf message class, ``str`` (plain text) or
                ``bytes`` (the raw body).
            timeout_s: the total time of one attempt, in seconds (default 300).
            tries: attempts of a failing task (default 3).
            backoff: the delays between them (default: from 1 to 60 seconds).
            permanent: an exception type, or a tuple of some, after which no retry helps (default: none).
            hold: how long a delivery is hidden from others: for its ``"timeout"`` and ``margin_s`` (the
                default), or by a ``"lease"`` of ``lease_s``, extended while the task calls ``job.progress``.
            margin_s: seconds beyond the timeout (default 10).
            lease_s: seconds of a lease (default 30).
            stall_s: a task that hasn't called ``job.progress`` for so many seconds hangs, and is ended as by
                its timeout (default: ``lease_s`` with a ``"lease"``; else only the timeout ends it).
            memory_mb: what its process and all that it started may use together, in MiB (default 0: the
                node's ``slot_memory_mb``).
            weight: its share of the slots, where several types of task wait (default 1).
            priority: the higher, the sooner, where the producer doesn't say (default 0).
            resumable: whether a task that outlives the queue's longest hold may be begun anew (default
                ``False``).
            group: field of the body (dots reach into nested ones), or a function of it, that names the
                customer, where the producer doesn't say (default: nobody).
            group_limit: how many tasks of one group may run at once on a node (default 0: any number).
            group_rate: how many of one group may begin in a second (default 0: any number).

        Raises ConfigError for a setting that is impossible.
        """

        def declare(target: Any, /) -> Any:
            if name in self.tasks:
                raise ConfigError(f"task {name!r} is declared twice in app {self.name!r}")
            spec = self.tasks[name] = TaskSpec(
                name=name,
                handler=target.handler if isinstance(target, TaskType) else target,
                body=body,
                timeout_s=timeout_s,
                tries=tries,
                backoff=backoff,
                permanent=names_of(permanent),
                hold=hold,
                margin_s=margin_s,
                lease_s=lease_s,
                stall_s=stall_s,
                memory_mb=memory_mb,
                weight=weight,
                priority=priority,
                resumable=resumable,
                group=group,
                group_limit=group_limit,
                group_rate=group_rate,
            )
            return TaskType(spec, self.name, lambda: self.client)

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
