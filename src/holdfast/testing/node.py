"""A node for tests: it runs an app in the test's process, on a database of its own."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from holdfast.app.app import App
from holdfast.assembly.loading import of_products
from holdfast.assembly.node import make_node
from holdfast.client.client import Client, StreamSender
from holdfast.cluster.node import Node
from holdfast.config.settings import Config, NodeSettings
from holdfast.errors import ConfigError
from holdfast.ports.objects import Objects
from holdfast.ports.queue import DeadLetter
from holdfast.ports.slots import StreamSlotMaker, TaskHost, TaskSlotMaker
from holdfast.services.memory.slots import MemorySlots
from holdfast.services.memory.task_slots import MemoryTaskSlots
from holdfast.streams.results import StreamResult, result_of
from holdfast.tasks.names import task_queue
from holdfast.tasks.opening import make_values
from holdfast.tasks.outcome import Outcome, outcome_of
from holdfast.testing.in_process import ThreadTaskWorker, ThreadWorker
from holdfast.wiring.services import Services

T = TypeVar("T")

PATIENCE_S = 30.0
LOOK_S = 0.02
"""The pause between checks of whether a queue is empty."""

SETTINGS: dict[str, Any] = {
    "durability": "normal",
    "slots": 1,
    "spare_slots": 0,
    "task_slots": 2,
    "balance_s": 0,
}
"""The default settings of a node for tests."""


class NodeForTests:
    """A node that runs an app in this process. Made by :func:`node_for_tests`.

    Attributes:
        app: the app that it runs.
        client: a client that sends to the node and reads outcomes.
        url: the URL of its services, as in ``Client(app, url=node.url)``.
        folder: the folder of its database and objects.
    """

    def __init__(self, app: App, folder: Path, settings: NodeSettings) -> None:
        self.app = app
        self.folder = folder
        self.url = f"sqlite:///{folder / 'holdfast.db'}"
        if not (app.streams or app.tasks or of_products(app)):
            raise ConfigError(f"app {app.name!r} declares no stream, task or outbox")
        given: dict[str, Any] = {
            **SETTINGS,
            "url": self.url,
            "objects_url": f"file:{folder / 'objects'}",
            **settings,
        }
        try:
            self._config = Config(**given)
        except ValidationError as error:
            raise ConfigError(f"settings of a node for tests: {error}") from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-test-node", daemon=True)
        self._services: Services
        self._node: Node

    @property
    def client(self) -> Client:
        return self.app.client

    def stream(self, name: str) -> StreamSender:
        """Return what sends messages to a stream of the app."""
        return self.client.stream(name)

    def results(
        self, stream: str, count: int | None = None, *, timeout_s: float = PATIENCE_S
    ) -> list[StreamResult[Any]]:
        """Return what the stream's handler has returned so far, in the order of commits.

        Without ``count``, this waits until all messages that were sent to the stream are handled or
        dead-lettered. With ``count``, it waits until there are ``count`` results. Raises TimeoutError after
        ``timeout_s``, and the error of a node that crashed.
        """
        return self._run(self._results(stream, count, timeout_s))

    def outcome(self, task_id: str, *, timeout_s: float = PATIENCE_S) -> Outcome:
        """Wait until a task has ended, and return its outcome. Its message may still be in its queue. Raises
        TimeoutError, and the error of a node that crashed."""
        return self._run(self._outcome(task_id, timeout_s))

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """Return up to 1000 dead letters of a stream or of a type of task."""
        is_task = name in self.app.tasks and name not in self.app.streams
        queue = self._services.queue(task_queue(self.app.name, name) if is_task else name)
        return self._run(queue.dead_letters(1000))

    async def _outcome(self, task_id: str, timeout_s: float) -> Outcome:
        deadline, store = time.monotonic() + timeout_s, self._services.task_store(self.app.name)
        while (task := await store.get(task_id)) is None or not task.ended:
            standing = "not known" if task is None else task.state.value
            await self._look_again(deadline, f"task {task_id!r} is {standing} after {timeout_s:g} s")
        outcome = outcome_of(self.app.name, task)
        if outcome.stored is None:
            return outcome
        return await make_values(self._services, self.app.name).with_value(outcome)

    async def _look_again(self, deadline: float, complaint: str) -> None:
        """Wait for a moment. After ``deadline``, raise TimeoutError with the text ``complaint``."""
        if self._node.host.crashed.done():
            raise self._node.host.crashed.result()
        if time.monotonic() >= deadline:
            raise TimeoutError(complaint)
        await asyncio.sleep(LOOK_S)

    async def _results(self, stream: str, count: int | None, timeout_s: float) -> list[StreamResult[Any]]:
        if stream not in self.app.streams:
            raise ConfigError(f"app {self.app.name!r} declares no stream {stream!r}")
        deadline = time.monotonic() + timeout_s
        queue, state = self._services.queue(stream), self._services.state()
        found: list[StreamResult[Any]] = []
        cursor = 0
        while True:
            depth = await queue.depth()  # before the results, which are then complete
            while some := await state.results(cursor, 1000, 0.0, stream):
                cursor = some[-1].cursor
                found += [result_of(each) for each in some]
            is_empty = depth.ready + depth.in_flight + depth.delayed == 0
            if is_empty if count is None else len(found) >= count:
                return found
            waiting = (
                f"there are {len(found)} results of {count}" if count else f"{depth.ready} messages wait"
            )
            await self._look_again(
                deadline,
                f"stream {stream!r}: after {timeout_s:g} s {waiting}, {depth.in_flight} are being"
                f" handled, {depth.dead} were set aside",
            )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self) -> None:
        """Start the node; returns when it has joined. From now on, the app's client sends to it."""
        self._thread.start()
        try:
            self._run(self._start())
            config = self._config  # set each of them, because the environment may name others
            self.app.connect(
                url=config.url,
                queue_url=config.queue_url,
                state_url=config.state_url,
                tasks_url=config.tasks_url,
                registry_url=config.registry_url,
                values_url=config.values_url,
                max_message_bytes=config.max_message_bytes,
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the node and its clients."""
        self.app.disconnect()
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _start(self) -> None:
        self._services = _ServicesInProcess(self.app, self._config, self.folder)
        self._node = make_node(self._services, self.app)
        await self._node.start()

    async def _stop(self) -> None:
        if hasattr(self, "_node"):
            await self._node.stop()
        if hasattr(self, "_services"):
            await self._services.close()


class _ServicesInProcess(Services):
    """Services whose slots are threads, and whose archives are in the folder of the test."""

    def __init__(self, app: App, config: Config, folder: Path) -> None:
        super().__init__(config)
        self._app = app
        self._archive = f"file:{quote(str(folder.resolve() / 'archive'))}"

    def archive(self, url: str) -> Objects:
        """As the base class does, but never what the app declares: that is where live messages are."""
        return super().archive(self._archive)

    def slots(self, app: str) -> StreamSlotMaker:
        make = partial(ThreadWorker, self._app, self.config.objects_url)
        return self._kept(MemorySlots(make, self.clock))

    def task_slots(self, app: str) -> TaskSlotMaker:
        def make(host: TaskHost) -> ThreadTaskWorker:
            return self._kept(ThreadTaskWorker(self._app, host))

        return self._kept(MemoryTaskSlots(make, self.clock))


@contextlib.contextmanager
def node_for_tests(
    app: App, *, folder: Path | None = None, settings: NodeSettings | None = None
) -> Iterator[NodeForTests]:
    """Run a node of ``app`` in this process until the block ends.

    It is a whole node: queues, checkpoints, retries, limits and periodic tasks work as in production, on
    SQLite in ``folder``. Only handlers run in threads instead of processes. Programs with an event loop may
    use it too, because the node has a loop of its own. Until the block ends, ``send`` of the app's tasks
    sends to this node.

    Args:
        app: the app to run.
        folder: the folder of its database, objects and archives (default: a new one, which is deleted at the
            end). Streams are archived there, whatever they declare.
        settings: the settings of the node by name, such as ``{"max_message_bytes": 1000}`` (default: the
            usual ones, with one slot for streams and two for tasks). Environment and config files are not
            read.

    Raises ConfigError for impossible settings, and for an app that declares nothing.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-")))
        node = NodeForTests(app, folder, settings or {})
        node.start()
        stack.callback(node.stop)
        yield node
