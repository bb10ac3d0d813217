"""Files delivered to real servers, whose connections are cut, by workers that are killed or are two."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.common.retry import Backoff
from holdfast.errors import Fenced, HoldfastError
from holdfast.reports import deliver as delivering
from holdfast.reports import deliver_pipe, deliver_plan
from holdfast.reports.assembly import open_sink
from holdfast.reports.conformance.sink import held
from holdfast.reports.deliver import Connect, Delivered, deliver_file
from holdfast.reports.deliver_credentials import Credential
from holdfast.reports.deliver_plan import DeliveryStage, FileToDeliver, Record, marks_every
from holdfast.reports.ports.sink import Sink
from holdfast.reports.sinks.s3.sink import PART_BYTES
from holdfast.system.clock import SystemClock
from simulator.proxies import TcpFaults
from simulator.servers import FtpServer, MotoServer, SftpServer
from simulator.servers.loopback import free_port
from tests.reports.delivering import BODY, CHUNK, PARCEL, chunks

LINUX = sys.platform == "linux"
QUICK = Backoff(first_s=0.0, max_s=0.0)
OTHER_HOST = "127.0.0.2"
"""Where an FTP server is, so that proxies in front of both its ports may have their numbers."""


class Place:
    """A destination: straight, and through proxies whose connections are cut."""

    def __init__(self, url: str, credential: Credential, through: str, proxies: list[TcpFaults]) -> None:
        self.url = url
        self.credential = credential
        self.through = through
        self.proxies = proxies

    def sink(self, url: str = "") -> Sink:
        return open_sink(url or self.url, self.credential, SystemClock())

    def cut_after(self, size: int) -> None:
        """Cut the data connection after ``size`` bytes."""
        for proxy in self.proxies[-1:]:
            proxy.cut_after(size)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Sink]:
        sink = self.sink(self.through)
        try:
            yield sink
        finally:
            await sink.close()


@pytest.fixture(scope="module")
def ftp_server() -> Iterator[FtpServer]:
    server = FtpServer(host=OTHER_HOST, passive_port=free_port())
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def sftp_server() -> Iterator[SftpServer]:
    server = SftpServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@asynccontextmanager
async def ftp(server: FtpServer) -> AsyncIterator[Place]:
    server.clear()
    passive = server.passive_port
    async with (
        TcpFaults(server.port, OTHER_HOST) as control,
        TcpFaults(passive, OTHER_HOST, listen=passive) as data,
    ):
        credential = Credential(user=server.user, password=server.password)
        yield Place(server.url, credential, f"ftp://127.0.0.1:{control.port}", [control, data])


@asynccontextmanager
async def sftp(server: SftpServer) -> AsyncIterator[Place]:
    server.clear()
    async with TcpFaults(server.port) as proxy:
        known = server.known_hosts + server.known_hosts.replace(str(server.port), str(proxy.port))
        credential = Credential(user=server.user, password=server.password, known_hosts=known)
        yield Place(server.url, credential, f"sftp://127.0.0.1:{proxy.port}", [proxy])


@pytest.fixture(params=["ftp", "sftp"])
def server(request: pytest.FixtureRequest) -> FtpServer | SftpServer:
    if request.param == "ftp" and not LINUX:
        pytest.skip("needs a second address on loopback")
    found: FtpServer | SftpServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
async def place(server: FtpServer | SftpServer) -> AsyncIterator[Place]:
    async with ftp(server) if isinstance(server, FtpServer) else sftp(server) as place:
        yield place


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver_plan, "MARK_BYTES", 4 * CHUNK)
    monkeypatch.setattr(deliver_pipe, "PIECE_BYTES", CHUNK)
    monkeypatch.setattr(delivering, "NOTE_S", 0.0)


def stands(server: FtpServer | SftpServer) -> None:
    """The file and its companion are there, whole, and nothing else."""
    there = {path.name: path.read_bytes() for path in server.files.rglob("*.*")}
    assert there == {"daily.csv": BODY, "daily.csv.ok": b""}


@pytest.mark.nightly
@pytest.mark.usefixtures("small_steps")
async def test_a_connection_cut_at_every_tenth_is_made_up_for(
    place: Place, server: FtpServer | SftpServer
) -> None:
    gone_on = 0
    for tenth in range(10):
        place.cut_after(max(1, len(BODY) * tenth // 10))
        done = await deliver_file(PARCEL, chunks, place.connect, SystemClock(), backoff=QUICK)
        assert done.tries > 1
        gone_on += done.gone_on
        stands(server)
        server.clear()
    assert gone_on > 0


@pytest.mark.nightly
async def test_a_connection_to_s3_cut_at_every_tenth_is_made_up_for(
    moto_server: MotoServer, s3: Any, bucket: str
) -> None:
    async with TcpFaults(moto_server.port) as proxy:
        place = s3_place(bucket, proxy)
        for tenth in range(10):
            place.cut_after(max(1, len(BODY) * tenth // 10))
            before = proxy.accepted
            parcel = msgspec.structs.replace(PARCEL, name=f"{tenth}.csv", companions=())
            await deliver_file(parcel, chunks, place.connect, SystemClock(), backoff=QUICK)
            assert proxy.accepted > before + 1
    for tenth in range(10):
        answer = await asyncio.to_thread(s3.get_object, Bucket=bucket, Key=f"a/{tenth}.csv")
        assert answer["Body"].read() == BODY
    assert await asyncio.to_thread(uploads, s3, bucket) == []


@pytest.mark.slow
@pytest.mark.usefixtures("small_steps")
async def test_two_workers_at_once_leave_one_whole_file(place: Place, server: FtpServer | SftpServer) -> None:
    record: Record | None = None
    began = asyncio.Event()

    async def note(kept: Record) -> None:
        nonlocal record
        record = kept
        if len(kept.marks) > 1:
            began.set()

    def work() -> Any:
        return deliver_file(
            PARCEL, chunks, place.connect, SystemClock(), record=record, note=note, backoff=QUICK
        )

    first = asyncio.create_task(work())
    await began.wait()
    outcomes = await asyncio.gather(first, work(), return_exceptions=True)
    assert any(isinstance(outcome, Delivered) for outcome in outcomes), outcomes
    assert all(isinstance(outcome, Delivered | HoldfastError) for outcome in outcomes), outcomes
    assert (server.files / PARCEL.name).read_bytes() == BODY


class Attempts:
    """Attempts at one file, of which only the latest may keep the record, as in the audit."""

    def __init__(self, parcel: FileToDeliver, made: Callable[[], Iterator[bytes]] = chunks) -> None:
        self._parcel = parcel
        self._made = made
        self._latest = 0
        self.record: Record | None = None

    def begin(self, connect: Connect, kept: Callable[[Record], Awaitable[None]] | None = None) -> Any:
        """Begin an attempt; ``kept`` is awaited after each note of it."""
        number = self._latest = self._latest + 1

        async def note(record: Record) -> None:
            if number < self._latest:
                raise Fenced("a later attempt goes on with it", self._latest)
            self.record = record
            if kept is not None:
                await kept(record)

        return deliver_file(
            self._parcel, self._made, connect, SystemClock(), record=self.record, note=note, backoff=QUICK
        )


@pytest.mark.nightly
@pytest.mark.parametrize("ends", ["at its next note", "cancelled", "by a cut connection"])
@pytest.mark.usefixtures("small_steps")
async def test_in_place_an_attempt_that_lapsed_leaves_what_its_successor_delivered(
    place: Place, server: FtpServer | SftpServer, ends: str
) -> None:
    attempts = Attempts(msgspec.structs.replace(PARCEL, in_place=True, companions=()))

    @asynccontextmanager
    async def connect() -> AsyncIterator[Sink]:
        sink = place.sink()
        try:
            yield sink
        finally:
            await sink.close()

    async def kept(record: Record) -> None:
        if len(record.marks) < 2:
            return
        await attempts.begin(connect)
        if ends == "cancelled":
            first.cancel()
        elif ends == "by a cut connection":
            for proxy in place.proxies:
                proxy.cut()

    first = asyncio.create_task(attempts.begin(place.connect, kept))
    with pytest.raises(asyncio.CancelledError if ends == "cancelled" else Fenced):
        await first
    assert (server.files / PARCEL.name).read_bytes() == BODY


@pytest.mark.slow
async def test_cancelled_on_the_way_it_leaves_nothing(place: Place, server: FtpServer | SftpServer) -> None:
    sent = asyncio.Event()

    def progress(size: int) -> None:
        if size > len(BODY):
            sent.set()

    work = deliver_file(PARCEL, endless, place.connect, SystemClock(), progress=progress)
    task = asyncio.create_task(work)
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(server.files.rglob("*.*"))


async def worker(order: dict[str, object], folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and output of a worker in a process of its own."""
    file = folder / "order.json"
    file.write_text(json.dumps(order))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.reports.delivering", file, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output or "{}")


STEPS = 34
SOME_STEPS = {("ftp", 1), ("ftp", 4), ("ftp", 14), ("ftp", 31), ("ftp", STEPS), ("sftp", 14)}


@pytest.mark.parametrize(
    "server, kill_at",
    [
        pytest.param(server, at, marks=() if (server, at) in SOME_STEPS else pytest.mark.nightly)
        for server in ("ftp", "sftp")
        for at in range(1, STEPS + 1)
    ],
    indirect=["server"],
)
async def test_a_worker_killed_at_any_step_is_made_up_for(
    place: Place, tmp_path: Path, kill_at: int, server: FtpServer | SftpServer
) -> None:
    """Steps are notes, begun and done, and pieces that are sent; STEPS of them make a delivery."""
    order = {
        "url": place.url,
        "credential": place.credential.fields(),
        "record": str(tmp_path / "record.json"),
        "kill_at": kill_at,
    }
    code, _ = await worker(order, tmp_path)
    assert code == -9
    file = server.files / PARCEL.name
    placed = file.exists()
    assert not placed or file.read_bytes() == BODY
    code, said = await worker(order | {"kill_at": 0}, tmp_path)
    assert code == 0
    assert said["duplicated"] == placed
    stands(server)
    record = msgspec.json.decode((tmp_path / "record.json").read_bytes(), type=Record)
    assert record.stage is DeliveryStage.DONE


@pytest.mark.slow
async def test_an_attempt_that_lapsed_leaves_the_upload_to_s3_to_its_successor(
    moto_server: MotoServer, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = marks_every(PART_BYTES)  # two parts
    body = b"".join(bytes([n]) * step for n in range(2)) + b"end"
    monkeypatch.setattr(delivering, "NOTE_S", 0.0)
    attempts = Attempts(msgspec.structs.replace(PARCEL, companions=()), lambda: iter([body]))
    found, over = asyncio.Event(), asyncio.Event()
    second: list[asyncio.Task[Delivered]] = []

    async def succeed(record: Record) -> None:
        if record.marks and not found.is_set():
            found.set()
            await over.wait()

    async def lapse(record: Record) -> None:
        if record.marks:
            while len(await asyncio.to_thread(parts, s3, bucket, record.tokens[-1])) < 2:
                pass
            second.append(asyncio.create_task(attempts.begin(bucket_place.connect, succeed)))
            await found.wait()

    async with TcpFaults(moto_server.port) as proxy:
        bucket_place = s3_place(bucket, proxy)
        with pytest.raises(Fenced):
            await attempts.begin(bucket_place.connect, lapse)
        over.set()
        done = await second[0]
        assert (done.tries, done.gone_on) == (1, step)
        sink = bucket_place.sink()
        assert await held(sink, PARCEL.name) == body
        await sink.close()


@pytest.mark.slow
async def test_parts_of_an_upload_to_s3_are_gone_on_with(
    moto_server: MotoServer, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = marks_every(PART_BYTES)  # two parts
    body = b"".join(bytes([n]) * step for n in range(3)) + b"end"

    monkeypatch.setattr(delivering, "NOTE_S", 0.0)
    async with TcpFaults(moto_server.port) as proxy:
        place = s3_place(bucket, proxy)
        outage = iter([True])

        async def note(record: Record) -> None:
            if len(record.marks) == 3 and next(outage, False):
                while not {1, 2} <= await asyncio.to_thread(parts, s3, bucket, record.tokens[-1]):
                    pass
                proxy.refuse()

        @asynccontextmanager
        async def connect() -> AsyncIterator[Sink]:
            await proxy.accept()
            async with place.connect() as sink:
                yield sink

        done = await deliver_file(
            PARCEL, lambda: iter([body]), connect, SystemClock(), note=note, backoff=QUICK
        )
        assert done.tries > 1
        assert done.gone_on >= step
        assert done.gone_on % step == 0
        sink = place.sink()
        assert await held(sink, PARCEL.name) == body
        await sink.close()


# --- servers that take it slowly


@pytest.mark.nightly
async def test_a_slow_server_gets_the_whole_file(place: Place, server: FtpServer | SftpServer) -> None:
    place.proxies[-1].rate = 4 * len(BODY)
    done = await deliver_file(PARCEL, chunks, place.connect, SystemClock())
    assert done.tries == 1
    stands(server)


SLOW = 300_000
"""Bytes a second: the bytes in flight to a slow server take ten seconds or more to arrive."""

WAITED_BYTES = 5 * SLOW
"""At most half of the bytes in flight: more arrive only if the delivery waits for them."""


def endless() -> Iterator[bytes]:
    while True:
        yield bytes(CHUNK)


async def cancelled_at_once(place: Place, sent: int = SLOW // 2) -> None:
    """Deliver without end, and cancel once the server has some of it."""
    slow = place.proxies[-1]
    slow.rate = SLOW
    delivery = asyncio.create_task(deliver_file(PARCEL, endless, place.connect, SystemClock()))
    while slow.bytes_in < sent:
        assert not delivery.done(), delivery.exception()
        await asyncio.sleep(0.02)
    arrived = slow.bytes_in
    delivery.cancel()
    await asyncio.wait([delivery])
    assert delivery.cancelled()
    assert slow.bytes_in - arrived < WAITED_BYTES


@pytest.mark.slow
async def test_cancelled_at_a_slow_server_it_ends_at_once_and_leaves_nothing(
    place: Place, server: FtpServer | SftpServer
) -> None:
    await cancelled_at_once(place)
    assert [path for path in server.files.rglob("*") if path.is_file()] == []


@pytest.mark.slow
async def test_cancelled_at_a_slow_s3_it_ends_at_once_and_leaves_no_parts(
    moto_server: MotoServer, s3: Any, bucket: str
) -> None:
    async with TcpFaults(moto_server.port) as proxy:
        await cancelled_at_once(s3_place(bucket, proxy))
    assert await asyncio.to_thread(uploads, s3, bucket) == []
    assert "Contents" not in await asyncio.to_thread(s3.list_objects_v2, Bucket=bucket)


@pytest.mark.slow
async def test_cancelled_at_a_slow_web_server_it_ends_at_once_and_leaves_nothing() -> None:
    taken: list[int] = []

    async def take(request: web.Request) -> web.Response:
        taken.append(len(await request.read()))
        return web.Response(status=201)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_put("/{name:.+}", take)
    async with TestServer(app, host="127.0.0.1") as server, TcpFaults(server.port or 0) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/in"
        await cancelled_at_once(Place(url, Credential(), url, [proxy]))
    assert taken == []


@pytest.fixture
def s3(moto_server: MotoServer) -> Iterator[Any]:
    region, keys = "eu-west-1", {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("s3", endpoint_url=moto_server.endpoint, region_name=region, **keys)
    with contextlib.closing(client):
        yield client


@pytest.fixture
def bucket(s3: Any) -> str:
    name = f"b-{uuid4().hex}"
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    return name


def parts(s3: Any, bucket: str, upload: str) -> set[int]:
    """The numbers of an upload's parts."""
    listed = s3.list_parts(Bucket=bucket, Key=f"a/{PARCEL.name}", UploadId=upload)
    return {part["PartNumber"] for part in listed.get("Parts", [])}


def s3_place(bucket: str, proxy: TcpFaults) -> Place:
    credential = Credential(
        access_key_id="a",
        secret_access_key="b",
        region="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{proxy.port}",
    )
    return Place(f"s3://{bucket}/a", credential, f"s3://{bucket}/a", [proxy])


def uploads(s3: Any, bucket: str) -> list[str]:
    """The uploads to a bucket that are under way."""
    return [each["UploadId"] for each in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]
