"""The thread that serves calls."""

import queue
import threading

import pytest

from holdfast.errors import Unavailable
from holdfast.services.sqlite.thread import WriterThread

LONG_S = 3600.0


class Server:
    """Serves what it takes into ``served``, one list a turn."""

    def __init__(self, limit: int = 10) -> None:
        self.served: queue.Queue[list[str]] = queue.Queue()
        self.go_on = threading.Event()
        self.go_on.set()
        self.worker: WriterThread[str] = WriterThread("served", self._serve, limit)

    def _serve(self) -> None:
        self.go_on.wait(10)
        self.served.put(self.worker.take())

    def next(self) -> list[str]:
        return self.served.get(timeout=10)


def test_what_comes_meanwhile_is_served_together() -> None:
    server = Server(limit=3)
    server.go_on.clear()
    for item in "abcde":
        server.worker.put(item)
    server.go_on.set()
    assert [*server.next(), *server.next()] == list("abcde")
    server.worker.close()


def test_what_can_wait_is_served_with_what_can_not() -> None:
    server = Server()
    server.worker.put("a", LONG_S)
    server.worker.put("b", LONG_S)
    assert server.served.empty()
    server.worker.put("c")
    assert server.next() == ["a", "b", "c"]
    server.worker.put("d", LONG_S)
    server.worker.put("e", 0.001)
    assert server.next() == ["d", "e"]
    server.worker.close()
    assert server.served.empty()


def test_what_can_wait_is_served_in_time() -> None:
    server = Server()
    server.worker.put("a", 0.001)
    assert server.next() == ["a"]
    server.worker.close()


def test_what_waits_is_served_before_the_end() -> None:
    server = Server()
    server.worker.put("a", LONG_S)
    server.worker.close()
    assert server.next() == ["a"]
    with pytest.raises(Unavailable):
        server.worker.put("b")


def test_what_is_dropped_is_not_served() -> None:
    server = Server()
    server.worker.put("a", LONG_S)
    assert server.worker.drop() == ["a"]
    server.worker.put("b", 0.001)
    assert server.next() == ["b"]
    server.worker.close()
    assert server.served.empty()
