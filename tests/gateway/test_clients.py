"""Who may use a gateway, by both data planes: clients with keys, and pages of its own site."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from holdfast.cluster.host import Host
from holdfast.common.protocol import Done, Reply, Request
from holdfast.errors import ConfigError
from holdfast.gateway.clients import Clients, add, read, source_of
from holdfast.gateway.haproxy.binary import find
from holdfast.gateway.haproxy.config import NODE
from holdfast.gateway.haproxy.plane import HaproxyOptions
from holdfast.gateway.listen import GatewaySettings
from holdfast.gateway.service import Gateway
from holdfast.http.key_file import digest_of
from holdfast.http.problem import MEDIA_TYPE
from holdfast.http.serving import CONNECTIONS_MAX
from holdfast.http.tls import PeerTls
from holdfast.ports.coordinator import Load, Member
from holdfast.services.http.peer import HttpPeer, PeerSettings
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.system.clock import SystemClock
from simulator.limits import limits_with
from simulator.servers import certificate
from tests.cluster.fakes import Log
from tests.gateway.surface import LIMIT, MEMBER, RESULT, Surface, app, planes

SECRET = "s" * 16
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
PATIENCE_S = 20.0
Ask = Callable[..., Any]


class Place:
    """A gateway before one node, whose secret clients don't know."""

    def __init__(
        self,
        clients: Clients | None,
        *,
        haproxy: HaproxyOptions | None,
        no_auth: bool = False,
        secret: str | None = SECRET,
        tls: PeerTls | None = None,
        max_connections: int = CONNECTIONS_MAX,
    ) -> None:
        self._secret = secret
        self._tls = tls
        self._max_connections = max_connections
        self.node = Surface()
        self.log = Log()
        self._clients, self._haproxy, self._no_auth = clients, haproxy, no_auth
        self.address = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Place"]:
        clock, coordinator, streams = SystemClock(), MemoryCoordinator(SystemClock()), app().streams
        between_nodes = PeerSettings(secret=self._secret, tls=self._tls)
        peer, calling = HttpPeer(clock, between_nodes), HttpPeer(clock, between_nodes)
        peer.add_routes(self.node.routes(self._secret))
        member = Member(MEMBER, "node", await peer.serve(done), Load(serves=tuple(streams)))
        await coordinator.join(member, 3600)
        gateway = Gateway(
            Host(coordinator, calling, clock, limits_with(), self.log, "gateway"),
            GatewaySettings(
                host="127.0.0.1", port=0, secret=self._secret, peer_tls=self._tls, max_body_bytes=LIMIT,
                no_auth=self._no_auth, max_connections=self._max_connections,
            ),
            haproxy=self._haproxy, clients=self._clients,
        )  # fmt: skip
        await gateway.start()
        self.gateway = gateway
        self.address = gateway.address
        try:
            async with aiohttp.ClientSession() as self.session:
                yield self
        finally:
            await gateway.stop()
            await peer.close()
            await calling.close()

    async def post(self, key: str | None = None, **headers: str) -> tuple[int, bytes, str]:
        """Send a frame; status, body and type of the answer."""
        said = {"X-Stream": "free", **headers} | ({"Authorization": f"Bearer {key}"} if key else {})
        async with self.session.post(f"{self.address}/process/cam-1", data=b"frame", headers=said) as answer:
            return answer.status, await answer.read(), answer.content_type

    async def post_showing(self, *authorizations: str) -> int:
        """Send a frame with these headers ``Authorization``; the status of the answer."""
        said = CIMultiDict([("X-Stream", "free"), *(("Authorization", each) for each in authorizations)])
        async with self.session.post(f"{self.address}/process/cam-1", data=b"frame", headers=said) as answer:
            return answer.status

    async def answered_by_node(self) -> float:
        """How many answers HAProxy brought straight from a node."""
        async with self.session.get(self.gateway.page.url) as answer:
            page = await answer.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "haproxy_server_http_responses_total" and sample.labels["server"] == NODE
        )

    async def get(self, path: str, **headers: str) -> int:
        async with self.session.get(f"{self.address}{path}", headers=headers) as answer:
            return answer.status


async def done(request: Request) -> Reply:
    return Done()


@pytest.fixture(params=planes().items(), ids=lambda item: str(item[0]))
def haproxy(request: pytest.FixtureRequest) -> HaproxyOptions | None:
    return cast("HaproxyOptions | None", request.param[1])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "clients.keys"


async def test_only_who_has_a_key_is_served(file: Path, haproxy: HaproxyOptions | None) -> None:
    key = add(file, "camera-7", None)
    clients = Clients(file, SystemClock(), Log())
    async with Place(clients, haproxy=haproxy).running() as place:
        for wrong in (None, "x", digest_of(key), SECRET, f"{key}x", key[:-1], f"camera-7:{key}"):
            status, body, kind = await place.post(wrong)
            assert (status, kind) == (401, MEDIA_TYPE)
            assert b"urn:holdfast:unauthorized" in body
        for _ in range(3):  # by the fallback first, straight to the node then
            assert await place.post(key) == (200, RESULT, "application/json")
        assert len(place.node.taken) == 3
        assert await place.post(Authorization=f"bearer  {key}") == (200, RESULT, "application/json")
        for unusual in (
            key,
            f"Basic {key}",
            f"Bearer{key}",
            f"Bearer Bearer {key}",
            f"Bearer x,Bearer {key}",
        ):
            assert (await place.post(Authorization=unusual))[0] == 401
        for other in ("Bearer x", key, "Basic eDp5"):
            for both in ([f"Bearer {key}", other], [other, f"Bearer {key}"]):
                assert await place.post_showing(*both) == 401
        assert await place.get("/v1/models") == 401
        assert await place.get("/process/cam-1?stream=free", **UPGRADE) == 401
        assert await place.get("/healthz") == await place.get("/readyz") == 200


async def test_only_who_has_a_key_is_answered_queries(file: Path, haproxy: HaproxyOptions | None) -> None:
    key = add(file, "dashboard", None)
    async with Place(Clients(file, SystemClock(), Log()), haproxy=haproxy).running() as place:
        assert await place.get("/query/json/cam-1") == 401
        for wrong in ("x", SECRET, digest_of(key)):
            assert await place.get("/query/json/cam-1", Authorization=f"Bearer {wrong}") == 401
        for _ in range(3):
            assert await place.get("/query/json/cam-1", Authorization=f"Bearer {key}") == 200


@pytest.mark.slow
async def test_keys_are_read_again_when_their_file_changes(
    file: Path, haproxy: HaproxyOptions | None
) -> None:
    old = add(file, "camera-7", None)
    clients = Clients(file, SystemClock(), Log())
    async with Place(clients, haproxy=haproxy).running() as place:
        assert (await place.post(old))[0] == 200
        new = add(file, "camera-7", None)
        async with asyncio.timeout(PATIENCE_S):
            while (await place.post(new))[0] != 200:
                await clients_read(place)
        assert (await place.post(old))[0] == 200, "two keys are valid at the same time"
        write(file, f"camera-7 {digest_of(new)}")
        async with asyncio.timeout(PATIENCE_S):
            while (await place.post(old))[0] != 401:
                await clients_read(place)
        assert (await place.post(new))[0] == 200


def write(file: Path, line: str) -> None:
    file.write_text(f"{line}\n")


async def clients_read(place: Place) -> None:
    """Long enough: the file is checked every second."""
    await asyncio.wait([asyncio.create_task(place.get("/healthz"))], timeout=0.1)


async def test_each_client_sends_only_so_fast(file: Path, haproxy: HaproxyOptions | None) -> None:
    slow, quick = add(file, "slow", 3), add(file, "quick", None)
    clients = Clients(file, SystemClock(), Log(), per_s=1000)
    async with Place(clients, haproxy=haproxy).running() as place:
        said = await asyncio.gather(*(place.post(slow) for _ in range(12)))
        statuses = [status for status, _, _ in said]
        assert statuses.count(200) >= 3
        assert statuses.count(429) >= 6
        assert {kind for status, _, kind in said if status == 429} == {MEDIA_TYPE}
        assert (await place.post(quick))[0] == 200, "the others are not held up"


@pytest.mark.nightly
async def test_who_keeps_sending_too_fast_is_served_as_fast_as_it_may(
    file: Path, haproxy: HaproxyOptions | None
) -> None:
    key, clock = add(file, "hasty", 5), SystemClock()
    async with Place(Clients(file, clock, Log()), haproxy=haproxy).running() as place:
        begun = clock.monotonic()
        statuses: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while statuses.count(200) < 15:
                statuses.append((await place.post(key))[0])
        assert set(statuses) == {200, 429}
        assert clock.monotonic() - begun > 1.5


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "localhost:9999"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:8080", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost:8080", "Origin": "http://localhost:8080"}, 200),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
    ],
)
async def test_where_nobody_is_asked_pages_of_other_sites_are_refused(
    haproxy: HaproxyOptions | None, headers: dict[str, str], status: int
) -> None:
    async with Place(None, haproxy=haproxy).running() as place:
        for _ in range(2):
            said = await place.post(**headers)
            assert said[0] == status
            if status == 403:
                assert said[2] == MEDIA_TYPE
        upgraded = await place.get("/process/cam-1?stream=free", **UPGRADE | headers)
        assert upgraded == (101 if status == 200 else 403)
        assert bool(place.node.taken) == (status == 200)


async def test_without_keys_it_may_have_any_name_if_that_is_said(haproxy: HaproxyOptions | None) -> None:
    async with Place(None, haproxy=haproxy, no_auth=True).running() as place:
        assert (await place.post(Host="frames.example"))[0] == 200
        assert (await place.post(Host="frames.example", Origin="https://frames.example"))[0] == 200
        assert (await place.post(Host="frames.example", Origin="https://evil.example"))[0] == 403


@pytest.mark.parametrize("secret", [None, SECRET], ids=["without secret", "with secret"])
@pytest.mark.parametrize("host", ["frames.example", "192.0.2.7:8080", "[2001:db8::7]:8080"])
async def test_a_gateway_of_any_name_brings_message_after_message_to_nodes(
    haproxy: HaproxyOptions | None, host: str, secret: str | None
) -> None:
    async with Place(None, haproxy=haproxy, no_auth=True, secret=secret).running() as place:
        for said in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
            for _ in range(2):
                assert (await place.post(**said))[0] == 200
            upgraded = await place.get("/process/cam-1?stream=free", **UPGRADE | said)
            assert upgraded == 101
            assert await place.get("/query/json/gate", **said) == 200
        async with asyncio.timeout(PATIENCE_S):
            while haproxy is not None and await place.answered_by_node() < 2:
                for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
                    assert (await place.post(**headers))[0] == 200


@pytest.mark.parametrize("secret", [None, SECRET], ids=["without secret", "with secret"])
async def test_a_page_of_the_gateway_on_loopback_is_served_again_and_again(
    haproxy: HaproxyOptions | None, secret: str | None
) -> None:
    async with Place(None, haproxy=haproxy, secret=secret).running() as place:
        async with asyncio.timeout(PATIENCE_S):
            count = 0
            while count < 2 or (haproxy is not None and await place.answered_by_node() < 1):
                assert (await place.post(Origin=place.address))[0] == 200
                count += 1


@pytest.mark.parametrize("secret", [None, SECRET], ids=["without secret", "with secret"])
async def test_who_shows_a_key_may_send_from_any_page(
    file: Path, haproxy: HaproxyOptions | None, secret: str | None
) -> None:
    key = add(file, "page", None)
    clients = Clients(file, SystemClock(), Log())
    async with Place(clients, haproxy=haproxy, secret=secret).running() as place:
        async with asyncio.timeout(PATIENCE_S):
            count = 0
            while count < 2 or (haproxy is not None and await place.answered_by_node() < 1):
                said = await place.post(key, Host="frames.example", Origin="https://other.example")
                assert said[0] == 200
                count += 1


@pytest.mark.skipif(find() is None, reason="no HAProxy is here")
async def test_one_address_can_t_have_all_connections_of_haproxy() -> None:
    async with Place(None, haproxy=planes()["haproxy"], max_connections=40).running() as place:
        port = URL(place.address).port or 0
        async with asyncio.timeout(PATIENCE_S):
            reading = [asyncio.ensure_future(said(port)) for _ in range(45)]
            refused = 0
            while refused < 35:  # whichever they are: HAProxy's threads take them as they like
                done, left = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                assert {task.result() for task in done} == {b""}, "refused without a word"
                refused, reading = refused + len(done), [*left]
            other = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
            timeout = aiohttp.ClientTimeout(total=5)
            async with (
                aiohttp.ClientSession(connector=other, timeout=timeout) as session,
                session.get(f"{place.address}/healthz") as answer,
            ):
                assert answer.status == 200
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)


@pytest.mark.skipif(find() is None, reason="no HAProxy is here")
async def test_haproxy_starts_though_its_listener_has_a_higher_number_than_it_serves_connections() -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(400)]
    try:
        async with Place(None, haproxy=planes()["haproxy"], max_connections=40).running() as place:
            assert (await place.post())[0] == 200
    finally:
        for descriptor in held:
            os.close(descriptor)


async def said(port: int) -> bytes:
    """All that a silent connection receives until it ends."""
    with contextlib.suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            return await reader.read()
    return b""


@pytest.mark.parametrize("junk", ["{", "", '{"key": "another", "n": 1}', '{"key": "cam-1"}', "[]"])
async def test_a_message_of_a_camera_that_can_t_be_read_takes_no_number(
    haproxy: HaproxyOptions | None, junk: str
) -> None:
    async with Place(None, haproxy=haproxy).running() as place:
        url = f"{place.address}/process/cam-1?stream=json"
        async with place.session.ws_connect(url) as camera:
            await camera.send_bytes(b"\xff\xd8\xff")
            await camera.send_str(junk)
            await camera.send_bytes(b"\xff\xd8\xff")
            said = [msgspec.json.decode((await camera.receive()).data) for _ in range(3)]
        assert [one.get("problem", {}).get("status") for one in said] == [None, 400, None]
        assert {taken.place.seq for taken in place.node.taken} == {0, 1}, "both were sent at the same time"


@pytest.mark.parametrize("names", [(), ("nodes.example",)], ids=["by address", "by one name for all"])
async def test_nodes_that_speak_tls_are_reached_by_it(
    tmp_path: Path, haproxy: HaproxyOptions | None, names: tuple[str, ...]
) -> None:
    cert, key = certificate.make(tmp_path, *names)
    async with Place(None, haproxy=haproxy, tls=PeerTls(cert, key, cert, *names)).running() as place:
        for _ in range(3):
            assert (await place.post())[:2] == (200, RESULT)
        assert not place.log.events("error")


async def test_authorities_that_can_not_be_read_again_keep_no_haproxy_from_starting(
    tmp_path: Path, haproxy: HaproxyOptions | None
) -> None:
    cert, key = certificate.make(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_text(f"# gehört allen\n{cert.read_text()}")
    async with Place(None, haproxy=haproxy, tls=PeerTls(cert, key, ca)).running() as place:
        ca.write_text("no certificate")
        if place.gateway.plane is not None:
            await place.gateway.plane.reload()
        for _ in range(3):
            assert (await place.post())[:2] == (200, RESULT)


class Leaping(SystemClock):
    """A clock whose first sleep ends immediately, and the second never."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept = asyncio.Event()

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if self.now_s:
            self.slept.set()
            await asyncio.Event().wait()
        self.now_s += seconds


async def test_addresses_that_came_once_are_forgotten_without_a_file_too() -> None:
    clock = Leaping()
    clients = Clients(None, clock, Log(), per_s=2)

    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    for n in range(100):
        await clients.admit(make_mocked_request("POST", "/process/x").clone(remote=f"10.0.0.{n}"), answer)
    assert len(clients.limiter) == 100
    watching = asyncio.create_task(clients.watch())
    await asyncio.wait_for(clock.slept.wait(), PATIENCE_S)
    assert len(clients.limiter) == 0
    watching.cancel()


async def test_a_client_s_rate_is_as_its_file_says_now(file: Path) -> None:
    key, clock, log = add(file, "camera-7", 1), Leaping(), Log()
    clients = Clients(file, clock, log)

    async def send() -> int:
        async def answer(request: web.Request) -> web.Response:
            return web.Response()

        headers = {"Authorization": f"Bearer {key}"}
        return (await clients.admit(make_mocked_request("POST", "/process/x", headers), answer)).status

    assert [await send() for _ in range(2)] == [200, 429]
    write(file, f"camera-7 {digest_of(key)} 1000")
    watching = asyncio.create_task(clients.watch())
    await asyncio.wait_for(clock.slept.wait(), PATIENCE_S)
    assert log.events("info") == ["clients' keys read"]
    assert [await send() for _ in range(5)] == [200] * 5
    watching.cancel()


@pytest.mark.parametrize(
    "one, other",
    [("2001:db8::1", "2001:db8::ffff:1"), ("fe80::1%eth0", "fe80::2"), ("192.0.2.1", "192.0.2.1"), ("", "")],
)
def test_addresses_of_one_customer_are_one_client(one: str, other: str) -> None:
    assert source_of(one) == source_of(other)


def test_addresses_of_two_customers_are_two_clients() -> None:
    assert source_of("2001:db8::1") != source_of("2001:db8:0:1::1")
    assert source_of("192.0.2.1") != source_of("192.0.2.2")


# --- the file


def test_a_line_is_added_that_nobody_else_may_read(file: Path) -> None:
    key = add(file, "camera-7", 50)
    assert file.stat().st_mode & 0o777 == 0o600
    assert key not in file.read_text()
    [client] = read(file)
    assert (client.name, client.digest, client.per_s) == ("camera-7", digest_of(key), 50)


@pytest.mark.parametrize("text", ["", "# clients", "# clients\n", f"a {'0' * 64}", f"a {'0' * 64}\n"])
def test_a_line_is_added_as_a_line_of_its_own(file: Path, text: str) -> None:
    file.write_text(text)
    before = read(file)
    key = add(file, "camera-7", None)
    assert [client.digest for client in read(file)] == [*(each.digest for each in before), digest_of(key)]
    assert "\n\n" not in file.read_text()


@pytest.mark.parametrize(
    "line", ["camera", "camera x", f"camera {'A' * 64}", f"a b {'0' * 64}", f"camera {'0' * 64} 0",
             f"camera {'0' * 64} 1.5", f"camera {'0' * 64} 5 6", f"käse {'0' * 64}",
             f"camera {digest_of('')}"],
)  # fmt: skip
def test_a_line_that_is_wrong_is_named(file: Path, line: str) -> None:
    file.write_text(f"# clients\n\n{line}\n")
    with pytest.raises(ConfigError, match="line 3"):
        read(file)


def test_the_same_key_twice_is_refused(file: Path) -> None:
    file.write_text(f"a {'0' * 64}\nb {'0' * 64}\n")
    with pytest.raises(ConfigError, match="twice"):
        read(file)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="name"):
        add(tmp_path / "keys", "no name", None)
    with pytest.raises(ConfigError, match="per-s"):
        add(tmp_path / "keys", "name", 0)


@pytest.mark.slow
async def test_a_file_that_became_wrong_changes_nothing(file: Path) -> None:
    key = add(file, "camera-7", None)
    log = Log()
    clients = Clients(file, SystemClock(), log)
    async with Place(clients, haproxy=None).running() as place:
        write(file, "junk")
        async with asyncio.timeout(PATIENCE_S):
            while not log.events("error"):
                await clients_read(place)
        assert (await place.post(key))[0] == 200
