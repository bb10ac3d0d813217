"""An app: the streams, tasks and outboxes that a module declares and a node runs."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.app.handles import FromAnnotations, StateOptions, StreamDecorator, read_handler
from holdfast.common.message import SeqKind
from holdfast.common.retry import Backoff
from holdfast.common.settings import check_setting
from holdfast.errors import ConfigError
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

    from holdfast.client.client import Client
    from holdfast.config.settings import ClientSettings
    from holdfast.devices import Dialect, Outbox, Patience, PresenceRules, Topics
    from holdfast.tasks.periodic import Periodic

    B = DefaultTypeVar("B", default=dict[str, Any])
    M = DefaultTypeVar("M", default=FromAnnotations)
else:
    B = TypeVar("B")
    M = TypeVar("M")

F = TypeVar("F", bound=Orders)


class App:
    """The streams, types of tasks and outboxes that a program declares. ``name`` appears in logs and
    commands, and keeps the tasks of different apps apart. Apps that share a state store need different names
    for their streams."""

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
        self._more_targets: dict[str, list[str]] = {}
        self._client: Client | None = None
        self._client_pid = 0
        self._services: tuple[Path | None, ClientSettings] = None, {}
        """The arguments of ``connect``: after a fork, a new client is made with them."""
        self._connecting = threading.Lock()

    @property
    def targets(self) -> dict[str, tuple[str, str]]:
        """The targets of effects that have names: streams without a seq, types of tasks, and outboxes. Each
        is under its name, and under ``stream:name``, ``task:name`` or ``outbox:name``."""
        streams = [name for name, spec in self.streams.items() if spec.seq_kind == "absent"]
        return named_targets({"stream": streams, "task": self.tasks, **self._more_targets})

    def add_target(self, kind: str, name: str) -> None:
        """Let handlers send effects to ``name``, or ``kind:name``. For packages that add something to apps,
        and whose product opens the target (:meth:`holdfast.extend.products.Product.targets`). Raises
        ConfigError for a name that is taken."""
        names = self._more_targets.setdefault(kind, [])
        if kind in ("stream", "task") or name in names:
            raise ConfigError(f"target {kind}:{name} is declared twice in app {self.name!r}")
        names.append(name)

    @property
    def client(self) -> Client:
        """The client that sends the app's own tasks, for ``send`` of a :class:`holdfast.TaskType`. It is made
        at its first use. It finds services as a node does, or as ``connect`` has set. Any thread may call
        it."""
        with self._connecting:
            if self._client is None or self._client_pid != os.getpid():
                self._connect(*self._services)
            assert self._client is not None
            return self._client

    def connect(self, *, config: Path | None = None, **settings: Unpack[ClientSettings]) -> None:
        """Choose the services that the app's own tasks are sent to, by the arguments of
        :class:`holdfast.Client`. Raises ConfigError."""
        self.disconnect()
        with self._connecting:
            self._connect(config, settings)
            self._services = config, settings

    def disconnect(self) -> None:
        """Close the app's client, for a program that no longer needs it. The next ``send`` opens another
        client, with the settings of a node."""
        with self._connecting:
            client, self._client = self._client, None
            self._services = None, {}
            if client is not None and self._client_pid == os.getpid():
                client.close()

    def _connect(self, config: Path | None, settings: ClientSettings) -> None:
        from holdfast.client.client import Client  # noqa: PLC0415 - all services, which only senders need

        self._client, self._client_pid = Client(self, config=config, **settings), os.getpid()

    def model(self, name: str, load: Callable[[], Any], *, memory_mb: int = 0) -> None:
        """Declare a model: a costly resource, such as a network with its weights, that streams share.

        A slot loads a model once, before it opens the first stream that names the model in ``models=``.
        Handlers get it with ``context.model(name)``. New streams go first to nodes and slots that have their
        models loaded.

        Args:
            name: the name that streams use in ``models=``.
            load: a function without arguments that builds the model. It runs in the slot, and may take as
                long as the setting ``model_timeout_s``. That time doesn't count toward a handler's
                ``timeout_s``.
            memory_mb: the memory that the loaded model takes, in MiB. With the setting ``model_memory_mb``,
                slots unload unused models to make room for others.

        Raises ConfigError for a name that is taken.
        """
        if name in self.models:
            raise ConfigError(f"model {name!r} is declared twice in app {self.name!r}")
        self.models[name] = ModelSpec(name=name, load=load, memory_mb=memory_mb)

    def stream(
        self,
        name: str,
        *,
        message: type[M] | None = None,
        state: Any = None,
        initial: Callable[[str], Any] | None = None,
        version: int | None = None,
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
        max_pending_effects: int = 1000,
        max_pending_bytes: int = 4 << 20,
        effect_timeout_s: float = 86_400.0,
        max_timers: int = 64,
        models: str | tuple[str, ...] = (),
        results_to: str = "",
        archive: str = "",
    ) -> StreamDecorator[M]:
        """Declare a stream. The decorator takes a function or a StreamHandler class.

        A function takes (message), (message, context), (message, state) or (message, state, context), and may
        be async. Its annotations say the types of message and state. The function changes the state in place;
        the state is committed with the result. The decorator makes a :class:`holdfast.Stream` of it.

        Args:
            name: the name of the stream and of its queue.
            message: the type that the handler gets: a dataclass, pydantic model, msgspec Struct, ``dict``
                (any JSON object), or ``bytes`` (the raw body). Default: the type in the handler's
                annotations, or ``dict``.
            state: the type of a function's state, if it isn't annotated: a dataclass, msgspec Struct,
                pydantic model, TypedDict, dict, list or set, with NumPy arrays inside (default: the type in
                the annotations).
            initial: a function of the key that returns the state of a new key (default: the state type
                without arguments).
            version: the version of the state's type (default 1, or ``version`` of the class). Increase it
                with a change that fields with defaults can't express, and declare ``migrate`` of the stream.
            key: the field that holds the key (default ``"key"``). Dots reach into nested objects. For raw
                bytes key, seq and run are the names of message attributes. A tuple gives several names, for
                messages of several forms: the first one that a message has is used.
            seq: the field of the seq (default: the stream has no seqs), or ``"queue"`` to use the queue's own
                sequence numbers. A seq may be a number or a text of digits.
            run: the field of the run, for streams whose numbers may start again (default: none). In a tuple,
                ``None`` as the last name means that messages without a run belong to run 0.
            seq_prefix: the text before the digits of a seq that is a text, such as ``frame`` in
                ``frame-000017`` (default: none).
            body_field: the field that holds an HTTP body which isn't JSON, such as an image (default
                ``"url"``). It holds the body as a data URL, which ``context.fetch`` reads.
            seq_kind: ``"dense"`` (numbers without gaps, so a missing message is noticed), ``"increasing"``
                (numbers are only compared) or ``"absent"``. The default follows from ``seq``: ``"dense"`` for
                a field, ``"increasing"`` for ``"queue"``, ``"absent"`` for none.
            first_seq: the seq at which a run starts: a number, ``"first"`` (the first message that arrives),
                or ``"lowest"`` (the lowest seq that arrives within ``gap_timeout_s``; the default).
            start_timeout_s: how many seconds to wait for the first message of a run, before the run starts at
                the lowest seq that has arrived. Default: ``gap_timeout_s`` for ``"lowest"``; where
                ``first_seq`` is a number, a missing start is handled as any other gap.
            gap_timeout_s: how many seconds to wait for a missing message (default 45). It must be longer than
                the setting ``visibility_s``, unless ``prefer_latency`` is set.
            on_gap: what happens after ``gap_timeout_s``: ``"skip"`` the gap and record that (the default),
                ``"hold"`` the stream until the message arrives, or skip the gap and leave a
                ``"dead-letter"``.
            max_jump: how far a seq may be ahead of its run's last committed seq. A message beyond that is
                dead-lettered as malformed, and nothing in between is skipped. ``None`` means no limit.
                Default ``"auto"``: 1,000,000 where ``seq_kind`` is ``"dense"``, else no limit.
            restart_after_s: for messages without a run whose numbers may start again. A lower seq begins a
                new run if no message arrived for this many seconds before it (default: never). It must be
                much longer than the setting ``visibility_s``.
            on_late: what happens to a message that comes after its stream has passed its place:
                ``"dead-letter"`` (the default) or ``"discard"``.
            on_failure: what happens after ``max_tries`` failures: ``"skip"`` the message and dead-letter it
                (the default), or ``"park"`` the stream.
            prefer_latency: whether ``gap_timeout_s`` may be shorter than the setting ``visibility_s``
                (default ``False``). Results then come sooner, but some messages may come too late.
            max_tries: how many times a failing message is tried (default 3).
            backoff: the delays between tries (default: from 0.2 to 10 seconds).
            timeout_s: how many seconds a handler may run without progress before its slot is killed (default
                30).
            max_starts: how many openings of the stream may end in a crash at the same message before the
                message is skipped as poison (default 5).
            inbox_limit: the most messages of one key that wait in memory (default 256).
            identity_window: how many of the newest identities are remembered to find duplicates, in streams
                whose seqs don't show them (default 1024).
            checkpoint_every: after how many handled messages a commit follows (default 1). A commit also
                follows whenever no message waits.
            checkpoint_after_ms: how many milliseconds handled messages wait for their commit at most (default
                20).
            idle_timeout_s: how many seconds without messages pass before the node releases the stream
                (default: the setting ``idle_timeout_s``).
            max_pending_effects: the number of pending effects of one key at which its messages wait
                (default 1000, at most 100,000).
            max_pending_bytes: the same for the sum of their bodies (default 4 MiB, at most 64 MiB).
            effect_timeout_s: for how many seconds an effect waits for a target that takes nothing, before it
                becomes a dead letter (default 24 hours, at most 30 days).
            max_timers: how many timers one key can have (default 64, at most 1000).
            models: the name of a declared model that the handler uses, or a tuple of names (default: none).
                They are loaded before the stream opens.
            results_to: a target, by name or URL, to which each result is sent as an effect under the stream's
                key (default: none). Results are in the results log as well.
            archive: the URL of an object store, such as ``s3://bucket/prefix`` or ``file:./archive``. Each
                message is written to it before it is deleted from the queue, so that ``holdfast streams
                replay`` can run a handler over it later (default: none).

        Raises ConfigError for a setting that is impossible.
        """
        options = _options(locals())
        typed = StateOptions(*(options.pop(option) for option in ("state", "initial", "version")))
        if seq_kind is None:
            seq_kind = "absent" if seq is None else "increasing" if seq == QUEUE_NUMBER else "dense"
        if max_jump == "auto":
            max_jump = MAX_JUMP if seq_kind == "dense" else None
        options |= {"seq_kind": seq_kind, "max_jump": max_jump, "models": names_of(models)}

        def declare(target: Any, /) -> Any:
            if name in self.streams:
                raise ConfigError(f"stream {name!r} is declared twice in app {self.name!r}")
            names = sys._getframe(1).f_locals
            found = read_handler(name, target, message, typed, names, lambda: self.client)
            types = {"message": dict if found.message is None else found.message}
            spec = StreamSpec(name=name, handler=found.handler, **options | types)
            for model in spec.models:
                if model not in self.models:
                    raise ConfigError(
                        f"stream {name!r}: models names {model!r}, which is not declared;"
                        f" declare it above with {self.name}.model({model!r}, …)"
                    )
            self.streams[name] = spec
            return found.declared

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
        """Declare an outbox, through which a program sends commands to devices, and return it.

        Args:
            name: the name of the outbox. Its rows in the database carry the name, so it can't change once
                commands have been added.
            topics: the topics on which devices get commands and answer (default: ``devices.Topics()``).
            dialect: how payloads carry a command's id (default: as ``messageId`` in JSON).
            patience: the retry intervals, ``max_tries``, and how often commands are tried on absent devices
                (default: ``devices.Patience()``).
            presence: the rules that say when a device counts as away (default: ``devices.PresenceRules()``).
            shards: into how many parts the devices are divided, each owned by one node (default 1). It can't
                change once the outbox is in use.
            lanes: how many commands may be in flight to one device (default 1). With more than one, only
                commands with the same ``supersede_key`` stay in order.
            expires_in_s: after how many seconds a command is no longer sent, unless the command sets this
                itself (default 7 days); ``None`` for never.
            max_body: the largest command in bytes, as it is sent and with its id (default 131,072).
            in_flight_max: from how many devices answers are awaited at once (default 10,000).
            rate: how many commands are sent per second, over all nodes (default: no limit).
            group: a function that returns the group of a device (default: no groups). A device for which it
                fails has none, and so no limit.
            group_rates: how many commands are sent per second to each group, over all nodes (default: no
                limits). A node gets the same share of this and of ``rate`` as it has of the shards.
            keep_s: how many seconds closed commands are kept (default 7 days). A ``dedupe_key`` is remembered
                for as long.
            archive: whether closed commands are then moved to the table ``holdfast_outbox_archive`` instead
                of deleted (default ``False``).
            briefs: the queue that gets a message when a command ends (default: none). The app's clients and
                ``holdfast briefs`` read the queue ``APP-briefs``.

        Raises ConfigError for a setting that is impossible.
        """
        options = _options(locals())
        for setting in ("topics", "dialect", "patience", "presence", "group_rates"):
            if options[setting] is None:
                del options[setting]
        # The product, which apps without outboxes don't wait for.
        from holdfast import devices  # noqa: PLC0415

        if name in self.outboxes:
            raise ConfigError(f"outbox {name!r} is declared twice in app {self.name!r}")
        made = self.outboxes[name] = devices.Outbox(devices.OutboxSpec(name=name, **options))
        self.add_target("outbox", name)
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
        rate: float = 0.0,
    ) -> TaskDecorator[B]:
        """Declare a type of task. The decorator takes a function of (body, job), sync or async, or a class
        with such a method ``run``. If the class has a method ``terminate(job)``, it is called when an attempt
        must end early.

        The decorator returns a :class:`holdfast.TaskType`. Its method ``send`` sends a task for a node to
        run; a test may call it directly, like the function.

        Args:
            name: the name of the type, of letters, digits, ``.``, ``-`` and ``_``, such as
                ``report.publish``.
            body: the type that the handler gets: a dataclass, pydantic model, msgspec Struct or ``dict``
                (from JSON; ``dict`` is the default), a protobuf message class, ``str`` (plain text) or
                ``bytes`` (the raw body).
            timeout_s: the total time of one attempt, in seconds (default 300).
            tries: how many attempts a failing task gets (default 3).
            backoff: the delays between attempts (default: from 1 to 60 seconds).
            permanent: an exception type, or a tuple of them, after which a task isn't tried again (default:
                none).
            hold: how long the queue hides a delivery while its task runs. ``"timeout"`` (the default): for
                ``timeout_s`` and ``margin_s``. ``"lease"``: for ``lease_s``, extended while the task calls
                ``job.progress``.
            margin_s: how many seconds longer than ``timeout_s`` the delivery stays hidden (default 10).
            lease_s: for how many seconds ``"lease"`` hides the delivery at a time (default 30).
            stall_s: how many seconds a task may run without a call of ``job.progress`` before it is ended as
                by its timeout (default: ``lease_s`` with a ``"lease"``, else no limit).
            memory_mb: how much memory, in MiB, the task's process and its child processes may use together
                (default 0: the setting ``slot_memory_mb``).
            weight: the share of the slots that this type gets when tasks of several types wait (default 1).
            priority: is added to the priority that a task is sent with (default 0). Higher ones run sooner.
            resumable: whether a task that runs longer than the queue can hold a delivery may be started again
                (default ``False``).
            group: the field of the body that names the task's group, such as its customer, or a function of
                the body that returns it (default: no group). Dots reach into nested objects. A group that the
                producer sets comes first.
            group_limit: how many tasks of one group may run at once on a node (default 0: no limit).
            group_rate: how many tasks of one group may begin per second on a node (default 0: no limit).
            rate: how many attempts of this type may begin per second on all nodes together (default 0: no
                limit). ``holdfast limits set APP --rate TYPE=…`` sets another one while nodes run.

        Raises ConfigError for a setting that is impossible.
        """

        options = _options(locals()) | {"permanent": names_of(permanent)}

        def declare(target: Any, /) -> Any:
            if name in self.tasks:
                raise ConfigError(f"task {name!r} is declared twice in app {self.name!r}")
            handler = target.handler if isinstance(target, TaskType) else target
            spec = self.tasks[name] = TaskSpec(name=name, handler=handler, **options)
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
        """Declare tasks that are sent by the clock. The decorator takes a function that gets the due time, in
        ``zone``, and returns the tasks to send (:class:`holdfast.Order`). For each time, they are sent once
        over all nodes. An order without a task id gets one made from ``name`` and the time.

        Args:
            name: a name that is unique in the app.
            cron: the times, as a cron expression of five fields.
            zone: the time zone of ``cron``, such as ``Europe/Berlin``.
            missed: what happens to times that passed while no node ran, at most ``window_s`` ago: send for
                ``"all"`` of them, for the ``"last"`` one, or ``"skip"`` them.
            window_s: how many seconds after a time its tasks may still be sent.
            timeout_s: how many seconds the function may take. A call that takes longer is logged and its
                tasks aren't sent; the function is called again once that call has ended.

        Raises ConfigError for a setting that is impossible.
        """
        options = _options(locals())
        # Few apps have periodics, and this import loads cron, time zones, asyncio and protobuf.
        from holdfast.tasks.periodic import DLQ_BACKUP, Periodic  # noqa: PLC0415

        def declare(orders: F) -> F:
            if name in self.periodics:
                raise ConfigError(f"periodic {name!r} is declared twice in app {self.name!r}")
            if name == DLQ_BACKUP:
                raise ConfigError(f"periodic {name!r}: nodes back up dead letters by that name; take another")
            self.periodics[name] = Periodic(name=name, orders=orders, **options)
            return orders

        return declare


def _options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method of App that are fields of what it declares."""
    return {name: value for name, value in arguments.items() if name not in ("self", "name")}


def named_targets(kinds: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """Return the kind and the name of each target by the names that handlers may use: ``kind:name`` always,
    and ``name`` if no other kind has that name."""
    declared = [(kind, name) for kind, names in kinds.items() for name in names]
    uses = Counter(name for _, name in declared)
    short = {name: (kind, name) for kind, name in declared if uses[name] == 1}
    return {**short, **{f"{kind}:{name}": (kind, name) for kind, name in declared}}
