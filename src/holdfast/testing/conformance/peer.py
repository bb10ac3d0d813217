"""The promises of every peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.common.message import NO_RUN, RUN_DIGITS, SEQ_DIGITS
from holdfast.common.protocol import (
    Answers,
    Done,
    Forward,
    ForwardAnswer,
    ForwardedDelivery,
    Move,
    Probe,
    Reply,
    Request,
    SettleReport,
    StreamChanged,
    UnknownMember,
    Warm,
    number,
)
from holdfast.errors import NobodyThere, OutcomeUnknown, Unavailable
from holdfast.ports.peer import Peer

PATIENCE_S = 10.0
"""Seconds for which a test waits for an expected event."""

MakePeer = Callable[[], Awaitable[Peer]]

ODD = "käse/\N{SNOWMAN} '\"%_\\;--\n"


@pytest.mark.asyncio
class PeerConformance:
    """Every promise of the peer port. Fixture: ``make_peer``, an async callable that returns a new Peer
    each time, all of one network; the fixture closes them."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a few calls to be answered in."""

    @pytest.fixture
    def make_peer(self) -> MakePeer:
        """Override: make fresh adapters."""
        raise NotImplementedError("define the fixture make_peer")

    async def test_every_request_arrives_whole_and_brings_its_reply(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        asked: list[Request] = []

        async def handle(request: Request) -> Reply:
            asked.append(request)
            return Done(ok=False, text=f"no: {ODD}")

        address = await server.serve(handle)
        requests: list[Request] = [
            Probe("member-b"),
            Warm("member-b", "stream", ODD),
            StreamChanged("member-b", "stream", ODD),
            Move("member-b", "stream", ODD, "member-a"),
            SettleReport("member-b", "member-a", [1, 2**40], []),
        ]
        for request in requests:
            assert await client.call(address, request, PATIENCE_S) == Done(ok=False, text=f"no: {ODD}")
        assert asked == requests

    async def test_forwarded_deliveries_arrive_with_all_their_fields(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        taken: list[ForwardedDelivery] = []

        async def handle(request: Request) -> Reply:
            assert isinstance(request, Forward)
            taken.extend(request.deliveries)
            return Answers([ForwardAnswer(p.number, "no", "member-c", 7) for p in request.deliveries])

        address = await server.serve(handle)
        run, seq = 10**RUN_DIGITS - 1, 10**SEQ_DIGITS - 1
        deliveries = [
            ForwardedDelivery(1, "s", ODD, 0, 0, "id", "receipt", bytes(range(256)), {"a": ODD}, 12.5, 3),
            ForwardedDelivery(2, "s", "k", number(run), number(seq), "", "", b"", {}, 0.0, 1),
            ForwardedDelivery(3, "s", "k", 0, 1, "", ODD, b"\xff" * 250_000, {}, 0.0, 1),
            ForwardedDelivery(4, "s", "k", number(NO_RUN), 1, "", "", b"", {}, 0.0, 1),
            ForwardedDelivery(5, "s", "k", 3, 1, "", "", b"", {}, 0.0, 1, counted=True),
        ]
        reply = await client.call(
            address, Forward("member-b", "member-a", "http://a", deliveries), PATIENCE_S
        )
        assert reply == Answers([ForwardAnswer(n, "no", "member-c", 7) for n in (1, 2, 3, 4, 5)])
        assert taken == deliveries
        assert (int(taken[1].run), int(taken[1].seq)) == (run, seq)

    async def test_calls_at_once_get_their_own_answers(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        all_there = asyncio.Event()
        inside = 0

        async def handle(request: Request) -> Reply:
            nonlocal inside
            inside += 1
            if inside == 20:
                all_there.set()
            await all_there.wait()
            return Done(text=request.to)

        address = await server.serve(handle)
        names = [f"member-{i}" for i in range(20)]
        replies = await asyncio.gather(*(client.call(address, Probe(name), PATIENCE_S) for name in names))
        assert replies == [Done(text=name) for name in names]

    async def test_both_sides_may_serve_and_call(self, make_peer: MakePeer) -> None:
        a, b = await make_peer(), await make_peer()
        addresses: dict[str, str] = {}

        async def answer_a(request: Request) -> Reply:
            return Done(text="a")

        async def answer_b(request: Request) -> Reply:
            return await b.call(addresses["a"], Probe("member-a"), PATIENCE_S)

        addresses["a"], addresses["b"] = await a.serve(answer_a), await b.serve(answer_b)
        assert addresses["a"] != addresses["b"]
        assert await a.call(addresses["b"], Probe("member-b"), PATIENCE_S) == Done(text="a")
        assert await a.call(addresses["a"], Probe("member-a"), PATIENCE_S) == Done(text="a"), "itself"

    async def test_a_closed_address_has_no_node(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        address = await server.serve(_done)
        await server.close()
        with pytest.raises(NobodyThere):
            await client.call(address, Probe("member-b"), PATIENCE_S)

    async def test_another_membership_answers_as_unknown(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        address = await server.serve(_only_for("member-b"))
        assert await client.call(address, Probe("member-a"), PATIENCE_S) == UnknownMember("member-b")
        assert await client.call(address, Probe("member-b"), PATIENCE_S) == Done()

    async def test_a_refusal_does_not_mean_an_absent_node(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()

        async def refuse(request: Request) -> Reply:
            raise Unavailable("not ready")

        address = await server.serve(refuse)
        with pytest.raises(Unavailable) as refusal:
            await client.call(address, Probe("member-b"), PATIENCE_S)
        assert not isinstance(refusal.value, NobodyThere), "who refuses lives"

    async def test_a_handler_that_breaks_leaves_the_outcome_unknown(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()

        async def fail(request: Request) -> Reply:
            if request.to == "member-b":
                return Done()
            raise ValueError("boom")

        address = await server.serve(fail)
        with pytest.raises(OutcomeUnknown):
            await client.call(address, Probe("member-a"), PATIENCE_S)
        assert await client.call(address, Probe("member-b"), PATIENCE_S) == Done(), "the server lives on"

    async def test_an_answer_that_comes_too_late_is_unknown(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        asked, answer = asyncio.Event(), asyncio.Event()

        async def dawdle(request: Request) -> Reply:
            asked.set()
            await answer.wait()
            return Done()

        address = await server.serve(dawdle)
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(client.call(address, Probe("member-b"), 4 * self.tick_s), PATIENCE_S)
        assert asked.is_set()
        answer.set()
        assert await client.call(address, Probe("member-b"), PATIENCE_S) == Done()

    async def test_a_call_is_unknown_when_the_server_goes(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        asked = asyncio.Event()

        async def hang(request: Request) -> Reply:
            asked.set()
            await asyncio.Event().wait()
            return Done()

        address = await server.serve(hang)
        call = asyncio.create_task(client.call(address, Probe("member-b"), 6 * PATIENCE_S))
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        await asyncio.wait_for(server.close(), PATIENCE_S)
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(call, PATIENCE_S)

    async def test_a_caller_that_gives_up_cuts_no_work_short(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        asked, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def work(request: Request) -> Reply:
            asked.set()
            await go_on.wait()
            done.set()
            return Done()

        address = await server.serve(work)
        call = asyncio.create_task(client.call(address, Probe("member-b"), PATIENCE_S))
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        call.cancel()
        await asyncio.wait([call])
        go_on.set()
        await asyncio.wait_for(done.wait(), PATIENCE_S)

    # --- gone

    async def test_a_living_membership_is_not_gone_until_its_peer_closes(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        probed = asyncio.Event()

        async def handle(request: Request) -> Reply:
            if request.to == "member-b":
                probed.set()
                return Done()
            return UnknownMember("member-b")

        address = await server.serve(handle)
        going = asyncio.create_task(client.gone(address, "member-b"))
        await asyncio.wait([going], timeout=4 * self.tick_s)
        assert not going.done()
        assert await client.call(address, Probe("member-b"), PATIENCE_S) == Done()
        assert not going.done()
        await server.close()
        await asyncio.wait_for(going, PATIENCE_S)

    async def test_an_unreachable_node_is_gone(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        address = await server.serve(_done)
        await server.close()
        await asyncio.wait_for(client.gone(address, "member-b"), PATIENCE_S)

    async def test_another_membership_at_the_address_means_gone(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        address = await server.serve(_only_for("member-b"))
        await asyncio.wait_for(client.gone(address, "member-a"), PATIENCE_S)

    async def test_waiting_for_the_end_can_be_given_up(self, make_peer: MakePeer) -> None:
        server, client = await make_peer(), await make_peer()
        address = await server.serve(_done)
        going = asyncio.create_task(client.gone(address, "member-b"))
        await client.call(address, Probe("member-b"), PATIENCE_S)
        going.cancel()
        await asyncio.wait([going], timeout=PATIENCE_S)
        assert going.cancelled()
        assert await client.call(address, Probe("member-b"), PATIENCE_S) == Done()


async def _done(request: Request) -> Reply:
    return Done()


def _only_for(member: str) -> Callable[[Request], Awaitable[Reply]]:
    async def handle(request: Request) -> Reply:
        return Done() if request.to == member else UnknownMember(member)

    return handle
