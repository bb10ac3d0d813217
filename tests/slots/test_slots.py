"""Slots that are processes: no deed of a handler reaches further than its own slot."""

import asyncio
import contextlib
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import uvloop

from holdfast.errors import ConfigError, SlotDied, Unavailable
from holdfast.ports.meter import Meter
from holdfast.ports.slots import MessageWork, RunResult
from holdfast.slots import wire
from holdfast.slots.slots import ForkserverSlots
from holdfast.slots.stream_slots import ForkserverStreamSlot, StreamSlotSettings, stream_slots
from holdfast.system.clock import SystemClock

HERE = str(Path(__file__).parent)
PATIENCE_S = 20.0

Made = ForkserverSlots[[], ForkserverStreamSlot]
Make = Callable[..., Made]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    monkeypatch.syspath_prepend(HERE)
    made = []

    def make(app: str = "rogue_app:app", meter: Meter | None = None, **settings: Any) -> Made:
        made.append(stream_slots(StreamSlotSettings(app=app, **settings), SystemClock(), meter))
        return made[-1]

    yield make
    for slots in made:
        await slots.close()


async def opened(slots: Made) -> ForkserverStreamSlot:
    slot = await slots.spawn()
    await slot.open("rogue", "k", None, 0)
    return slot


def run(slot: ForkserverStreamSlot, **order: Any) -> asyncio.Task[RunResult]:
    work = [MessageWork(0, 1, msgspec.json.encode(order))]
    return asyncio.ensure_future(slot.run("rogue", "k", work, 1, PATIENCE_S))


async def announced(path: Path) -> list[int]:
    """The process ids that a handler writes to a FIFO, once it has."""
    return await asyncio.wait_for(asyncio.to_thread(read_pids, path), PATIENCE_S)


async def gone(pids: list[int]) -> bool:
    """True once none of the processes runs any more."""
    return await asyncio.to_thread(all_end, pids)


def read_pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]


def all_end(pids: list[int]) -> bool:
    left = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    return not psutil.wait_procs(left, PATIENCE_S)[1]


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def let_go(pids: Iterable[int], fifo: Path) -> None:
    """Return when none of the processes has the FIFO open: each has announced itself, and does its deed."""
    while any(map(str(fifo).__eq__, map(target, descriptors(pids)))):  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


def descriptors(pids: Iterable[int]) -> list[Path]:
    return [link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")]


def target(link: Path) -> str:
    with contextlib.suppress(OSError):
        return str(link.readlink())
    return ""


@pytest.mark.slow
async def test_a_python_that_can_t_be_run_is_named_and_tried_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "python"
    closed.touch(0o600)
    slots = make()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(closed))
        with pytest.raises(Unavailable, match=f"{closed}: Permission denied; let"):
            await slots.spawn()
    await slots.spawn()


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["spin", "wait_for_ever", "hang_in_c_with_the_lock_held"])
async def test_a_hung_handler_is_dumped_and_killed(
    make: Make, fifo: Path, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    monkeypatch.setattr("holdfast.slots.process.DUMP_TIMEOUT_S", PATIENCE_S)
    slot = await opened(make())
    call = run(slot, do=deed, announce=str(fifo), grandchild=True)
    pids = await announced(fifo)
    await let_go(pids, fifo)
    started_at = time.monotonic()
    dump = await slot.kill("no progress for 30 s")
    assert time.monotonic() - started_at < PATIENCE_S, "it ends with its dump, and nothing waits for its end"
    assert f"in {deed}" in dump
    assert "rogue_app.py" in dump
    with pytest.raises(SlotDied, match="slot-1 was killed: no progress for 30 s") as death:
        await call
    assert death.value.detail == dump
    assert (await slot.exited()).reason == "was killed: no progress for 30 s"
    assert await gone(pids)


@pytest.mark.slow
async def test_a_handler_that_ignores_signals_is_killed_without_a_dump(make: Make, fifo: Path) -> None:
    slot = await opened(make())
    call = run(slot, do="ignore_what_can_be_ignored", announce=str(fifo), grandchild=True)
    pids = await announced(fifo)
    await slot.kill("test")
    with pytest.raises(SlotDied):
        await call
    assert await gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    "deed,why,dumped",
    [("crash", "died of SIGSEGV", True), ("leave", "exited with code 3", False)],
)
async def test_a_crash_is_reported_and_affects_no_other_slot(
    make: Make, fifo: Path, deed: str, why: str, dumped: bool
) -> None:
    slots = make()
    slot, other = await opened(slots), await opened(slots)
    call = run(slot, do=deed, announce=str(fifo), grandchild=True)
    pids = await announced(fifo)
    with pytest.raises(SlotDied, match=why) as death:
        await call
    assert (f"in {deed}" in death.value.detail) is dumped
    assert (await slot.exited()).reason == why
    assert await gone(pids)
    assert (await run(other)).results == [b'""']


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["exit_politely", "interrupt", "allocate_without_end"])
async def test_a_deed_that_only_fails_its_message(make: Make, deed: str) -> None:
    if deed == "allocate_without_end" and sys.platform != "linux":
        pytest.skip("allocation is limited on Linux only; elsewhere the slot is killed")
    slot = await opened(make(memory_mb=300))
    ran = await run(slot, do=deed)
    assert ran.results == []
    assert f"in {deed}" in ran.detail
    await slot.open("rogue", "k", None, 0)
    assert (await run(slot)).error == ""


@pytest.mark.slow
async def test_memory_that_allocation_does_not_count_is_seen_too(make: Make) -> None:
    slots = make(memory_mb=200, check_s=0.05)
    slot, other = await opened(slots), await opened(slots)
    with pytest.raises(SlotDied, match="over memory_mb = 200"):
        await run(slot, do="share_without_end")
    assert (await run(other)).error == ""


@pytest.mark.slow
async def test_signals_for_the_terminal_end_no_slot_but_what_it_started(make: Make) -> None:
    slot = await opened(make())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(slot.pid, number)
    ran = await run(slot, grandchild=True, terminate=True)
    assert (ran.error, os.getpgid(slot.pid)) == ("", slot.pid)


def reported(slot: ForkserverStreamSlot, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[float]:
    """When the call at work has last advanced, after each time something comes from the child."""
    receive, times = slot.data_received, asyncio.Queue[float]()

    def data_received(data: bytes) -> None:
        receive(data)
        for call in slot.calls:
            times.put_nowait(call.advanced_at)

    monkeypatch.setattr(slot, "data_received", data_received)
    return times


@pytest.mark.slow
async def test_progress_is_heard_while_a_handler_works(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = await opened(make())
    times = reported(slot, monkeypatch)
    call = run(slot, progress_until=str(tmp_path / "enough"))
    first, second, third = [await asyncio.wait_for(times.get(), PATIENCE_S) for _ in range(3)]
    assert third - second > 0.01 < second - first, "each moves the time of the last progress; few are sent"
    (tmp_path / "enough").touch()
    assert not (await call).error


@pytest.mark.slow
async def test_the_last_note_is_in_the_error_of_a_dead_slot(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = await opened(make())
    times = reported(slot, monkeypatch)
    call = run(slot, progress_until=str(tmp_path / "never"))
    for _ in range(2):
        await asyncio.wait_for(times.get(), PATIENCE_S)
    await slot.kill("test")
    with pytest.raises(SlotDied) as death:
        await call
    assert death.value.detail.startswith("its last note: step \N{SNOWMAN}\n")


@pytest.mark.slow
async def test_large_states_and_results_pass_in_both_directions(make: Make) -> None:
    slot = await make().spawn()
    state = os.urandom(16 << 20)
    opens = [slot.open("rogue", f"k{i}", state, 1) for i in range(3)]
    order = msgspec.json.encode({"size": 16 << 20, "padding": "x" * (16 << 20)})
    runs = [slot.run("rogue", f"k{i}", [MessageWork(0, 1, order)], 1, PATIENCE_S) for i in range(3)]
    answers = await asyncio.gather(*opens, *runs)
    for ran in answers[3:]:
        assert isinstance(ran, RunResult)
        assert (ran.state == state, len(ran.results[0] or b"")) == (True, (16 << 20) + 2)


@pytest.mark.slow
async def test_a_cancelled_call_leaves_the_others_their_answers(make: Make) -> None:
    slot = await opened(make())
    calls = [run(slot, size=size) for size in range(20)]
    await asyncio.wait([calls[0]])
    calls[10].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    sizes = [len(a.results[0] or b"") - 2 for a in answers if isinstance(a, RunResult)]
    assert sizes == [size for size in range(20) if not calls[size].cancelled()]


@pytest.mark.slow
async def test_closing_the_slots_lets_handlers_close_first(make: Make, tmp_path: Path) -> None:
    slots = make()
    slot = await opened(slots)
    await run(slot, last_word={"announce": str(tmp_path / "word")})
    await slots.close()
    assert (tmp_path / "word").read_text() == "closed"
    assert (await slot.exited()).reason == "exited with code 0"


@pytest.mark.slow
async def test_closing_waits_no_longer_than_it_may(make: Make) -> None:
    slots = make(close_timeout_s=0.1)
    slot = await opened(slots)
    await run(slot, last_word={"do": "spin"})
    await slots.close()
    assert (await slot.exited()).reason == "was killed: its handlers did not close within 0.1 s"
    with pytest.raises(ConfigError, match="closed"):
        await slots.spawn()


@pytest.mark.slow
@pytest.mark.parametrize(
    "app,reason",
    [
        ("nowhere_to_be_found:app", "nowhere_to_be_found can't be imported: ModuleNotFoundError"),
        ("broken_app:app", "ZeroDivisionError"),
        ("exiting_app:app", "SystemExit"),
        ("misspelt_app:app", "SyntaxError"),
        ("crashing_app:app", "app crashing_app:app can't be loaded: its process (died|lost)"),
        ("rogue_app:nothing", "rogue_app has no 'nothing'"),
        ("rogue_app:not_an_app", "rogue_app:not_an_app isn't a holdfast.App"),
        ("rogue_app", "must be written as module:name"),
    ],
)
@pytest.mark.parametrize("preload", [True, False])
async def test_an_app_that_does_not_load_says_why(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str, reason: str, preload: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_app.py").write_text("1 / 0")
    (tmp_path / "exiting_app.py").write_text("import sys; sys.exit(1)")
    (tmp_path / "misspelt_app.py").write_text("app = ")
    (tmp_path / "crashing_app.py").write_text("import ctypes; ctypes.string_at(0)")
    with pytest.raises(ConfigError, match=reason):
        await make(app, preload=preload).spawn()


@pytest.mark.slow
async def test_an_app_that_never_finishes_loading(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "endless_app.py").write_text("import threading\nthreading.Event().wait()")
    with pytest.raises(ConfigError, match=r"longer than 2.5 s\n(.|\n)*endless_app.py"):
        await make("endless_app:app", preload=False, spawn_timeout_s=2.5).spawn()
    with pytest.raises(ConfigError, match=r"longer than 2\.5 s"):
        await make("endless_app:app", spawn_timeout_s=2.5).spawn()
    assert "endless_app.py" in capfd.readouterr().err


@pytest.mark.slow
async def test_a_slot_that_cannot_be_forked_ends_no_other(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    slots = make("scarce_app:app")
    working = [await opened(slots) for _ in range(2)]
    with pytest.raises(SlotDied, match="slot-3 exited with code"):
        await slots.spawn()
    assert "cannot fork slot slot-3: [Errno 11] no more processes" in capfd.readouterr().err
    assert [(await run(slot)).error for slot in working] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["fork_and_return", "fork_and_exit"])
async def test_a_fork_that_comes_back_is_no_second_slot(make: Make, tmp_path: Path, deed: str) -> None:
    """Both would answer calls, each with its own state."""
    slot = await opened(make())
    assert (await run(slot, do=deed)).error == ""
    ran_in = []
    for _ in range(8):
        assert (await run(slot, do="say_where", announce=str(tmp_path / "pid"))).error == ""
        ran_in += await asyncio.to_thread(read_pids, tmp_path / "pid")
    assert ran_in == [slot.pid] * 8


@pytest.mark.slow
async def test_slots_survive_the_loss_of_their_maker(make: Make, fifo: Path) -> None:
    slots = make()
    slot = await opened(slots)
    call = run(slot, do="spin", announce=str(fifo), grandchild=True)
    pids = await announced(fifo)
    server = psutil.Process(slot.pid).parent()
    assert server
    server.kill()
    with pytest.raises(SlotDied, match="lost its fork server"):
        await call
    assert await gone(pids)
    assert (await run(await opened(slots))).error == ""


@pytest.mark.slow
async def test_a_slot_that_is_given_up_just_as_its_maker_is_lost(
    make: Make, tmp_path: Path, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "waiting_app.py").write_text(
        f"import os, threading\nopen({str(fifo)!r}, 'w').write(f'{{os.getpid()}} {{os.getppid()}}')\n"
        "threading.Event().wait()"
    )
    slots = make("waiting_app:app", preload=False)
    spawning = asyncio.ensure_future(slots.spawn())
    pid, server_pid = await announced(fifo)
    server = slots.server
    assert server is not None
    take_event = server.on_event

    def on_event(event: wire.Event | None) -> None:
        take_event(event)
        if event is None:
            spawning.cancel()

    monkeypatch.setattr(server, "on_event", on_event)
    os.kill(server_pid, signal.SIGKILL)
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert await gone([pid])


@pytest.mark.slow
async def test_nobody_waits_for_a_process_that_cannot_be_killed_now(
    make: Make, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.slots.process.KILL_TIMEOUT_S", 0.1)
    slot = await opened(make())
    call = run(slot, do="spin", announce=str(fifo))
    pids = await announced(fifo)
    server = psutil.Process(slot.pid).parent()
    assert server
    server.suspend()
    await slot.kill("test")
    server.resume()
    with pytest.raises(SlotDied, match="was killed: test"):
        await call
    assert await gone(pids)


@pytest.mark.slow
async def test_dead_slots_leave_no_processes_and_files_open(make: Make) -> None:
    this = psutil.Process()
    others = this.children(recursive=True)  # servers of other tests
    slots = make()
    await opened(slots)
    fds = this.num_fds()
    processes = len(this.children(recursive=True))
    for deed in ("crash", "leave", "spin"):
        slot = await opened(slots)
        call = run(slot, do=deed, grandchild=True)
        if deed == "spin":
            await slot.kill("test")
        with pytest.raises(SlotDied):
            await call
    assert this.num_fds() == fds
    async with asyncio.timeout(30):  # the server reaps orphans when they end
        while len(this.children(recursive=True)) != processes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await slots.close()
    assert this.children(recursive=True) == others


NODE = """
    import asyncio, sys, msgspec
    sys.path.insert(0, sys.argv[1])
    from holdfast.slots.stream_slots import StreamSlotSettings, stream_slots
    from holdfast.system.clock import SystemClock
    from holdfast.ports.slots import MessageWork

    async def main():
        slots = stream_slots(StreamSlotSettings(app="rogue_app:app"), SystemClock())
        order = {"do": "hang_in_c_with_the_lock_held", "announce": sys.argv[2], "grandchild": True}
        for orders in ([{"print": "noise"}], [order]):
            slot = await slots.spawn()
            await slot.open("rogue", "k", None, 0)
            await slot.run("rogue", "k", [MessageWork(0, 1, msgspec.json.encode(o)) for o in orders], 9, 9.0)
    asyncio.run(main())
"""


@pytest.mark.slow
def test_slots_die_with_a_node_that_is_killed(fifo: Path) -> None:
    code = textwrap.dedent(NODE)
    node = subprocess.Popen(
        [sys.executable, "-c", code, HERE, str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pids = read_pids(fifo)
    family = [process.pid for process in psutil.Process(node.pid).children(recursive=True)]
    assert set(pids) < set(family)
    node.kill()
    assert all_end(family)
    assert node.communicate() == (b"", b"noise\n"), "what handlers print goes to the log"


@pytest.mark.slow
def test_slots_die_with_a_node_that_leaves_something_unread(fifo: Path) -> None:
    node = subprocess.Popen([sys.executable, "-c", textwrap.dedent(NODE), HERE, str(fifo)])
    pids = read_pids(fifo)
    family = [process.pid for process in psutil.Process(node.pid).children(recursive=True)]
    server = psutil.Process(pids[0]).parent()
    assert server
    node.send_signal(signal.SIGSTOP)
    idle = [process for process in server.children() if process.pid not in pids]
    for process in idle:
        process.kill()  # the server reports it to the node
    assert idle
    assert all_end([process.pid for process in idle])
    node.kill()
    node.wait()
    assert all_end(family)


@pytest.mark.slow
def test_slots_run_their_handlers_with_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)

    async def main() -> RunResult:
        slots = stream_slots(StreamSlotSettings(app="rogue_app:app"), SystemClock())
        slot = await opened(slots)
        ran = await run(slot, size=1 << 20)
        await slots.close()
        return ran

    assert len(uvloop.run(main()).results[0] or b"") == (1 << 20) + 2


def test_where_the_kernel_does_not_bind_processes_a_thread_does() -> None:
    code = """
        import socket, threading
        from holdfast.slots import lifeline
        lifeline.LINUX = False
        lifeline.lead_group()
        ours, theirs = socket.socketpair()
        lifeline.end_with(ours)
        theirs.shutdown(socket.SHUT_WR)
        theirs.close()
        threading.Event().wait(20)
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
async def test_calls_to_the_object_store_are_counted_by_the_node(make: Make) -> None:
    meter = Meter()
    slots = make(objects="rogue_app:metered", objects_url="any", meter=meter)
    slot = await slots.spawn()
    await slot.open("rogue", "k", None, 0)
    await slot.run("rogue", "k", [MessageWork(0, n, b'{"fetch": "any"}') for n in range(3)], 3, 1.0)
    assert meter.calls == {("s3", "GetObject"): 3}


KEPT_MAX = 40 << 20
"""What a slot may keep of a large message."""


@pytest.mark.slow
async def test_a_slot_keeps_no_large_body_until_the_next_one(make: Make) -> None:
    slot = await opened(make())
    await run(slot)
    before = resident(slot)
    assert not (await run(slot, padding="x" * (100 << 20))).error
    assert await came_down(slot, before)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
async def test_a_slot_gives_back_what_its_handler_freed(make: Make) -> None:
    slot = await opened(make())
    await run(slot)
    before = resident(slot)
    assert not (await run(slot, do="scatter")).error
    assert await came_down(slot, before)


def resident(slot: ForkserverStreamSlot) -> int:
    return psutil.Process(slot.pid).memory_info().rss


async def came_down(slot: ForkserverStreamSlot, before: int) -> bool:
    """True once the slot uses little more memory than before, soon after its answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while resident(slot) > before + KEPT_MAX:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            return True
    return False
