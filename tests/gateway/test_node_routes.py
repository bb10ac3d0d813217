"""A node's HTTP routes: what clients may send, and the responses."""

import base64
import gzip
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from holdfast import App
from holdfast.common.message import Place
from holdfast.errors import (
    Busy,
    HoldfastError,
    InvalidMessage,
    NotOwner,
    OutcomeUnknown,
    SetAside,
    TargetAway,
    Unavailable,
)
from holdfast.gateway.node_routes import NodeRoutes
from holdfast.http.bodies import UNPACK_HERE_BYTES, decoded, unpacked
from holdfast.streams.queries import Queries
from holdfast.streams.requests import RequestAnswer, Requests
from holdfast.system.clock import SystemClock

LIMIT = 100_000
SECRET = "a-secret-for-tests-only"
JPEG = b"\xff\xd8\xff\xe0 and so on"


class Item(msgspec.Struct):
    """A message of the stream of JSON."""

    key: str
    n: int
    url: str = ""


class Taken:
    """A fake node behind the routes: records the requests, and answers as configured."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Place, bytes, float]] = []
        self.attributes: list[Any] = []
        self.answer: RequestAnswer | HoldfastError = RequestAnswer(b'{"n": 1}', 7)

    async def process(
        self, stream: str, key: str, place: Place, body: bytes, attributes: Any, timeout_s: float
    ) -> RequestAnswer:
        self.calls.append((stream, key, place, body, timeout_s))
        self.attributes.append(attributes)
        if isinstance(self.answer, HoldfastError):
            raise self.answer
        return self.answer


Client = TestClient[web.Request, web.Application]


def app() -> App:
    made = App("t")
    made.stream("raw", message=bytes, seq="n")(lambda message, context: None)
    made.stream("json", message=Item, seq="n", run="run")(lambda message, context: None)
    made.stream("free", message=bytes)(lambda message, context: None)
    made.stream("items", message=Item)(lambda message, context: None)
    return made


@pytest.fixture
def taken() -> Taken:
    return Taken()


async def serve(taken: Taken, streams: Any, secret: str | None = None) -> Client:
    door = NodeRoutes(
        streams,
        SystemClock(),
        requests=cast("Requests", taken),
        queries=cast("Queries", None),
        member=lambda: "me",
        max_body_bytes=LIMIT,
        secret=secret,
    )
    made = web.Application()
    made.add_routes(door.routes())
    client = TestClient(TestServer(made))
    await client.start_server()
    return client


@pytest.fixture
async def client(taken: Taken) -> AsyncIterator[Client]:
    made = await serve(taken, app().streams)
    yield made
    await made.close()


def post(client: Client, path: str, stream: str, body: Any = b"x", **headers: str) -> Any:
    sent = {"X-Stream": stream, "Content-Type": "application/octet-stream"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    url = URL(str(client.make_url("/")) + path.removeprefix("/"), encoded=True)
    return client.session.post(url, data=body, headers=sent)


async def body_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/problem+json"
    problem: dict[str, Any] = msgspec.json.decode(await response.read())
    assert problem["status"] == response.status
    assert {"type", "title", "detail"} <= problem.keys()
    return problem


async def test_a_frame_is_answered_with_its_result(client: Client, taken: Taken) -> None:
    async with post(client, "/process/cam-1", "raw", b"frame", X_Seq="7", X_Run="2") as response:
        assert (response.status, await response.read()) == (200, b'{"n": 1}')
        assert response.content_type == "application/json"
        assert (response.headers["X-Owner"], response.headers["X-Epoch"]) == ("me", "7")
        assert "X-Duplicate" not in response.headers
    assert taken.calls == [("raw", "raw/cam-1", Place(2, 7), b"frame", 30.0)]


async def test_the_answer_to_a_repeated_seq_is_marked_duplicate(client: Client, taken: Taken) -> None:
    taken.answer = RequestAnswer(None, 7, duplicate=True)
    async with post(client, "/process/cam-1", "raw", X_Seq="7") as response:
        assert (await response.read(), response.headers["X-Duplicate"]) == (b"null", "true")


async def test_a_result_of_bytes_comes_as_bytes(client: Client, taken: Taken) -> None:
    taken.answer = RequestAnswer(b"\x00\xff", 1)
    async with post(client, "/process/cam-1", "raw", X_Seq="0") as response:
        assert (response.content_type, await response.read()) == ("application/octet-stream", b"\x00\xff")


async def test_an_image_for_a_stream_of_json_comes_as_a_data_url(client: Client, taken: Taken) -> None:
    async with post(client, "/process/cam-1", "json", JPEG, X_Seq="3", Content_Type="image/jpeg") as response:
        assert response.status == 200
    message = msgspec.json.decode(taken.calls[0][3], type=Item)
    assert (message.key, message.n) == ("cam-1", 3)
    assert message.url == "data:image/jpeg;base64," + base64.b64encode(JPEG).decode()


async def test_json_messages_carry_their_own_place(client: Client, taken: Taken) -> None:
    body = b'{"key": "cam-1", "n": 5, "run": 1}'
    async with post(client, "/process/cam-1", "json", body, Content_Type="application/json") as response:
        assert response.status == 200
    assert taken.calls[0][2:4] == (Place(1, 5), body)


@pytest.mark.parametrize(
    "path, body, headers, said",
    [
        ("cam-2", b'{"key": "cam-1", "n": 5, "run": 1}', {}, "the path says 'cam-2'"),
        ("cam-1", b'{"key": "cam-1", "n": 5, "run": 1}', {"X_Seq": "6"}, "X-Seq says 6"),
        ("cam-1", b'{"key": "cam-1", "run": 0}', {}, "field 'n' is missing"),
        ("cam-1", b"{", {}, "not JSON"),
    ],
)
async def test_json_that_contradicts_the_request_is_refused(
    client: Client, taken: Taken, path: str, body: bytes, headers: dict[str, str], said: str
) -> None:
    sent = {"Content_Type": "application/json"} | headers
    async with post(client, f"/process/{path}", "json", body, **sent) as response:
        assert response.status == 400
        assert said in (await body_of(response))["detail"]
    assert taken.calls == []


async def test_where_there_is_no_seq_the_request_id_tells_messages_apart(
    client: Client, taken: Taken
) -> None:
    async with post(client, "/process/k", "free", X_Request_Id="abc") as response:
        assert response.headers["X-Request-Id"] == "abc"
    async with post(client, "/process/k", "free", X_Seq="4"):
        pass
    async with post(client, "/process/k", "free"):
        pass
    async with post(client, "/process/k", "free"):
        pass
    ids = [call[2].id for call in taken.calls]
    assert ids[:2] == ["abc", "seq 4"]
    assert len(set(ids)) == 4


async def test_a_seq_tells_json_messages_apart_where_their_stream_has_none(
    client: Client, taken: Taken
) -> None:
    body = b'{"key": "k", "n": 5}'
    for seq in ("5", "5", "6"):
        async with post(client, "/process/k", "items", body, Content_Type="application/json", X_Seq=seq):
            pass
    assert [call[2].id for call in taken.calls] == ["seq 5", "seq 5", "seq 6"]


async def test_texts_of_two_connections_are_no_duplicates(client: Client, taken: Taken) -> None:
    """Where messages have no seq, each connection would number its texts from 0."""
    for _ in range(2):
        async with client.ws_connect("/process/k?stream=items") as socket:
            await socket.send_str('{"key": "k", "n": 5}')
            await socket.receive()
    assert len({call[2].id for call in taken.calls}) == 2


async def test_an_id_in_a_path_is_decoded_exactly_once(client: Client, taken: Taken) -> None:
    for raw, key in [
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("k%C3%A4se", "käse"),
        ("..%2F..", "../.."),
        ("%20", " "),
    ]:
        async with post(client, f"/process/{raw}", "raw", X_Seq="0") as response:
            assert response.status == 200, await response.text()
        assert taken.calls[-1][1] == f"raw/{key}"


@pytest.mark.parametrize(
    "stream, body, headers, status, said",
    [
        ("raw", b"x", {}, 400, "X-Seq is missing"),
        ("raw", b"x", {"X_Seq": "-1"}, 400, "X-Seq"),
        ("raw", b"x", {"X_Seq": "1e3"}, 400, "X-Seq"),
        ("raw", b"x", {"X_Seq": "9" * 60}, 400, "39 digits"),
        ("raw", b"x", {"X_Seq": "1", "X_Run": "x"}, 400, "X-Run"),
        ("raw", b"x", {"X_Seq": "1", "X_Timeout_Ms": "0"}, 400, "X-Timeout-Ms"),
        ("raw", b"x", {"X_Seq": "1", "X_Timeout_Ms": "99999999"}, 400, "X-Timeout-Ms"),
        ("raw", b"", {"X_Seq": "1"}, 400, "empty"),
        ("raw", b"x", {"X_Seq": "1", "Content_Type": "text/html"}, 415, "application/octet-stream"),
        ("raw", b"x" * (LIMIT + 1), {"X_Seq": "1"}, 413, str(LIMIT)),
        (
            "other",
            b"x",
            {"X_Seq": "1"},
            404,
            "header X-Stream must name one of: free, items, json, raw; it is",
        ),
        ("free", b"x", {"X_Request_Id": "a b"}, 400, "X-Request-Id"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(
    client: Client, taken: Taken, stream: str, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    async with post(client, "/process/k", stream, body, **headers) as response:
        assert response.status == status
        assert said in (await body_of(response))["detail"]
    assert taken.calls == []


@pytest.mark.parametrize(
    "query, said",
    [
        ("?stream=other", "parameter stream must name one of: free, items, json, raw; it is 'other'"),
        ("", "header X-Stream or parameter stream must name one of: free, items, json, raw"),
    ],
)
async def test_a_stream_that_is_not_named_rightly_is_told_by_where_it_is_named(
    client: Client, taken: Taken, query: str, said: str
) -> None:
    async with post(client, f"/process/k{query}", "", b"x", X_Seq="1") as response:
        assert response.status == 404
        assert (await body_of(response))["detail"] == said
    assert taken.calls == []


@pytest.mark.parametrize(
    "error, status, headers",
    [
        (
            NotOwner("b has it", "b", "http://b", 9),
            421,
            {"X-Owner": "b", "X-Owner-Address": "http://b", "X-Epoch": "9"},
        ),
        (Busy("full", 1.5), 429, {"Retry-After": "2"}),
        (TargetAway("a target is away", 41.2), 503, {"Retry-After": "42"}),
        (Unavailable("not now"), 503, {"Retry-After": "1"}),
        (SetAside("it must fail"), 422, {}),
        (OutcomeUnknown("too late"), 504, {}),
    ],
)
async def test_every_error_is_told_as_a_problem_with_its_status(
    client: Client, taken: Taken, error: HoldfastError, status: int, headers: dict[str, str]
) -> None:
    taken.answer = error
    async with post(client, "/process/k", "raw", X_Seq="0", traceparent="00-1-2-01") as response:
        assert response.status == status
        assert (await body_of(response))["detail"] == str(error)
        assert headers.items() <= dict(response.headers).items()
        assert response.headers["traceparent"] == "00-1-2-01"


@pytest.mark.parametrize(
    "sent, kept",
    [("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True), ("00-1-2-01", False), ("", False)],
)
async def test_the_place_of_a_request_in_a_trace_is_that_of_its_message(
    client: Client, taken: Taken, sent: str, kept: bool
) -> None:
    async with post(client, "/process/k", "json", b'{"a": 1}', X_Seq="0", X_Run="0", traceparent=sent):
        assert taken.attributes == ([{"traceparent": sent}] if kept else [{}])


@pytest.mark.parametrize("kind", [SetAside, InvalidMessage, Unavailable])
async def test_the_detail_of_a_problem_hides_secrets(
    client: Client, taken: Taken, kind: type[HoldfastError]
) -> None:
    taken.answer = kind("at redis://user:hunter2@host?token=hunter2")
    async with post(client, "/process/k", "raw", X_Seq="0") as response:
        assert (await body_of(response))["detail"] == "at redis://user:***@host?token=***"


async def test_a_request_without_the_secret_gets_401(taken: Taken) -> None:
    client = await serve(taken, app().streams, SECRET)
    given_and_status = [("", 401), ("Bearer wrong", 401), (SECRET, 401), (f"Bearer {SECRET}", 200)]
    for given, status in given_and_status:
        async with post(client, "/process/k", "raw", X_Seq="0", Authorization=given) as response:
            assert response.status == status
            assert SECRET not in await response.text()
    await client.close()


async def test_the_only_stream_need_not_be_named(taken: Taken) -> None:
    streams = {"raw": app().streams["raw"]}
    client = await serve(taken, streams)
    async with client.post("/process/k", data=b"x", headers={"X-Seq": "0"}) as response:
        assert response.status == 200
    await client.close()


async def test_a_websocket_numbers_frames_and_returns_results_in_order(client: Client, taken: Taken) -> None:
    async with client.ws_connect("/process/cam-1?stream=json&seq=5&run=2") as socket:
        await socket.send_bytes(JPEG)
        await socket.send_bytes(b"\x89PNG\r\n\x1a\n")
        await socket.send_str("{")
        said = [msgspec.json.decode((await socket.receive()).data) for _ in range(3)]
    assert said[:2] == [{"seq": 5, "result": {"n": 1}}, {"seq": 6, "result": {"n": 1}}]
    assert said[2]["problem"]["status"] == 400
    assert [call[2] for call in taken.calls] == [Place(2, 5), Place(2, 6)]
    assert b"data:image/png;base64," in taken.calls[1][3]


def text(n: int) -> str:
    return f'{{"key": "cam-1", "n": {n}, "run": 0}}'


UNREADABLE = ["{", "", '{"key": "another", "n": 1}', '{"key": "cam-1"}', "[]", '{"n": 7}']


@pytest.mark.parametrize("junk", UNREADABLE)
async def test_a_text_that_can_t_be_read_takes_no_number(client: Client, taken: Taken, junk: str) -> None:
    async with client.ws_connect("/process/cam-1?stream=json") as socket:
        await socket.send_bytes(JPEG)
        await socket.send_str(junk)
        await socket.send_bytes(b"")
        await socket.send_bytes(JPEG)
        said = [msgspec.json.decode((await socket.receive()).data) for _ in range(4)]
    assert [one.get("problem", {}).get("status") for one in said] == [None, 400, 400, None]
    assert [call[2] for call in taken.calls] == [Place(0, 0), Place(0, 1)]


@pytest.mark.parametrize("junk", UNREADABLE)
async def test_texts_say_their_own_numbers_whatever_came_between(
    client: Client, taken: Taken, junk: str
) -> None:
    async with client.ws_connect("/process/cam-1?stream=json") as socket:
        for sent in (text(0), junk, text(1), text(2)):
            await socket.send_str(sent)
        said = [msgspec.json.decode((await socket.receive()).data) for _ in range(4)]
    assert ["problem" in one for one in said] == [False, True, False, False]
    assert [call[2] for call in taken.calls] == [Place(0, 0), Place(0, 1), Place(0, 2)]


async def test_texts_of_a_stream_of_bytes_are_numbered(client: Client, taken: Taken) -> None:
    async with client.ws_connect("/process/cam-1?stream=raw") as socket:
        for sent in ("{", "no JSON"):
            await socket.send_str(sent)
        await socket.send_bytes(b"bytes")
        for _ in range(3):
            await socket.receive()
    assert [(call[2], call[3]) for call in taken.calls] == [
        (Place(0, 0), b"{"), (Place(0, 1), b"no JSON"), (Place(0, 2), b"bytes")
    ]  # fmt: skip


@pytest.mark.parametrize("query", ["?stream=raw&seq=x", "?stream=raw&run=-1", "?stream=other"])
async def test_a_bad_websocket_is_refused_before_it_is_one(client: Client, query: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await client.ws_connect(f"/process/cam-1{query}")
    assert refusal.value.status in (400, 404)


async def test_a_get_that_is_no_websocket(client: Client) -> None:
    async with client.get("/process/cam-1?stream=raw") as response:
        assert response.status == 426


@pytest.mark.parametrize(
    "body, limit, here",
    [
        (b"\0" * UNPACK_HERE_BYTES * 2, UNPACK_HERE_BYTES * 2, False),
        (b"\0" * 1000, UNPACK_HERE_BYTES * 2, True),
        (b"\0" * UNPACK_HERE_BYTES, UNPACK_HERE_BYTES, True),
    ],
    ids=["a large one", "a small one", "one that the limit keeps small"],
)
async def test_a_body_that_may_become_large_is_unpacked_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, body: bytes, limit: int, here: bool
) -> None:
    threads: list[int] = []

    def noted(*arguments: Any) -> bytes:
        threads.append(threading.get_ident())
        return decoded(*arguments)

    monkeypatch.setattr("holdfast.http.bodies.decoded", noted)
    assert await unpacked(gzip.compress(body), {"Content-Encoding": "gzip"}, limit) == body
    assert [thread == threading.get_ident() for thread in threads] == [here]
