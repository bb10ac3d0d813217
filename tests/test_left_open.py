"""What a test leaves open is found in that test."""

import asyncio
import socket

import pytest

from tests.left_open import left_open, sockets


class Holder(asyncio.Protocol):
    """Holds what holds it, as streams do."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


@pytest.mark.slow
def test_a_socket_that_is_still_held_is_named() -> None:
    before = set(sockets())
    with socket.socket() as held:
        [told] = left_open(before)
        assert f"laddr={held.getsockname()}" in told
    assert left_open(before) == []


@pytest.mark.slow
def test_a_transport_that_is_garbage_is_told_of() -> None:
    before = set(sockets())

    async def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        transport.set_protocol(Holder(transport))
        return theirs

    with asyncio.run(connect()):
        assert any("unclosed transport" in told for told in left_open(before))
    assert left_open(before) == []


@pytest.mark.slow
def test_what_a_finalizer_closes_is_no_fault() -> None:
    class Pool:
        def __init__(self) -> None:
            self.itself = self
            self.socket = socket.socket()

        def __del__(self) -> None:
            self.socket.close()

    before = set(sockets())
    Pool()
    assert left_open(before) == []
