"""Whatever bytes come, they are refused with a status or a closed connection, and no stream of another client
is touched: by a node's door, and by gateways before it."""

import gzip
import itertools
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import unquote

import pytest

from holdfast.errors import TooLarge
from holdfast.http.bodies import decoded
from holdfast.http.problem import MEDIA_TYPE
from tests.gateway.surface import LIMIT, MEMBER, RESULT, Said, Surface, planes, surface

NUMBERS = itertools.count()
VICTIM = b"POST /process/victim HTTP/1.1\r\nHost: [::1]\r\nX-Stream: free\r\nContent-Length: 5\r\n\r\nowned"


@pytest.fixture(scope="module")
def servers() -> Iterator[Surface]:
    with surface() as made:
        yield made


@pytest.fixture(params=["node", *planes()])
def name(request: pytest.FixtureRequest) -> str:
    made: str = request.param
    return made


@pytest.fixture(params=["new stream", "known stream"])
def key(request: pytest.FixtureRequest, servers: Surface, name: str) -> Iterator[str]:
    """A stream of its own; a gateway may have seen it before. Whatever the test does, the others are as they
    were, and it is served afterwards."""
    made = f"k{next(NUMBERS)}"
    if request.param == "known stream":
        assert [said.status for said in servers.exchange(name, post(made, b"first", close=True))] == [200]
    servers.taken.clear()
    yield made
    assert {taken.key for taken in servers.taken} <= {made}
    assert [said.status for said in servers.exchange(name, post(made, b"last", close=True))] == [200]
    assert servers.taken[-1].body == b"last"


def post(key: str, body: bytes = b"", *headers: str, close: bool = False, length: bool = True) -> bytes:
    """A request for a stream without seq, with more headers."""
    lines = [f"POST /process/{key} HTTP/1.1", "Host: [::1]", "X-Stream: free", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def refused(said: list[Said], *statuses: int) -> None:
    """Refused with one of these and a problem, or nothing said at all; and nothing more was served on the
    connection."""
    assert len(said) <= 1
    assert all(is_problem(answer) for answer in said), said
    assert all(answer.status in (statuses or (400,)) for answer in said), said


def is_problem(answer: Said) -> bool:
    """True for problem details, and for what HAProxy says of what is no HTTP, which can't be set."""
    own = answer.status == 400 and b"Your browser sent an invalid request" in answer.body
    return own or answer.headers["content-type"] == MEDIA_TYPE


# --- framing: where one request ends and the next begins


@pytest.mark.parametrize(
    "lengths",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5, 6"],
        ["Content-Length: +5"],
        ["Content-Length: -5"],
        ["Content-Length: 0x5"],
        ["Content-Length: 5_0"],
        ["Content-Length: 5 0"],
        ["Content-Length: five"],
        ["Content-Length: 99999999999999999999999999"],
    ],
)
def test_lengths_that_conflict_or_are_none(servers: Surface, name: str, key: str, lengths: list[str]) -> None:
    said = servers.exchange(name, post(key, b"12345", *lengths, length=False), VICTIM, close=True)
    refused(said, 400, 413)
    assert not servers.taken


@pytest.mark.parametrize(
    "coding",
    [
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked, chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    ],
)
def test_an_ambiguous_transfer_coding_is_refused(servers: Surface, name: str, key: str, coding: str) -> None:
    body = b"0\r\n\r\n"
    said = servers.exchange(name, post(key, body, coding), VICTIM, close=True)
    refused(said, 400, 411, 422, 501)
    assert not servers.taken


def test_a_request_with_length_and_chunks_is_read_once_at_most(servers: Surface, name: str, key: str) -> None:
    """Refused, or read as chunks with the connection closed after it, as RFC 9112 (6.1) has it."""
    chunked = b"3\r\nabc\r\n0\r\n\r\n"
    head = post(key, b"", "Transfer-Encoding: chunked", "Content-Length: 3", length=False)
    said = servers.exchange(name, head + chunked, VICTIM, close=True)
    assert len(said) <= 1
    assert [taken.body for taken in servers.taken] in ([], [b"abc"])


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"\r\n\r\n",
        b"3 3\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_a_body_with_bad_chunks_is_refused(servers: Surface, name: str, key: str, chunks: bytes) -> None:
    head = post(key, b"", "Transfer-Encoding: chunked", length=False)
    refused(servers.exchange(name, head + chunks, VICTIM, close=True), 400, 413)
    assert not servers.taken


def test_a_body_sent_in_chunks_arrives_as_one(servers: Surface, name: str, key: str) -> None:
    head = post(key, b"", "Transfer-Encoding: chunked", length=False, close=True)
    said = servers.exchange(name, head + b"3\r\nabc\r\n2;note=x\r\nde\r\n0\r\n\r\n")
    assert [answer.status for answer in said] == [200]
    assert [taken.body for taken in servers.taken] == [b"abcde"]


def test_requests_one_after_the_other_without_waiting(servers: Surface, name: str, key: str) -> None:
    requests = [post(key, b"%d" % n, f"X-Request-Id: {key}.{n}", close=n == 9) for n in range(10)]
    said = servers.exchange(name, b"".join(requests))
    assert [(answer.status, answer.body) for answer in said] == [(200, RESULT)] * 10
    assert [answer.headers["x-request-id"] for answer in said] == [f"{key}.{n}" for n in range(10)]
    assert [taken.body for taken in servers.taken] == [b"%d" % n for n in range(10)]


def test_what_follows_a_bad_request_is_not_served(servers: Surface, name: str, key: str) -> None:
    """It may take the good one before it along, which its client then sends again."""
    said = servers.exchange(name, post(key, b"good") + b"\x00\x01 nonsense\r\n\r\n" + VICTIM)
    assert [answer.status for answer in said] in ([200, 400], [400])
    assert is_problem(said[-1])


# --- heads


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /process/victim\r\n\r\n",
        b"POST /process/victim HTTP/9.9\r\nHost: [::1]\r\n\r\n",
        b"\r\n" * 3 + b"\x00" * 100 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(servers: Surface, name: str, sent: bytes) -> None:
    servers.taken.clear()
    refused(servers.exchange(name, sent, close=True), 400, 404, 405, 501, 505)
    assert not servers.taken


@pytest.mark.parametrize(
    "line", ["X-Note: a\x00b", "X-Note: a\nX-Stream: raw", "X Note: a", ": a", "X-Note\r\n a"]
)
def test_odd_header_lines_are_refused(servers: Surface, name: str, key: str, line: str) -> None:
    refused(servers.exchange(name, post(key, b"body", line, close=True)), 400)
    assert not servers.taken


@pytest.mark.parametrize("flood", [["X-Note: " + "n" * 1_000_000], [f"X-Note-{n}: n" for n in range(50_000)]])
def test_too_many_or_too_large_headers_are_refused(
    servers: Surface, name: str, key: str, flood: list[str]
) -> None:
    refused(servers.exchange(name, post(key, b"body", *flood, close=True)), 400, 431)
    assert not servers.taken


def test_an_unknown_expectation_is_refused(servers: Surface, name: str, key: str) -> None:
    refused(servers.exchange(name, post(key, b"body", "Expect: 200-maybe", close=True)), 417)
    assert not servers.taken


# --- ids


@pytest.mark.parametrize(
    "path, statuses",
    [
        ("k" * 10_000, {400, 404, 414}),
        ("%00", {400}),
        ("a%00b", {400}),
        ("%ff%fe", {400}),
        ("a/b", {404}),
        ("", {404}),
        ("../metrics", {404, 405}),
        ("a\x01b", {400}),
    ],
)
def test_stream_ids_that_are_no_key_are_refused(
    servers: Surface, name: str, path: str, statuses: set[int]
) -> None:
    servers.taken.clear()
    said = servers.exchange(name, post(path, b"body", close=True))
    assert {answer.status for answer in said} <= statuses
    assert all(is_problem(answer) for answer in said), said
    assert not servers.taken


@pytest.mark.parametrize("raw", ["a%2Fb", "%2e%2e", "caf%C3%A9", "a%20b", "%F0%9F%90%88"])
def test_ids_that_are_merely_unusual_stay_apart(servers: Surface, name: str, raw: str) -> None:
    servers.taken.clear()
    said = servers.exchange(name, post(raw, b"body", close=True))
    assert [answer.status for answer in said] == [200]
    assert len(servers.taken) == 1
    assert servers.taken[0].key == unquote(raw)


# --- bodies


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_gets_413(servers: Surface, name: str, key: str, chunked: bool) -> None:
    body = b"x" * (LIMIT + 1)
    if chunked:
        head = post(key, b"", "Transfer-Encoding: chunked", length=False)
        sent = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        sent = post(key, body)
    (said,) = servers.exchange(name, sent, most=1)
    assert (said.status, said.headers["content-type"]) == (413, MEDIA_TYPE)
    assert not servers.taken


def test_an_empty_body_gets_400(servers: Surface, name: str, key: str) -> None:
    (said,) = servers.exchange(name, post(key, b"", close=True))
    assert (said.status, said.headers["content-type"]) == (400, MEDIA_TYPE)
    assert not servers.taken


def test_a_body_that_is_cut_off_is_not_handled(servers: Surface, name: str, key: str) -> None:
    servers.exchange(name, post(key, b"x" * 1000)[:-500], close=True)
    assert not servers.taken


@pytest.mark.slow
@pytest.mark.parametrize("name", ["node", "python"])  # HAProxy waits for 30 s
def test_a_body_that_does_not_come(servers: Surface, name: str, key: str) -> None:
    (said,) = servers.exchange(name, post(key, b"x" * 1000, "X-Timeout-Ms: 200")[:-500], most=1)
    assert (said.status, said.headers["content-type"]) == (408, MEDIA_TYPE)
    assert not servers.taken


def test_headers_of_clients_never_become_routes(servers: Surface, name: str, key: str) -> None:
    """What a client says in the headers of answers is no route."""
    lies = ("X-Owner: liar", "X-Owner-Address: http://127.0.0.1:1", "X-Epoch: 999")
    for _ in range(2):
        (said,) = servers.exchange(name, post(key, b"body", *lies, close=True))
        assert (said.status, said.headers["x-owner"]) == (200, MEMBER)


# --- compressed bodies


@pytest.mark.parametrize("coding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_unpacked(
    servers: Surface, name: str, key: str, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    for _ in range(2):
        sent = post(key, pack(b"plain"), f"Content-Encoding: {coding}", close=True)
        (said,) = servers.exchange(name, sent)
        assert (said.status, said.body) == (200, RESULT)
        assert servers.taken[-1].body == b"plain"


WHOLE = gzip.compress(b"x" * 1000)


@pytest.mark.parametrize(
    "coding, body, status",
    [
        ("gzip", b"no gzip at all", 400),
        ("gzip", WHOLE[:-9], 400),
        ("gzip", WHOLE[:-5] + b"?????", 400),
        ("gzip", WHOLE + b"more", 400),
        ("deflate", b"\xff\xff\xff", 400),
        ("br", b"x", 415),
        ("gzip, gzip", gzip.compress(WHOLE), 415),
        ("gzip", gzip.compress(b"x" * (LIMIT + 1)), 413),
        ("gzip", gzip.compress(b"\0" * 100_000_000, 1)[: LIMIT - 1], 413),
    ],
    ids=["none", "cut", "checksum", "more", "deflate", "unknown", "twice", "over the limit", "bomb"],
)
def test_a_compressed_body_that_cannot_be_unpacked_is_refused(
    servers: Surface, name: str, key: str, coding: str, body: bytes, status: int
) -> None:
    (said,) = servers.exchange(name, post(key, body, f"Content-Encoding: {coding}", close=True))
    assert (said.status, said.headers["content-type"]) == (status, MEDIA_TYPE)
    assert not servers.taken


@pytest.mark.slow
def test_of_a_bomb_no_more_is_held_than_the_limit() -> None:
    bomb = gzip.compress(b"\0" * 200_000_000, 1)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="max_message_bytes"):
            decoded(bomb, {"Content-Encoding": "gzip"}, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "line, status",
    [("GET /nowhere", 404), ("DELETE /process/a", 405), ("GET /process/a?stream=free", 426)],
)
def test_what_is_served_nowhere_is_told_as_a_problem(
    servers: Surface, name: str, line: str, status: int
) -> None:
    (said,) = servers.exchange(name, f"{line} HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n".encode())
    assert (said.status, said.headers["content-type"]) == (status, MEDIA_TYPE)
