"""Stages beside each other: order, bounded room, and ends."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.reports.formats.compress import blocks
from holdfast.reports.pipeline import in_order, read_ahead


def test_work_is_done_together_and_kept_in_order() -> None:
    together = threading.Barrier(3)

    def work(n: int) -> int:
        together.wait(30)  # passes only if three run at once
        return n * n

    with ThreadPoolExecutor(3) as pool:
        assert list(in_order(pool, work, range(9), ahead=3)) == [n * n for n in range(9)]


def test_no_more_is_under_way_than_stated() -> None:
    taken: list[int] = []

    def items() -> Generator[int, None, None]:
        for n in range(100):
            taken.append(n)
            yield n

    with ThreadPoolExecutor(2) as pool:
        for done, _ in enumerate(in_order(pool, lambda n: n, items(), ahead=3)):
            assert len(taken) <= done + 3


def test_the_first_error_in_order_is_raised() -> None:
    def work(n: int) -> int:
        if n >= 3:
            raise ValueError(n)
        return n

    with ThreadPoolExecutor(4) as pool:
        results = in_order(pool, work, range(10), ahead=5)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="3"):
            next(results)


def test_reading_ahead_stays_within_its_bytes() -> None:
    most = 0
    fetched = consumed = 0

    def items() -> Generator[int, None, None]:
        nonlocal fetched, most
        for _ in range(200):
            fetched += 10
            most = max(most, fetched - consumed)
            yield 10

    for size in read_ahead(items(), lambda size: size, 50):
        consumed += size
    assert consumed == 2000
    assert most <= 50 + 3 * 10  # one more on the shelf, one in each hand


def test_an_error_of_the_reader_comes_after_what_it_read() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise OSError("gone")

    ahead = read_ahead(items(), lambda _: 1, 10)
    assert next(ahead) == 1
    with pytest.raises(OSError, match="gone"):
        next(ahead)


def test_a_reader_nobody_listens_to_ends_and_cleans_up() -> None:
    closed = threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = read_ahead(items(), lambda _: 1, 5)
    assert next(ahead) == 1
    ahead.close()
    assert closed.wait(30)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_every_block_but_the_last_has_the_same_size(size: int) -> None:
    chunks = [b"", b"abc", b"defghij", b"k", b"", b"lmnopqrstuvw"]
    cut = list(blocks(chunks, size))
    assert b"".join(cut) == b"".join(chunks)
    assert {len(block) for block in cut[:-1]} <= {size}
    assert all(cut)
