"""The client of a producing application: it sends messages to streams, sends tasks, and reads their outcomes.
It needs no handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack

from holdfast.config.settings import ClientSettings
from holdfast.config.sources import load
from holdfast.errors import ConfigError
from holdfast.ports.queue import Addition
from holdfast.rules.tasks.task import Task
from holdfast.streams.asking import TIMEOUT_S, QueryAnswer, ask
from holdfast.streams.declared import Undeclared, run_by_nodes
from holdfast.streams.message import StreamMessage
from holdfast.streams.producer import StreamProducer
from holdfast.streams.results import Reader, StreamResult, read_results
from holdfast.streams.spec import StreamSpec
from holdfast.streams.transaction import add_async
from holdfast.streams.typed.state import state_for_users
from holdfast.system.files import access_for
from holdfast.system.log import get_logger
from holdfast.tasks.dead_letters import Choice, TaskDeadLetters
from holdfast.tasks.opening import backup_at, make_dead_letters, make_producer, producing
from holdfast.tasks.order import BatchOptions, LetterOptions, Order, SendOptions, TimesOptions
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.producer import Brief, Producer
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.config.settings import Config
    from holdfast.tasks.schedule import ScheduleEntry, Schedules

T = TypeVar("T")


class DeclaredApp(Protocol):
    """The part of a :class:`holdfast.App` that a client needs."""

    @property
    def name(self) -> str: ...
    @property
    def streams(self) -> Mapping[str, StreamSpec]: ...


class AsyncStreamSender:
    """Sends messages to one stream. Made by :meth:`AsyncClient.stream`."""

    def __init__(self, producer: Callable[[], Awaitable[StreamProducer]]) -> None:
        self._producer = producer

    async def send(
        self,
        message: Any,
        *,
        key: str | int | None = None,
        seq: int | None = None,
        run: int | None = None,
        message_id: str = "",
        delay_s: float = 0.0,
        connection: Any = None,
    ) -> str:
        """Send a message; returns the queue's id for it.

        Args:
            message: an object of the stream's declared type, or any object with the same JSON form, or bytes,
                which are sent unchanged.
            key: the key (default: the key in the message).
            seq: the seq (default: the seq in the message).
            run: the run (default: the run in the message).
            message_id: an id that finds duplicates in a stream without seqs: of all messages with one id, one
                is handled (default: the id that the queue gives).
            delay_s: how many seconds the queue waits before it delivers the message (default 0).
            connection: a connection or session with a transaction of yours, in the database that holds the
                queue (PostgreSQL, or the file of SQLite). The message is sent when you commit, and is not if
                you roll back. A Session, Connection, AsyncSession or AsyncConnection of SQLAlchemy; a
                connection of psycopg or Django; or a sqlite3.Connection. A connection that isn't asynchronous
                blocks the event loop for the moment that the database takes.

        If the message is raw bytes, key, seq and run are sent as its attributes, else as its fields. Raises
        InvalidMessage, which names the field, for a message that the stream can't take; TooLarge; and
        Unavailable or OutcomeUnknown if the queue doesn't answer.
        """
        wrapped = StreamMessage(message, key, seq, run, message_id, delay_s)
        (sent,) = await self.send_many([wrapped], connection=connection)
        return sent

    async def send_many(self, messages: Iterable[Any], *, connection: Any = None) -> list[str]:
        """Send messages in as few calls as the queue allows; returns the queue's ids for them, in order. Each
        is a message as ``send`` takes it, or a :class:`holdfast.StreamMessage`, which also has key, seq and
        run. All are checked before the first is sent. ``connection`` is as for ``send``."""
        if connection is not None:
            return await add_async(connection, await self._addition(messages))
        return await (await self._producer()).send(wrapped(messages))

    async def _addition(self, messages: Iterable[Any]) -> Addition:
        """Return what :meth:`send_many` executes at a connection of the caller's."""
        return await (await self._producer()).addition(wrapped(messages))


class AsyncClient:
    """Sends tasks and messages to an app's nodes, for programs with an event loop; use it with ``async
    with``.

    Args:
        app: the name of the app, or the App itself: messages to its streams are then checked before they are
            sent.
        config: the config file to use instead of ``holdfast.toml``.
        settings: fields of :class:`~holdfast.config.settings.ClientSettings`. All other settings are found as
            a node finds them: in the environment (``HOLDFAST_…``), ``.env`` and ``holdfast.toml``. If
            ``registry_url`` alone is given, the first call reads the other URLs from the registry, where
            nodes write them. It raises ConfigError if no node has done so yet.
    """

    def __init__(
        self, app: str | DeclaredApp, *, config: Path | None = None, **settings: Unpack[ClientSettings]
    ) -> None:
        self._app = app if isinstance(app, str) else app.name
        self._streams: Mapping[str, StreamSpec] | None = None if isinstance(app, str) else app.streams
        self._config = load(settings, config)
        self._open = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._opened: Services | None = None
        self._sending: Producer | None = None
        self._streaming: dict[str, StreamProducer] = {}
        self._letters: TaskDeadLetters | None = None
        self._undeclared: Undeclared | None = None

    async def _services(self) -> Services:
        async with self._opening:
            if self._opened is None:
                self._opened = await self._open.enter_async_context(producing(self._config, self._app))
            return self._opened

    async def _producer(self) -> Producer:
        services = await self._services()
        if self._sending is None:
            self._sending = make_producer(services, self._app)
            self._open.push_async_callback(self._sending.close)
        return self._sending

    async def _dead_letters(self) -> TaskDeadLetters:
        services = await self._services()
        if self._letters is None:
            self._letters = make_dead_letters(services, self._app)
        return self._letters

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Briefs that weren't acknowledged come again."""
        try:
            if self._undeclared is not None:
                await self._undeclared.close()
        finally:
            await self._open.aclose()

    def stream(self, name: str) -> AsyncStreamSender:
        """Return what sends messages to the stream ``name``. Raises ConfigError for a stream that isn't
        declared, if the client was given an App."""
        spec = self._spec(name)

        async def producer() -> StreamProducer:
            services = await self._services()
            if name not in self._streaming:
                self._look_for(name, services)
                values = services.values(self._app)
                self._streaming[name] = StreamProducer(name, services.queue(name), spec, values)
            return self._streaming[name]

        return AsyncStreamSender(producer)

    def _look_for(self, stream: str, services: Services) -> None:
        """Warn once of a stream that no node runs, if the settings say where nodes are."""
        config = services.config
        if not {"url", "coordinator_url"} & config.model_fields_set and (
            config.coordinator_url != config.queue_url
        ):
            return  # what is there has to do with other nodes
        if self._undeclared is None:
            log = get_logger(__name__).bind(app=self._app)
            self._undeclared = Undeclared(partial(_run_by_nodes, config), log)
        self._undeclared.look_for(stream)

    def _spec(self, stream: str) -> StreamSpec | None:
        """Return the declaration of a stream, if the client was given an App. Raises ConfigError."""
        spec = None if self._streams is None else self._streams.get(stream)
        if self._streams is not None and spec is None:
            declared = ", ".join(self._streams) or "none"
            raise ConfigError(f"app {self._app!r} declares no stream {stream!r}; it has {declared}")
        return spec

    async def query(
        self, stream: str, key: str | int, request: Any = None, *, timeout_s: float = TIMEOUT_S
    ) -> QueryAnswer:
        """Ask the stream ``stream`` a question, which its handler's ``query`` answers from the last commit of
        ``key``. Nothing changes by it, and a key that nothing was sent for has an answer too.

        Args:
            stream: the declared name of the stream.
            key: the stream's key.
            request: what the handler gets: any value that JSON can hold (default None).
            timeout_s: how long to wait for an answer (default 30).

        Raises NoQuery if the stream answers no queries; InvalidMessage for a request that can't be sent, or
        that the handler refuses; QueryFailed if the handler fails; and Unavailable or OutcomeUnknown if no
        node answers in time.
        """
        self._spec(stream)
        services = await self._services()
        caller = services.caller()
        return await ask(services.coordinator(), caller, services.clock, stream, key, request, timeout_s)

    async def results(
        self, stream: str, *, after: int | None = None, reader: str = "", follow: bool = False
    ) -> AsyncGenerator[StreamResult[Any]]:
        """Yield the committed results of a stream, in the order of their commits.

        Args:
            stream: the declared name of the stream.
            after: the cursor behind which to begin (default: at the saved cursor of ``reader``, else at the
                oldest result that is kept).
            reader: a name under which the registry keeps how far the results are read. Asking for the next
                result acknowledges the one before it; the last ones may come again after a crash.
            follow: whether to wait for further results, for ever, instead of ending.

        Raises ReaderLost if another program has begun to read under the same name; ResultsExpired if results
        may have expired that the reader hasn't read; and Unavailable or OutcomeUnknown.
        """
        self._spec(stream)
        services = await self._services()
        state = services.state()
        if reader:
            keep_s = services.config.results_keep_s
            named = Reader(services.registry(), state, services.clock, stream, reader, keep_s)
            reading = named.read(after, follow=follow)
        else:
            reading = read_results(state, stream, after or 0, follow=follow)
        async with contextlib.aclosing(reading) as results:
            async for result in results:
                yield result

    async def state(self, stream: str, key: str | int) -> Any:
        """Return the state of a stream's key as of its last commit: of the declared type, or the bytes of its
        handler; None for a key without state. Raises StateRejected if it doesn't fit the type, and
        Unavailable."""
        spec = self._spec(stream)
        found = await (await self._services()).state().peek(f"{stream}/{key}")
        if found is None or found.state is None or spec is None:
            return None if found is None else found.state
        return state_for_users(spec.handler, found.state, found.state_version)

    async def send(self, task_type: str, body: Any = None, **options: Unpack[SendOptions]) -> str:
        """Send a task; returns its task id.

        Args:
            task_type: the declared name of the task's type.
            body: what the handler gets: an object of the declared type, a protobuf message, a text, or any
                value that JSON can hold.
            options: as for :meth:`holdfast.TaskType.send`, such as ``delay_s``.

        Raises InvalidMessage for a body that can't be sent or an impossible option, TooLarge, ConfigError,
        and Unavailable or OutcomeUnknown if the queue or the task store doesn't answer.
        """
        order = Order(task_type=task_type, body=body, **options)
        (task_id,) = await self.send_many([order])
        return task_id

    async def send_many(self, orders: Sequence[Order]) -> list[str]:
        """Send tasks in as few calls as the queue allows; returns their task ids, in order."""
        return await (await self._producer()).send(orders)

    async def send_batch(self, orders: Sequence[Order], **options: Unpack[BatchOptions]) -> str:
        """Send tasks together, and once all of them have ended what follows. Returns the id of the batch, for
        ``status`` and ``wait``.

        Args:
            orders: at most 10,000 tasks, which have no ``task_id`` or ``dedupe`` of their own.
            then: the task, or tasks, to send once all have succeeded. ``job.after`` is the outcome of the
                batch; its ``value`` says how many ``tasks`` there were, and how many ``failed``.
            on_failure: the same for when all have ended and one or more have not succeeded.
            task_id: the id of the batch (default: a random one, or one made from ``dedupe``).
            dedupe: of the batches with the same key, only the first is sent (default: none).

        If this raises OutcomeUnknown, some may have been sent; the same call with a ``task_id`` or
        ``dedupe`` sends the others. Otherwise it raises as ``send``.
        """
        return await (await self._producer()).send_batch(orders, **options)

    async def schedule(
        self,
        name: str,
        cron: str,
        order: Order,
        **options: Unpack[TimesOptions],
    ) -> None:
        """Have a task sent by the clock from now on, by the nodes that run. An entry of the same name is
        replaced.

        Args:
            name: its name in the schedule of the app, which no ``App.periodic`` has.
            cron: the times, as a cron expression of five fields.
            order: the task, with a body that JSON can hold; without ids, delay and follow-ups.
            zone: the time zone of ``cron``, such as ``Europe/Berlin``.
            missed: as for :meth:`holdfast.App.periodic`.
            window_s: as for :meth:`holdfast.App.periodic`.

        Raises ConfigError, InvalidMessage, OperationRefused for a name that the code of the app declares, and
        Unavailable or OutcomeUnknown if the registry doesn't answer.
        """
        from holdfast.tasks.schedule import entry_of  # noqa: PLC0415 - cron and time zones

        services = await self._services()
        now = await services.task_store(self._app).now()
        entry = entry_of(order, cron, **options)
        await (await self._schedules()).set(name, entry, now)

    async def unschedule(self, name: str) -> None:
        """Remove a task from the schedule. Raises OperationRefused if it isn't there."""
        await (await self._schedules()).remove(name)

    async def scheduled(self) -> Mapping[str, ScheduleEntry]:
        """Return what the schedule of the app has, by name."""
        return await (await self._schedules()).read()

    async def _schedules(self) -> Schedules:
        from holdfast.tasks.schedule import Schedules  # noqa: PLC0415 - cron and time zones

        services = await self._services()
        return Schedules(services.registry(), self._app, services.clock)

    async def status(self, task_id: str) -> Task | None:
        """Return a task's record: its state, attempts and outcome; None for a task that isn't known, or is no
        longer kept."""
        return await (await self._producer()).status(task_id)

    async def wait(self, task_id: str, timeout_s: float | None = None) -> Outcome:
        """Wait until a task has ended, and return its outcome. With ``timeout_s`` a task that isn't known is
        waited for too, such as one that follows upon others: it is sent once they have ended. Raises
        TimeoutError after ``timeout_s``, and without it OperationRefused for a task that isn't known."""
        return await (await self._producer()).wait(task_id, timeout_s)

    async def briefs(self, *, follow: bool = True) -> AsyncGenerator[Brief]:
        """Yield outcome events of tasks: with ``follow`` for ever as they come, else all that wait now. An
        event comes again unless its ``ack()`` is called."""
        async with contextlib.aclosing((await self._producer()).briefs(follow=follow)) as briefs:
            async for brief in briefs:
                yield brief

    async def cancel(self, task_id: str, reason: str = "cancelled by its producer") -> Task | None:
        """Cancel a task. Returns its record; None for a task that isn't known."""
        return await (await self._producer()).cancel(task_id, reason)

    async def back_up(
        self,
        target: str,
        *,
        types: Collection[str] = (),
        **choice: Unpack[LetterOptions],
    ) -> int:
        """Copy dead letters to a file of JSON lines, ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``.
        Letters that are already there are left out. Returns how many were copied.

        Args:
            target: the file's path, or a URL.
            types: only tasks of these types (default: all known types).
            task_id: only the task with this id (default: all).
            since: only those dead-lettered at this wall time, in seconds, or later (default: all).
            until: only those dead-lettered before this wall time, in seconds (default: all).
            error: only letters whose reason this regular expression finds (default: all).
        """
        letters = await self._dead_letters()
        async with backup_at(target, access_for(self._config.file_access)) as backup:
            return await letters.back_up(backup, types, Choice(**choice))

    async def redrive(
        self,
        *,
        types: Collection[str] = (),
        source: str = "",
        **choice: Unpack[LetterOptions],
    ) -> int:
        """Send dead letters again, each with all its tries; returns how many. The arguments choose them as
        for ``back_up``. ``source`` takes them from a back-up instead, a path or URL that ``back_up`` wrote;
        tasks which wait, run or have succeeded since are then left out."""
        letters = await self._dead_letters()
        if not source:
            return await letters.redrive(types, Choice(**choice))
        async with backup_at(source) as backup:
            sent, _ = await letters.redrive_kept(backup, types, Choice(**choice))
            return sent


def wrapped(messages: Iterable[Any]) -> list[StreamMessage]:
    """Return each message as a :class:`StreamMessage`."""
    return [each if isinstance(each, StreamMessage) else StreamMessage(each) for each in messages]


async def _run_by_nodes(config: Config) -> Sequence[str]:
    """Return the names of all streams that living nodes run, by a connection that stays open for no longer.
    Nothing is made for it: there are no nodes where there are no tables. Raises as the coordinator does."""
    async with Services(config, reads_only=True, expands=False) as services:
        steps = await services.schema_steps(config.coordinator_url)
        if steps is not None and (steps.expand or steps.blocked):
            return ()
        return await run_by_nodes(services.coordinator())
