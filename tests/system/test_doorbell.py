"""The doorbell. Two of them in one process stand for two processes."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.system import doorbell as module
from holdfast.system.doorbell import Doorbell


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Doorbell]:
    doorbell = Doorbell(tmp_path / "bells", "here")
    yield doorbell
    doorbell.close()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Doorbell]:
    doorbell = Doorbell(tmp_path / "bells", "there")
    yield doorbell
    doorbell.close()


async def heard(event: asyncio.Event) -> bool:
    async with asyncio.timeout(30):
        return await event.wait()


async def test_a_ring_wakes_who_listens_to_the_topic_here_and_there(here: Doorbell, there: Doorbell) -> None:
    with (
        here.listen("a") as a,
        here.listen("a") as a_too,
        there.listen("a") as other_a,
        there.listen("b") as b,
    ):
        there.ring(["a", "c"])
        assert await heard(a)
        assert await heard(a_too)
        assert await heard(other_a)
        assert not b.is_set()
        a.clear()
        here.ring(["b"])
        assert await heard(b)
        assert not a.is_set()


async def test_who_has_stopped_listening_is_left_alone(here: Doorbell, there: Doorbell) -> None:
    with here.listen("b") as b:
        with here.listen("a") as a:
            pass
        there.ring(["a"])
        there.ring(["b"])
        assert await heard(b)
        assert not a.is_set()


async def test_a_flood_of_rings_rings_every_topic(here: Doorbell, there: Doorbell) -> None:
    with here.listen("a") as a:
        there.ring([f"topic {i}" for i in range(2 * 65_536 // module.HASH_BYTES)])
        assert await heard(a)


async def test_the_fifo_of_the_dead_is_removed_when_met_or_when_it_breaks(
    here: Doorbell, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "bells" / "dead.1")
    here.ring(["a"])
    assert not (tmp_path / "bells" / "dead.1").exists()
    dying = Doorbell(tmp_path / "bells", "dying")
    with dying.listen("a"):
        here.ring(["a"])
        [fifo] = (tmp_path / "bells").iterdir()
        saved = fifo.rename(tmp_path / "saved")
        dying.close()
        saved.rename(fifo)  # as a killed process leaves it
    here.ring(["a"])
    assert list((tmp_path / "bells").iterdir()) == []


async def test_a_closed_doorbell_leaves_no_fifo(here: Doorbell, tmp_path: Path) -> None:
    closing = Doorbell(tmp_path / "bells", "closing")
    with closing.listen("a"):
        here.ring(["a"])
        closing.close()
    assert list((tmp_path / "bells").iterdir()) == []
    here.ring(["a"])


async def test_a_directory_that_was_tidied_away_is_no_fault(here: Doorbell, tmp_path: Path) -> None:
    (tmp_path / "bells").rmdir()
    here.ring(["a"])
    with here.listen("a") as a:  # no listener for others can be made, but for our own
        here.ring(["a"])
        assert await heard(a)


def test_fifos_of_ended_event_loops_are_removed(here: Doorbell, tmp_path: Path) -> None:
    async def listen() -> None:
        with here.listen("a") as a:
            here.ring(["a"])
            assert await heard(a)

    for _ in range(3):
        asyncio.run(listen())
        assert len(list((tmp_path / "bells").iterdir())) == 1
    here.close()
    assert list((tmp_path / "bells").iterdir()) == []


async def test_closing_a_doorbell_wakes_listeners_in_other_loops(here: Doorbell, tmp_path: Path) -> None:
    listening = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def elsewhere() -> bool:
        with here.listen("a") as a:
            loop.call_soon_threadsafe(listening.set)
            return await heard(a)

    waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await heard(listening)
    here.ring_here(["a"])
    here.close()
    assert await waiting
    assert list((tmp_path / "bells").iterdir()) == []


async def test_two_threads_may_ring_as_a_process_ends(
    here: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Doorbell(here.directory, "dying")
    with dying.listen("a"):
        here.ring(["a"])
        (fifo,) = here.directory.iterdir()
        saved = fifo.rename(here.directory.parent / "saved")
        dying.close()
        saved.rename(fifo)  # as a killed process leaves it
    write, errors, met = os.write, list[Exception](), threading.Event()

    class Told:
        """A lock that tells who waits for it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                met.set()
                self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def ring() -> None:
        try:
            here.ring(["a"])
        except (OSError, LookupError, RuntimeError) as error:
            errors.append(error)
        met.set()

    other = threading.Thread(target=ring)

    def write_with_another(fd: int, data: bytes) -> int:
        if threading.current_thread() is not other and not other.ident:
            other.start()
            met.wait(30)
        return write(fd, data)

    monkeypatch.setattr(here, "ringing", Told())
    monkeypatch.setattr(os, "write", write_with_another)
    ring()
    other.join(30)
    assert errors == []
    assert list(here.directory.iterdir()) == []


async def test_a_process_without_file_descriptors_wakes_whom_it_knows_and_removes_nobody(
    here: Doorbell, there: Doorbell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Doorbell(here.directory, "third")

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with there.listen("a") as a, third.listen("a") as also:
        here.ring(["a"])
        assert await heard(a)
        assert await heard(also)
        a.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "iterdir", none_left)
            here.ring(["a"])
        assert await heard(a)
    with third.listen("b") as b:
        stranger = Doorbell(here.directory, "stranger")
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", none_left)
            stranger.ring(["b"])
        stranger.ring(["b"])
        assert await heard(b), "its FIFO is still there, and is opened now"
        stranger.close()
    third.close()
