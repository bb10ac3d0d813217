"""Attempts in processes: whatever a handler does, its end is told, in time, and nothing of it is left."""

import asyncio
import contextlib
import importlib
import json
import math
import os
import signal
import sys
import textwrap
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from holdfast import App
from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.stats import Stats
from holdfast.errors import ConfigError
from holdfast.rules.tasks.attempt import How
from holdfast.rules.tasks.task import Task
from holdfast.slots.task_child import CALLS_MAX, CHARS_MAX, stacks
from holdfast.slots.task_slots import ForkserverTaskSlot, TaskSlotSettings, task_slots
from holdfast.system.clock import SystemClock
from holdfast.tasks import slots
from holdfast.tasks.body import body_of
from holdfast.tasks.slots import STUCK_S, Ended, Running, TaskSlots
from tests.cluster.fakes import make_host

HERE = str(Path(__file__).parent)
PATIENCE_S = 20.0


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **values: self.lines.append({"level": level, "event": event, **values})

    def said(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if text in line["event"]]


class Yard:
    """A pool of real slots, and what tests do with it."""

    def __init__(self, **settings: Any) -> None:
        self.app: App = importlib.import_module("deeds_app").app
        self.log = Log()
        self.crashes: list[BaseException] = []
        self.clock = SystemClock()
        self.tasks = Tasks(self.crashes.append)
        self.maker = task_slots(
            TaskSlotSettings(app="deeds_app:app", check_s=0.05, close_timeout_s=0.1), self.clock
        )
        self.host = make_host(self.clock, self.tasks, log=self.log)
        self.stats = self.host.stats
        self.pool = TaskSlots(self.maker, self.host, **{"limit": 2} | settings)
        self.count = 0

    def begin(
        self, kind: str, body: Any = None, task: Task | None = None, **changed: Any
    ) -> Awaitable[Ended]:
        self.count += 1
        task = task or Task(f"task-{self.count}", kind, attempts=1, epoch=1)
        attempt = self.app.tasks[kind].attempt(body_of({} if body is None else body), task)
        return self.pool.run(msgspec.structs.replace(attempt, **changed))

    async def run(self, kind: str, body: Any = None, **changed: Any) -> Ended:
        return await asyncio.wait_for(self.begin(kind, body, **changed), PATIENCE_S)

    async def close(self) -> None:
        await self.pool.close()
        await self.tasks.close()
        for crash in self.crashes:
            raise crash

    @property
    def only(self) -> Running:
        (running,) = self.pool.running.values()
        return running

    def outlast(self) -> None:
        """Have the only attempt be over its time now. A short time could end before the handler begins."""
        run = self.only
        assert run.begun_at is not None
        run.begun_at -= run.attempt.timeout_s
        self.pool.renew(run.attempt.task_id, math.inf)  # only to have it looked at


Make = Callable[..., Awaitable[Yard]]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path() -> AsyncIterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(HERE)
        yield


@pytest_asyncio.fixture(loop_scope="module")
async def make(path: None) -> AsyncIterator[Make]:
    made: list[Yard] = []

    async def make(**settings: Any) -> Yard:
        made.append(Yard(**settings))
        await made[-1].pool.start()
        return made[-1]

    yield make
    for yard in made:
        await yard.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(path: None) -> AsyncIterator[Yard]:
    yard = Yard()
    await yard.pool.start()
    yield yard
    await yard.close()


@pytest.fixture
def yard(shared: Yard) -> Yard:
    """One for all tests that don't mind: to start a fork server takes longer than most of them."""
    assert not shared.pool.running
    shared.count = 0
    for name, value in msgspec.structs.asdict(Stats()).items():
        setattr(shared.stats, name, value)
    shared.log.lines.clear()
    return shared


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def told(fifo: Path) -> list[int]:
    """The process ids that a handler writes to a FIFO, once it has."""
    loop, written = asyncio.get_running_loop(), asyncio.Event()
    # Not in a thread: one that waits for a handler that never writes outlives the test.
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        loop.add_reader(end, written.set)
        await asyncio.wait_for(written.wait(), PATIENCE_S)
        return [int(pid) for pid in os.read(end, 4096).split()]
    finally:
        loop.remove_reader(end)
        os.close(end)


async def until(true: Callable[[], bool]) -> None:
    """Wait for what comes without an event."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


# --- what returns, and what raises


@pytest.mark.slow
async def test_a_handler_is_told_all_of_its_attempt(yard: Yard) -> None:
    task = Task("t", "job", attempts=2, epoch=7)
    ended = await yard.run("job", "plain text", task=task)
    assert json.loads(ended.result) == ["plain text", "deeds", "job", "t", [2, 5, 7], True, False]
    assert (ended.how, ended.error, ended.begun) == (How.RETURNED, "", True)
    assert ended.took_s > 0 < ended.memory_mb


@pytest.mark.slow
async def test_a_handler_that_returns_nothing_has_an_empty_result(yard: Yard) -> None:
    ended = await yard.run("noop")
    assert (ended.how, ended.result) == (How.RETURNED, b"")


async def test_what_a_handler_sends_comes_with_its_return(yard: Yard) -> None:
    sizes = [10, *[200_000] * 5]
    ended = await yard.run("send", {"sizes": sizes})
    assert [(each.target, each.key, len(each.body), each.delay_s) for each in ended.sends] == [
        *[("https://alerts.example", "k", size + 2, 0.0) for size in sizes],
        ("noop", "", 2, 1.5),
    ]
    failed = await yard.run("send", {"sizes": [1], "fails": True})
    assert (failed.how, failed.sends) == (How.RAISED, ())
    assert (await yard.run("noop")).sends == ()


@pytest.mark.parametrize("size", [0, 1 << 16, (1 << 16) + 1, 5_000_000])
async def test_bodies_of_any_size_arrive(yard: Yard, size: int) -> None:
    fds = psutil.Process().num_fds()
    assert (await yard.run("size", b"x" * size)).result == b"%d" % size
    assert psutil.Process().num_fds() <= fds


@pytest.mark.parametrize(
    "kind,error,permanent",
    [("permission", "PermissionError: as told", True), ("value", "ValueError: as told", False)],
)
async def test_an_error_of_the_handler_is_reported(
    yard: Yard, kind: str, error: str, permanent: bool
) -> None:
    ended = await yard.run("raise", {"kind": kind})
    assert (ended.how, ended.error, ended.permanent) == (How.RAISED, error, permanent)
    assert "in raise_it" in ended.detail


async def test_a_handler_may_give_up_by_itself(yard: Yard) -> None:
    assert (await yard.run("raise", {"kind": "cancelled"})).how is How.CANCELLED


async def test_a_body_that_does_not_fit_is_no_use(yard: Yard) -> None:
    ended = await yard.run("noop", "[1, 2]")
    assert (ended.how, ended.permanent) == (How.RAISED, True)
    assert "object" in ended.error


@pytest.mark.parametrize(
    "kind,error",
    [("object", "return a JSON value, text, or None"), ("bytes", "is bytes"), ("huge", "200002 bytes")],
)
async def test_a_result_that_json_can_t_hold_is_an_error(yard: Yard, kind: str, error: str) -> None:
    ended = await yard.run("junk", {"kind": kind})
    assert ended.how is How.RAISED
    assert error in ended.error


async def test_an_exit_is_an_error_like_others(yard: Yard) -> None:
    ended = await yard.run("exit_politely")
    assert (ended.how, ended.error) == (How.RAISED, "SystemExit: so long")
    assert yard.stats.slot_deaths == 0


async def test_every_step_of_the_progress_is_reported(yard: Yard) -> None:
    steps: list[tuple[float | None, str, dict[str, float]]] = []
    attempt = yard.app.tasks["steps"].attempt(body_of({"steps": 3}), Task("t", "steps"))
    ended = yard.pool.run(
        attempt, lambda run: steps.append((run.progress.fraction, run.progress.note, run.progress.numbers))
    )
    assert (await ended).how is How.RETURNED
    assert steps == [(n / 3, f"step {n}", {"rows": n - 1}) for n in (1, 2, 3)]


async def test_what_is_said_is_logged_under_its_task(yard: Yard) -> None:
    await yard.run("speak", {"event": "e"})
    context = {"task_id": "task-1", "task_type": "speak"}
    for text in ("written", "printed", "shouted"):
        (line,) = yard.log.said(text)
        assert line.items() >= {"level": "info", **context}.items()
    assert yard.log.said("written")[0]["odd"] == "{1, 2}"


@pytest.mark.parametrize("name", ["self", "event", "method_name", "positional_args", "stack", "task_id"])
async def test_a_handler_may_log_a_value_under_a_name_that_the_log_takes_itself(
    yard: Yard, name: str
) -> None:
    assert (await yard.run("log", {name: 7})).how is How.RETURNED
    (line,) = yard.log.said("said")
    assert line[f"{name}_"] == "7"
    assert line.get(name) != "7"


async def test_a_slot_of_which_the_node_can_not_handle_what_it_says_is_dead(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the attempt hung until its timeout, and the node could not stop."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("no such line")

    with monkeypatch.context() as patched:
        patched.setattr(TaskSlots, "on_log", fail)
        ended = await asyncio.wait_for(yard.begin("log_and_stay"), PATIENCE_S)
    assert (ended.how, ended.begun) == (How.DIED, True)
    assert ended.error == "its slot was killed: its message can't be handled: KeyError('no such line')"
    assert (await yard.run("noop")).how is How.RETURNED


async def test_a_flood_is_cut_short_and_holds_nobody_up(yard: Yard) -> None:
    flooding = asyncio.ensure_future(yard.run("flood", {"lines": 3000}))
    await asyncio.gather(*(yard.run("noop") for _ in range(20)))
    assert (await flooding).how is How.RETURNED
    await until(lambda: bool(yard.log.said("output lines dropped")))
    assert len(yard.log.lines) < 3000


async def test_a_daemon_that_a_task_left_behind_ends_with_the_node(path: None) -> None:
    yard = Yard(limit=1)
    await yard.pool.start()
    pid = int((await yard.run("leave_daemon")).result)
    try:
        assert (await yard.run("noop")).how is How.RETURNED
        assert lives(pid)
        await yard.close()
        await until(lambda: not lives(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


RESTORED = [
    "the environment", "the working directory", "the standard streams", "the umask", "the recursion limit",
    "the locale", "the default timeout of sockets", "handlers of signals", "blocked signals", "timers",
    "the priority", "limits of resources",
]  # fmt: skip


@pytest.mark.parametrize("what", RESTORED)
async def test_what_a_task_changes_of_its_process_is_put_back_and_the_task_is_named(
    make: Make, what: str
) -> None:
    yard = await make(limit=1)
    before = await yard.run("process")
    spoilt = await yard.run("spoil", {"what": what})
    assert spoilt.how is How.RETURNED
    assert spoilt.result != before.result
    assert (await yard.run("process")).result == before.result, "in the same process"
    await yard.run("spoil", {"what": what})
    (told,) = yard.log.said("process state changed by a task")
    assert (told["task_type"], told["task_id"], told["changed"]) == ("spoil", "task-2", what)


async def test_a_slot_that_runs_out_of_descriptors_is_replaced_and_the_task_is_named(make: Make) -> None:
    yard = await make(limit=1)
    spoilt = await yard.run("spoil", {"what": "descriptors"})
    assert spoilt.how is How.RETURNED
    after = await yard.run("process")
    assert json.loads(after.result)[0] != json.loads(spoilt.result)[0], "in another process"
    (told,) = yard.log.said("process spoilt by a task")
    assert (told["level"], told["task_type"], told["task_id"]) == ("error", "spoil", "task-1")
    assert told["lost"] == "descriptors: too many are open"


# --- what doesn't return

HANGS = ["sleep", "wait", "spin", "hold_lock", "read_pipe", "deaf", "children"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", HANGS)
async def test_an_attempt_over_its_timeout_is_ended_soon(yard: Yard, fifo: Path, kind: str) -> None:
    hanging = asyncio.ensure_future(yard.run(kind, {"fifo": str(fifo)}, timeout_s=90.0))
    pids = await told(fifo)
    yard.outlast()
    ended = await hanging
    assert (ended.how, ended.error) == (How.TIMED_OUT, "over its time: timeout_s = 90")
    if kind != "deaf":
        assert f"in {'select' if kind == 'wait' else kind}" in ended.detail
    await until(lambda: not any(map(lives, pids[1:])) or kind == "children")
    assert (await yard.run("noop")).how is How.RETURNED


@pytest.mark.parametrize("kind", ["sleep", "wait", "spin", "read_pipe"])
async def test_a_look_shows_files_lines_and_functions_and_disturbs_nobody(
    yard: Yard, fifo: Path, kind: str
) -> None:
    running = yard.begin(kind, {"fifo": str(fifo)}, timeout_s=PATIENCE_S)
    await told(fifo)
    for _ in range(2):
        found = await yard.pool.look("task-1")
        assert found is not None
        run, text = found
        assert run.attempt.type == kind
        assert text is not None
        assert "deeds_app.py" in text
        assert f"in {kind}" in text
        assert str(fifo) not in text, "no values"
    assert yard.pool.cancel("task-1", "enough")
    assert (await running).how is How.CANCELLED


@pytest.mark.slow
async def test_a_look_at_a_handler_that_holds_the_interpreter_says_so(yard: Yard, fifo: Path) -> None:
    running = yard.begin("hold_lock", {"fifo": str(fifo)}, timeout_s=PATIENCE_S)
    await told(fifo)
    async with asyncio.timeout(PATIENCE_S):
        while (found := await yard.pool.look("task-1")) is not None and found[1] is not None:
            pass  # it has yet to take the lock
    assert found is not None
    assert yard.pool.cancel("task-1", "enough")
    assert (await running).how is How.CANCELLED


async def test_a_look_is_bounded_and_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(count: int) -> str:
        return deep(count - 1) if count else told_from_beside()

    def told_from_beside() -> str:
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(stacks()))
        asking.start()
        asking.join()
        return found[0]

    text = deep(300)
    assert len(text) <= CHARS_MAX
    assert text.count(" in deep") <= CALLS_MAX
    assert "calls above" in text
    source = compile("def run(call): return call()", "redis://user:hunter2@host/app.py", "exec")
    names: dict[str, Any] = {}
    exec(source, names)
    assert "in run" in (text := names["run"](told_from_beside))
    assert "hunter2" not in text


@pytest.mark.slow
async def test_what_ignores_everything_is_killed_with_all_that_it_started(
    yard: Yard, fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "SOFT_S", 2.0)  # enough to write the note on a busy machine
    notes = tmp_path / "notes"
    body = {"fifo": str(fifo), "notes": str(notes)}
    hanging = asyncio.ensure_future(yard.run("stubborn", body))
    pids = await told(fifo)
    yard.outlast()
    ended = await hanging
    assert ended.how is How.TIMED_OUT
    assert notes.read_text() == "told to end\n", "once"
    await until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize(
    "kind,error",
    [("crash", "its slot died of SIGSEGV"), ("leave", "its slot exited with code 3")],
)
async def test_the_death_of_a_process_is_reported(yard: Yard, kind: str, error: str) -> None:
    ended = await yard.run(kind)
    assert (ended.how, ended.error, ended.begun, ended.permanent) == (How.DIED, error, True, False)
    assert ("in crash" in ended.detail) is (kind == "crash")
    assert yard.stats.slot_deaths == 1
    assert (await yard.run("noop")).how is How.RETURNED


@pytest.mark.slow
@pytest.mark.parametrize("stay,how", [(True, How.TIMED_OUT), (False, How.DIED)])
async def test_a_slot_without_connection_is_over_too(yard: Yard, stay: bool, how: How) -> None:
    assert (await yard.run("close_all", {"stay": stay}, timeout_s=0.5 if stay else 90.0)).how is how
    assert (await yard.run("noop")).how is How.RETURNED


async def test_a_fork_that_returns_is_no_second_slot(yard: Yard) -> None:
    assert {(await yard.run("fork_and_return")).result for _ in range(3)} == {b'"parent"'}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="allocation is limited on Linux only")
async def test_a_task_over_its_memory_limit_fails(make: Make) -> None:
    yard = await make(limit=1)
    ended = await yard.run("hoard")
    assert (ended.how, ended.error) == (How.RAISED, "MemoryError")
    await until(lambda: yard.pool.slots == 0)
    assert (await yard.run("noop")).how is How.RETURNED, "in another slot, for that one is spoiled"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="allocation is limited on Linux only")
async def test_a_large_body_is_not_read_under_the_memory_limit_of_the_task_before(make: Make) -> None:
    yard = await make(limit=1)
    await yard.run("noop")
    (seat,) = yard.pool.seats.values()
    assert isinstance(seat.slot, ForkserverTaskSlot)
    held_mb = psutil.Process(seat.slot.pid).memory_info().data // 2**20
    assert (await yard.run("noop", memory_mb=held_mb + 24)).how is How.RETURNED
    ended = await yard.run("noop", {"text": "x" * (40 << 20)}, memory_mb=2000)
    assert (ended.how, ended.error) == (How.RETURNED, "")
    assert yard.stats.slot_deaths == 0


@pytest.mark.parametrize("kind", ["hoard_shared", "hoard_by_children"])
async def test_memory_that_allocation_does_not_count_is_seen_too(yard: Yard, kind: str) -> None:
    ended = await yard.run(kind)
    assert ended.how is How.DIED
    assert "over memory_mb = 150" in ended.error


# --- telling it to end


async def test_a_cancelled_handler_ends_in_order(yard: Yard, fifo: Path, tmp_path: Path) -> None:
    body = {"fifo": str(fifo), "notes": str(tmp_path / "notes")}
    running = asyncio.ensure_future(yard.run("tidy", body))
    await told(fifo)
    assert yard.pool.cancel("task-1", "somebody wished it", PATIENCE_S)
    assert yard.pool.cancel("task-1", "again")
    ended = await running
    assert (ended.how, ended.error, ended.begun) == (How.CANCELLED, "somebody wished it", True)
    lines = (tmp_path / "notes").read_text().splitlines()
    assert sorted(lines) == ["cancelled: somebody wished it", "hook", "terminate: True"]
    assert lines.index("hook") < lines.index("terminate: True"), "the newest hook first"
    assert yard.stats.slot_deaths == 0
    assert not yard.pool.cancel("task-1", "too late")


@pytest.mark.parametrize("kind", ["sleep", "wait", "spin"])
async def test_handlers_are_interrupted_wherever_they_are(yard: Yard, fifo: Path, kind: str) -> None:
    running = asyncio.ensure_future(yard.run(kind, {"fifo": str(fifo)}))
    await told(fifo)
    yard.pool.cancel("task-1", "enough", PATIENCE_S)
    assert (await running).how is How.CANCELLED
    assert yard.stats.slot_deaths == 0


@pytest.mark.slow
async def test_an_attempt_that_ignores_its_cancellation_is_killed(yard: Yard, fifo: Path) -> None:
    running = asyncio.ensure_future(yard.run("hold_lock", {"fifo": str(fifo)}))
    (pid,) = await told(fifo)
    yard.pool.cancel("task-1", "enough")
    ended = await running
    assert (ended.how, ended.error) == (How.CANCELLED, "enough")
    assert "in hold_lock" in ended.detail
    await until(lambda: not lives(pid))


async def test_what_has_not_begun_is_cancelled_without_a_trace(make: Make, fifo: Path) -> None:
    yard = await make(limit=1)
    busy = asyncio.ensure_future(yard.run("sleep", {"fifo": str(fifo)}))
    await told(fifo)
    waiting = asyncio.ensure_future(yard.run("noop"))
    await asyncio.sleep(0)
    assert yard.pool.cancel("task-2", "not needed")
    ended = await waiting
    assert (ended.how, ended.begun, ended.error) == (How.CANCELLED, False, "not needed")
    yard.pool.cancel("task-1", "enough")
    await busy


# --- advancing


async def test_a_task_that_tells_its_progress_advances(yard: Yard) -> None:
    running = yard.begin("reporting", {}, stall_s=90.0)
    await until(lambda: yard.only.begun_at is not None)
    begun_at = yard.only.begun_at
    assert begun_at is not None
    for at_s in (0.0, 0.1):
        await until(lambda at_s=at_s: yard.only.advanced_at > begun_at + at_s)  # type: ignore[misc]
    yard.pool.cancel("task-1", "enough")
    assert (await running).how is How.CANCELLED


@pytest.mark.parametrize("kind", ["steps", "printing"])
async def test_a_task_that_tells_no_progress_hangs(yard: Yard, fifo: Path, kind: str) -> None:
    body = {"steps": 1, "stay": True, "fifo": str(fifo)}
    hanging = asyncio.ensure_future(yard.run(kind, body, timeout_s=900.0, stall_s=90.0))
    await told(fifo)
    await until(lambda: kind == "printing" or bool(yard.only.progress.note))
    yard.only.advanced_at -= 90.0
    yard.pool.renew("task-1", math.inf)
    ended = await hanging
    assert (ended.how, ended.error) == (How.TIMED_OUT, "hangs: no progress for stall_s = 90")
    assert f"in {kind}" in ended.detail


# --- leases


async def test_what_outlives_its_lease_is_killed(yard: Yard, fifo: Path) -> None:
    running = yard.begin("hold_lock", {"fifo": str(fifo)}, lease_s=90.0)
    await told(fifo)
    yard.pool.renew("task-1", 0.2)
    ended = await asyncio.wait_for(running, PATIENCE_S)
    assert (ended.how, ended.error) == (How.DIED, "its slot died of SIGKILL; its lease had ended")


async def test_a_renewed_lease_lasts_as_long_as_asked(yard: Yard, fifo: Path) -> None:
    running = asyncio.ensure_future(yard.run("sleep", {"fifo": str(fifo)}, lease_s=90.0))
    await told(fifo)
    yard.pool.renew("task-1", 900.0)
    (seat,) = [seat for seat in yard.pool.seats.values() if seat.line]
    await until(lambda: seat.leased_until > yard.clock.monotonic() + 450)
    yard.pool.cancel("task-1", "enough")
    assert (await running).how is How.CANCELLED


async def test_an_idle_slot_has_no_lease(yard: Yard) -> None:
    await yard.run("noop", lease_s=90.0)
    await until(lambda: {seat.leased_until for seat in yard.pool.seats.values()} == {float("inf")})


NODE = """
    import asyncio, sys
    sys.path.insert(0, sys.argv[1])
    from holdfast.slots.task_slots import TaskSlotSettings, task_slots
    from holdfast.system.clock import SystemClock
    from holdfast.rules.tasks.task import Task
    from holdfast.cluster.host import Host
    from holdfast.cluster.limits import Limits
    from holdfast.config.settings import Config
    from holdfast.tasks.body import body_of
    from holdfast.tasks.slots import TaskSlots
    import deeds_app, msgspec, structlog

    async def main():
        clock = SystemClock()
        slots = task_slots(TaskSlotSettings(app="deeds_app:app"), clock)
        host = Host(None, None, clock, Limits.of(Config()), structlog.get_logger(), "me")
        pool = TaskSlots(slots, host)
        await pool.start()
        spec = deeds_app.app.tasks["children"]
        attempt = spec.attempt(body_of({"fifo": sys.argv[2]}), Task("t", "children"))
        running = pool.run(msgspec.structs.replace(attempt, lease_s=90.0))
        await asyncio.to_thread(sys.stdin.readline)
        pool.renew("t", 1.0)
        (seat,) = pool.seats.values()
        while seat.leased_until > clock.monotonic() + 1:
            await asyncio.sleep(0.01)
        print("leased", flush=True)
        await running
    asyncio.run(main())
"""


@pytest.mark.slow
async def test_tasks_of_a_node_that_stands_still_end_with_their_lease(fifo: Path) -> None:
    node = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(NODE), HERE, str(fifo)), stdin=PIPE, stdout=PIPE
    )
    assert node.stdin
    assert node.stdout
    try:
        pids = await told(fifo)
        node.stdin.write(b"go on\n")
        assert await node.stdout.readline() == b"leased\n"
        node.send_signal(signal.SIGSTOP)
        await until(lambda: not any(map(lives, pids)))
    finally:
        node.kill()
        await node.wait()


# --- the pool


@pytest.mark.slow
async def test_slots_are_made_on_demand_and_ended_when_idle(make: Make, tmp_path: Path) -> None:
    yard = await make(limit=3, idle_s=0.1, spare=0)
    assert yard.pool.slots == 1
    fifos = [tmp_path / str(n) for n in range(3)]
    for path in fifos:
        os.mkfifo(path)
    running = [asyncio.ensure_future(yard.run("sleep", {"fifo": str(path)})) for path in fifos]
    await asyncio.gather(*map(told, fifos))
    assert (yard.pool.slots, yard.pool.room, yard.pool.busy) == (3, 0, 3)
    for n in range(3):
        yard.pool.cancel(f"task-{n + 1}", "enough", PATIENCE_S)
    await asyncio.gather(*running)
    await until(lambda: yard.pool.slots == 0)
    assert yard.stats.slot_deaths == 0
    assert (await yard.run("noop")).how is How.RETURNED


@pytest.mark.slow
async def test_a_lower_limit_lets_run_what_runs(make: Make, tmp_path: Path) -> None:
    yard = await make(limit=2)
    fifos = [tmp_path / str(n) for n in range(3)]
    for path in fifos:
        os.mkfifo(path)
    running = [asyncio.ensure_future(yard.run("sleep", {"fifo": str(path)})) for path in fifos]
    await asyncio.gather(*map(told, fifos[:2]))
    yard.pool.set_limits(1)
    assert (yard.pool.busy, yard.pool.room) == (2, 0)
    yard.pool.cancel("task-1", "enough", PATIENCE_S)
    await running[0]
    await until(lambda: yard.pool.slots == 1)
    assert yard.pool.running["task-3"].begun_at is None
    yard.pool.set_limits(2)
    await told(fifos[2])
    for task_id in ("task-2", "task-3"):
        yard.pool.cancel(task_id, "enough", PATIENCE_S)
    await asyncio.gather(*running)


@pytest.mark.slow
async def test_quick_tasks_line_up_and_leave_a_line_that_stands(make: Make, fifo: Path) -> None:
    yard = await make(limit=2)
    yard.pool.took_s["quick_or_not"] = yard.pool.took_lately_s = 0.0
    stuck = asyncio.ensure_future(yard.run("quick_or_not", {"fifo": str(fifo)}, timeout_s=30.0))
    await asyncio.sleep(0)
    assert yard.pool.room > 2
    quick = [asyncio.ensure_future(yard.run("quick_or_not")) for _ in range(20)]
    await told(fifo)
    assert {ended.how for ended in await asyncio.gather(*quick)} == {How.RETURNED}
    assert not stuck.done()
    assert yard.clock.monotonic() > (yard.only.begun_at or 0) + STUCK_S or not stuck.done()
    yard.pool.cancel("task-1", "enough")
    await stuck


@pytest.mark.slow
async def test_what_lay_behind_a_death_runs_elsewhere_and_is_no_try(make: Make) -> None:
    yard = await make(limit=1)
    yard.pool.took_s |= {"leave": 0.0, "noop": 0.0}
    kinds = ["noop", "leave", "noop", "noop", "leave", "noop"]
    ends = await asyncio.gather(*(yard.run(kind) for kind in kinds))
    hows = {"noop": How.RETURNED, "leave": How.DIED}
    assert [ended.how for ended in ends] == [hows[kind] for kind in kinds]
    assert yard.stats.slot_deaths == 2


@pytest.mark.slow
async def test_closing_the_pool_ends_all_attempts_and_their_children(make: Make, fifo: Path) -> None:
    this = psutil.Process()
    others = this.children(recursive=True)
    yard = await make(limit=1)
    running = yard.begin("children", {"fifo": str(fifo)})
    pids = await told(fifo)
    waiting = yard.begin("noop")
    await yard.pool.close()
    assert ((await running).how, (await waiting).how) == (How.DIED, How.CANCELLED)
    assert ((await running).begun, (await waiting).begun) == (True, False)
    assert not any(map(lives, pids))
    await until(lambda: this.children(recursive=True) == others)
    assert not (await yard.run("noop")).begun


@pytest.mark.slow
async def test_an_app_that_does_not_load_says_why(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard()
    maker = task_slots(TaskSlotSettings(app="deeds_app:nothing"), yard.clock)
    pool = TaskSlots(maker, yard.host)
    with pytest.raises(ConfigError, match="deeds_app has no 'nothing'"):
        await pool.start()
    await pool.close()


@pytest.mark.nightly
async def test_a_thousand_attempts_end_in_time(make: Make) -> None:
    yard = await make(limit=2)
    begun_at = time.monotonic()
    for _ in range(5):
        ends = await asyncio.gather(*(yard.run("noop") for _ in range(100)))
        assert {ended.how for ended in ends} == {How.RETURNED}
    assert time.monotonic() - begun_at < PATIENCE_S
