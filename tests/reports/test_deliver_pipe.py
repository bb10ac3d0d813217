"""Bytes from a thread to the event loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdfast.reports.deliver_pipe import PIECE_BYTES, pieces
from holdfast.reports.ports.sink import Data


async def collected(*chunks: Data) -> list[bytes]:
    async with pieces(lambda: iter(chunks)) as pipe:
        return [bytes(piece) async for piece in pipe]


async def test_bytes_come_in_order_and_whole() -> None:
    chunks = [bytes([n % 256]) * (n * 997 % 5000) for n in range(3000)]
    assert b"".join(await collected(*chunks)) == b"".join(chunks)


async def test_a_large_chunk_is_cut_into_pieces() -> None:
    body = bytes(range(256)) * 20_000
    got = await collected(body)
    assert b"".join(got) == body
    assert max(map(len, got)) == PIECE_BYTES


async def test_empty_chunks_are_left_out() -> None:
    assert await collected() == []
    assert await collected(b"", b"") == []


async def test_errors_come_where_bytes_are_taken() -> None:
    def fail() -> Iterator[bytes]:
        yield b"x"
        raise ValueError("the source is damaged")

    async with pieces(fail) as pipe:
        taken = aiter(pipe)
        assert await anext(taken) == b"x"
        with pytest.raises(ValueError, match="damaged"):
            await anext(taken)


async def test_no_more_than_so_much_is_made_ahead() -> None:
    made = []
    stuck = threading.Event()

    def make() -> Iterator[bytes]:
        for number in range(100):
            made.append(number)
            if number == 3:
                stuck.set()
            yield bytes(100)

    async with pieces(make, ahead_bytes=250) as pipe:
        assert await asyncio.to_thread(stuck.wait, 30)  # three are in, one waits, the next is not begun
        assert len(made) == 4
        assert sum([len(piece) async for piece in pipe]) == 10_000


async def test_leaving_the_pipe_ends_its_producer() -> None:
    ended = threading.Event()

    def make() -> Iterator[bytes]:
        try:
            while True:
                yield bytes(1000)
        finally:
            ended.set()

    async with pieces(make, ahead_bytes=5000) as pipe:
        async for _ in pipe:
            break
    assert await asyncio.to_thread(ended.wait, 30)


@pytest.mark.slow
async def test_nobody_waits_for_long_for_a_maker_that_is_stuck() -> None:
    free = threading.Event()

    def make() -> Iterator[bytes]:
        yield b"x"
        free.wait(30)
        yield b"y"

    async with pieces(make) as pipe:
        assert await anext(aiter(pipe)) == b"x"
    free.set()
