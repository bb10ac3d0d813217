"""Posts over kept-alive connections: every form of answer, and every way in which there is none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from yarl import URL

from holdfast.adapters.aws.posts import Answered, Broken, Posts, Unreached
from holdfast.testing.servers.loopback import HOST, free_port

Part = bytes | None
"""What a service sends next; None closes the connection."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Service:
    """A service on loopback that answers each request, in turn, with the parts it is told; the last ones
    again and again."""

    def __init__(self) -> None:
        self.answers: list[Sequence[Part]] = [[OK]]
        self.requests: list[bytes] = []
        self.connections = 0
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> URL:
        assert self.server is not None
        return URL(f"http://{HOST}:{self.server.sockets[0].getsockname()[1]}/")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for part in self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
                    if part is None:
                        return
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)  # a turn each, so that parts come apart
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    service.server = await asyncio.start_server(service.serve, HOST)
    yield service
    service.server.close()


MakePosts = Callable[..., Posts]


@pytest.fixture
async def make(service: Service) -> AsyncIterator[MakePosts]:
    made: list[Posts] = []

    def make(keep_s: float = 20.0, url: URL | None = None) -> Posts:
        made.append(Posts(url or service.url, None, keep_s=keep_s, connect_s=5.0))
        return made[-1]

    yield make
    for posts in made:
        posts.close()
    await asyncio.sleep(0)


@pytest.fixture
def posts(make: MakePosts) -> Posts:
    return make()


def post(posts: Posts, body: bytes = b"body", timeout_s: float = 10.0) -> Awaitable[Answered]:
    return posts.post({"Host": "there", "X-Amz-Target": "AmazonSQS.Some"}, body, timeout_s)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the loop's own doing
        await asyncio.sleep(0)


async def test_sends_what_it_is_told(posts: Posts, service: Service) -> None:
    answer = await post(posts)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"{}", "2")
    assert service.requests == [
        (
            b"POST / HTTP/1.1\r\nUser-Agent: holdfast\r\nHost: there\r\nX-Amz-Target: AmazonSQS.Some\r\n"
            b"Content-Length: 4\r\n\r\nbody"
        )
    ]


async def test_a_header_is_one_line(posts: Posts) -> None:
    with pytest.raises(ValueError, match="line break"):
        await posts.post({"Host": "there\r\nAuthorization: mine"}, b"", 1.0)


async def test_goes_on_over_the_same_connection(posts: Posts, service: Service) -> None:
    for _ in range(3):
        await post(posts)
    assert service.connections == 1
    await asyncio.gather(post(posts), post(posts))
    assert service.connections == 2


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts, status, body",
    [
        ([b"HTTP/1.1 200 OK\r\nContent-", b"Length: 5\r\n", b"\r\n12", b"345"], 200, b"12345"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], 200, b"{}"),
        ([b"HTTP/1.1 400 Bad Request\r\ncontent-length:  3 \r\n\r\nbad"], 400, b"bad"),
        ([b"HTTP/1.1 204\r\n\r\n"], 204, b""),
        ([CHUNKED + b"3\r\nabc\r\n", b"A;x=y\r\n01234", b"56789\r", b"\n0\r\n\r\n"], 200, b"abc0123456789"),
        ([CHUNKED + b"1\r\na\r\n0\r\n", b"Trailer: x\r\n", b"\r\n"], 200, b"a"),
    ],
    ids=["in parts", "announced", "refused", "empty", "chunks", "trailers"],
)
async def test_reads_answers_of_every_form(
    posts: Posts, service: Service, parts: Sequence[Part], status: int, body: bytes
) -> None:
    service.answers = [parts]
    for _ in range(2):
        answer = await post(posts)
        assert (answer.status, answer.body) == (status, body)
    assert service.connections == 1


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["told", "old"],
)
async def test_uses_no_connection_again_that_the_service_will_end(
    posts: Posts, service: Service, head: bytes
) -> None:
    service.answers = [[head]]
    await post(posts)
    await post(posts)
    assert service.connections == 2


async def test_uses_no_connection_again_that_rested_too_long(make: MakePosts, service: Service) -> None:
    posts = make(keep_s=0.0)
    await post(posts)
    await post(posts)
    assert service.connections == 2


async def test_connects_again_after_the_service_hung_up(posts: Posts, service: Service) -> None:
    service.answers = [[OK, None], [OK]]
    await post(posts)
    await until(lambda: not posts._all)
    await post(posts)
    assert service.connections == 2


@pytest.mark.parametrize(
    "parts",
    [
        [None],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12", None],
        [b"HTTP/1.1 200 OK\r\n\r\n"],
        [b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1\r\n\r\n"],
        [b"x" * 70_000],
    ],
    ids=["none", "half", "endless", "no http", "no size", "no status", "no end"],
)
async def test_an_answer_that_breaks_off_or_makes_no_sense_is_broken(
    posts: Posts, service: Service, parts: Sequence[Part]
) -> None:
    service.answers = [parts, [OK]]
    with pytest.raises(Broken):
        await post(posts)
    assert (await post(posts)).status == 200
    assert service.connections == 2


async def test_no_answer_in_time(posts: Posts, service: Service) -> None:
    service.answers = [[b"HTTP/1.1 200"], [OK]]
    with pytest.raises(TimeoutError, match="no answer in"):
        await post(posts, timeout_s=0.05)
    assert (await post(posts)).status == 200
    assert service.connections == 2


async def test_nobody_there(make: MakePosts) -> None:
    with pytest.raises(Unreached):
        await post(make(url=URL(f"http://{HOST}:{free_port()}/")))


async def test_who_leaves_takes_the_connection_along(posts: Posts, service: Service) -> None:
    service.answers = [[], [OK]]
    asking = asyncio.ensure_future(post(posts))
    await until(lambda: bool(service.requests))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await post(posts)).body == b"{}"
    assert service.connections == 2


async def test_closing_ends_what_is_under_way(posts: Posts, service: Service) -> None:
    service.answers = [[]]
    asking = asyncio.ensure_future(post(posts))
    await until(lambda: bool(service.requests))
    posts.close()
    with pytest.raises(Broken):
        await asking
