"""Objects on S3 while calls break, are refused, come late or have their effect unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from holdfast.errors import ConfigError, InvalidMessage, OutcomeUnknown, TooLarge, Unavailable
from holdfast.ports.meter import Meter
from holdfast.services.aws.objects import S3Objects
from simulator.proxies import CallFault, Rule, S3Faults
from tests.services.aws.conftest import QuickClock

REGION = "us-east-1"
MIB = 1 << 20
BODY = bytes(range(256)) * 4000

Serve = Callable[[web.Request], web.StreamResponse]


class BusyClock(QuickClock):
    """Sleeps are over at once, but in the first of them something may happen."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def sleep(self, seconds: float) -> None:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            await happens()
        await super().sleep(seconds)


@pytest.fixture(params=["fauxqs"])
def server(request: pytest.FixtureRequest) -> str:
    """The URL of a server that speaks S3."""
    endpoint: str = request.getfixturevalue(f"{request.param}_server").endpoint
    return endpoint


@pytest.fixture
async def faults(server: str) -> AsyncIterator[S3Faults]:
    async with S3Faults(server, seed=1) as proxy:
        yield proxy


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def clock() -> BusyClock:
    return BusyClock()


@pytest.fixture
async def bucket(server: str) -> str:
    """A new bucket."""
    name = f"b-{uuid4().hex}"
    async with aiohttp.ClientSession() as http, http.put(f"{server}/{name}") as answer:
        assert answer.status == 200
    return name


@pytest.fixture
async def objects(faults: S3Faults, bucket: str, clock: BusyClock, meter: Meter) -> AsyncIterator[S3Objects]:
    store = S3Objects(
        f"s3://{bucket}", clock, meter, region=REGION, endpoint=faults.endpoint, part_bytes=5 * MIB
    )
    yield store
    await store.close()


# --- reading


async def test_a_broken_transfer_goes_on_where_it_broke(
    objects: S3Objects, faults: S3Faults, meter: Meter
) -> None:
    url = await objects.put("a", BODY)
    faults.plan.add(Rule(fault=CallFault.CUT, times=5))
    assert await objects.get(url) == BODY
    assert meter.calls["s3", "GetObject"] == 6
    sent = [len(BODY)]
    for _ in range(5):
        sent.append(sent[-1] - sent[-1] // 2)
    assert faults.bytes_out["GetObject"] == sum(sent)


async def test_a_transfer_that_brings_nothing_ends(
    objects: S3Objects, faults: S3Faults, meter: Meter
) -> None:
    url = await objects.put("a", BODY)
    faults.plan.add(Rule(fault=CallFault.LOSE_REPLY))
    with pytest.raises(Unavailable, match="GetObject"):
        await objects.get(url)
    assert meter.calls["s3", "GetObject"] == 3


async def test_an_object_that_changes_on_its_way_is_read_again(
    objects: S3Objects, faults: S3Faults, clock: BusyClock
) -> None:
    url = await objects.put("a", BODY)
    other = BODY[::-1] + b"longer"

    async def change() -> None:
        await objects.put("a", other)

    faults.plan.add(Rule(fault=CallFault.CUT, times=1))
    clock.meanwhile = change
    assert await objects.get(url) == other
    assert faults.calls["GetObject"] == 3


@pytest.mark.parametrize(
    "fault",
    [
        CallFault.RESET,
        CallFault.LOSE_REPLY,
        CallFault.THROTTLE,
        CallFault.ERROR,
        CallFault.ERROR_DONE,
        CallFault.CUT,
    ],
)
async def test_two_failures_in_a_row_are_retried(
    objects: S3Objects, faults: S3Faults, fault: CallFault
) -> None:
    faults.plan.add(Rule(fault=fault, times=2, status=503))
    url = await objects.put("a", BODY)
    faults.plan.add(Rule(fault=fault, times=2, status=503))
    assert await objects.get(url) == BODY


async def test_slow_down_is_heeded_with_jitter(
    objects: S3Objects, faults: S3Faults, clock: BusyClock
) -> None:
    url = await objects.put("a", BODY)
    faults.plan.add(Rule(fault=CallFault.THROTTLE, status=503))
    with pytest.raises(Unavailable, match="SlowDown"):
        await objects.get(url)
    assert len(clock.slept) == 2
    assert all(0 <= slept_s <= 4 for slept_s in clock.slept)


async def test_objects_are_unavailable_during_an_outage_of_s3(objects: S3Objects, faults: S3Faults) -> None:
    url = await objects.put("a", BODY)
    faults.refuse()
    with pytest.raises(Unavailable):
        await objects.get(url)
    with pytest.raises(Unavailable):
        await objects.put("a", b"x")
    await faults.accept()
    assert await objects.get(url) == BODY


# --- writing


async def test_a_put_of_unknown_outcome_says_so(objects: S3Objects, faults: S3Faults) -> None:
    faults.plan.add(Rule(fault=CallFault.LOSE_REPLY, operation="PutObject"))
    with pytest.raises(OutcomeUnknown):
        await objects.put("a", BODY)
    faults.plan.rules = []
    assert await objects.get(await objects.put("a", BODY)) == BODY


LARGE = BODY * 12


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
@pytest.mark.parametrize("fault", [CallFault.RESET, CallFault.ERROR, CallFault.LOSE_REPLY])
async def test_an_upload_whose_parts_fail_is_tried_again(
    objects: S3Objects, faults: S3Faults, operation: str, fault: CallFault
) -> None:
    faults.plan.add(Rule(fault=fault, operation=operation, times=2))
    assert await objects.get(await objects.put("large", LARGE)) == LARGE


async def test_an_upload_whose_parts_keep_failing_leaves_nothing(
    objects: S3Objects, faults: S3Faults, bucket: str
) -> None:
    faults.plan.add(Rule(fault=CallFault.ERROR, operation="UploadPart"))
    with pytest.raises(OutcomeUnknown):
        await objects.put("large", LARGE)
    assert faults.calls["AbortMultipartUpload"] == 1
    with pytest.raises(FileNotFoundError):
        await objects.get(f"s3://{bucket}/large")


async def test_a_cancelled_put_leaves_nothing(objects: S3Objects, faults: S3Faults, bucket: str) -> None:
    faults.plan.add(Rule(fault=CallFault.SLOW, operation="UploadPart", delay_s=60))
    putting = asyncio.create_task(objects.put("large", LARGE))
    await asyncio.wait_for(faults.called("UploadPart"), 30)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert faults.calls["AbortMultipartUpload"] == 1
    with pytest.raises(FileNotFoundError):
        await objects.get(f"s3://{bucket}/large")


# --- what S3 says that neither server does


class Stub:
    """A server that answers with what a test says, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.answers: list[Serve] = []
        self.endpoint = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request)


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    made = Stub()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", made.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def from_stub(stub: Stub, clock: BusyClock) -> AsyncIterator[S3Objects]:
    store = S3Objects(
        "s3://bucket", clock, region=REGION, endpoint=stub.endpoint, part_bytes=5 * MIB, max_bytes=2_000_000
    )
    yield store
    await store.close()


def refuse(status: int, code: str, headers: dict[str, str] | None = None) -> Serve:
    return give(f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode(), headers, status)


def give(body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> Serve:
    return lambda request: web.Response(status=status, body=body, headers=headers)


async def test_a_missing_permission_is_named(from_stub: S3Objects, stub: Stub) -> None:
    stub.answers = [refuse(403, "AccessDenied")]
    with pytest.raises(ConfigError, match=r"grant the IAM action s3:GetObject .*s3:ListBucket"):
        await from_stub.get("s3://bucket/a")
    with pytest.raises(ConfigError, match="grant the IAM action s3:PutObject"):
        await from_stub.put("a", b"x")
    with pytest.raises(ConfigError, match="grant the IAM action s3:PutObject"):
        await from_stub.put("a", LARGE)


async def test_a_name_that_the_service_does_not_take_is_an_invalid_message(
    from_stub: S3Objects, stub: Stub
) -> None:
    stub.answers = [refuse(400, "InvalidBucketName")]
    with pytest.raises(InvalidMessage, match="InvalidBucketName"):
        await from_stub.get("s3://-_/a".replace("-_", "Odd_Bucket"))


async def test_a_bucket_elsewhere_is_called_where_it_is(from_stub: S3Objects, stub: Stub) -> None:
    stub.answers = [refuse(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-3"}), give(b"far")]
    assert await from_stub.get("s3://far/a") == b"far"
    assert await from_stub.get("s3://far/a") == b"far"
    regions = [request.headers["Authorization"].split("/")[2] for request in stub.asked]
    assert regions == [REGION, "eu-west-3", "eu-west-3"]


async def test_what_arrives_damaged_is_read_again(from_stub: S3Objects, stub: Stub) -> None:
    right = {"x-amz-checksum-crc32": "NhCmhg=="}  # of b"hello"
    stub.answers = [give(b"hellO", right), give(b"hello", right)]
    assert await from_stub.get("s3://bucket/a") == b"hello"
    stub.answers = [give(b"hellO", right)]
    with pytest.raises(Unavailable, match="doesn't match its x-amz-checksum-crc32"):
        await from_stub.get("s3://bucket/a")


async def test_a_server_that_knows_no_ranges_sends_all_again(from_stub: S3Objects, stub: Stub) -> None:
    stub.answers = [_half(BODY), give(BODY, {"ETag": '"1"'})]
    assert await from_stub.get("s3://bucket/a") == BODY
    assert stub.asked[1].headers["Range"] == f"bytes={len(BODY) // 2}-"
    assert stub.asked[1].headers["If-Match"] == '"1"'


async def test_a_range_of_another_object_is_not_taken(from_stub: S3Objects, stub: Stub) -> None:
    half = len(BODY) // 2
    place = f"bytes {half}-{len(BODY) - 1}/{len(BODY)}"
    other = give(BODY[half:], {"ETag": '"2"', "Content-Range": place}, status=206)
    stub.answers = [_half(BODY), other, give(BODY)]
    assert await from_stub.get("s3://bucket/a") == BODY
    assert "Range" not in stub.asked[2].headers


async def test_an_object_of_unknown_length_is_read_up_to_the_limit(from_stub: S3Objects, stub: Stub) -> None:
    def unbounded(size: int) -> Serve:
        def serve(request: web.Request) -> web.StreamResponse:
            response = web.Response(body=bytes(size))
            response.enable_chunked_encoding()
            return response

        return serve

    stub.answers = [unbounded(2_000_000)]
    assert len(await from_stub.get("s3://bucket/a")) == 2_000_000
    stub.answers = [unbounded(2_000_001)]
    with pytest.raises(TooLarge, match="over the limit of 2000000"):
        await from_stub.get("s3://bucket/a")


async def test_parts_that_are_not_completed_after_all_are_told(from_stub: S3Objects, stub: Stub) -> None:
    begun = give(
        b"<InitiateMultipartUploadResult><UploadId>u&amp;1</UploadId></InitiateMultipartUploadResult>"
    )
    part = give(b"", {"ETag": '"00"'})
    late = give(b"<?xml version='1.0'?>\n  <Error><Code>InternalError</Code></Error>")
    stub.answers = [begun, *[part] * 3, late, give(b"", status=204)]
    with pytest.raises(OutcomeUnknown, match="put it again"):
        await from_stub.put("a", LARGE)
    assert stub.asked[-1].method == "DELETE"
    assert stub.asked[-1].query["uploadId"] == "u&1"


def _half(body: bytes) -> Serve:
    """Half of a body, and then the connection ends."""

    def serve(request: web.Request) -> web.StreamResponse:
        response = _Half(headers={"ETag": '"1"'})
        response.content_length = len(body)
        response.half = body[: len(body) // 2]
        return response

    return serve


class _Half(web.StreamResponse):
    half = b""

    async def prepare(self, request: web.BaseRequest) -> web.AbstractStreamWriter | None:  # type: ignore[name-defined]
        writer = await super().prepare(request)
        await self.write(self.half)
        assert request.transport is not None
        request.transport.close()
        return writer
