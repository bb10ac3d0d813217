"""Destinations in buckets."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

import boto3
import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.reports.conformance import SinkConformance
from holdfast.reports.conformance.sink import held, part, put
from holdfast.reports.deliver import deliver_file
from holdfast.reports.deliver_plan import FileToDeliver
from holdfast.reports.ports.sink import Sink, Upload
from holdfast.reports.sinks.s3.sink import MIB, PART_BYTES_MIN, S3Sink, S3SinkUrl
from holdfast.reports.sinks.s3.upload import AT_ONCE, S3Upload
from holdfast.services.aws.client import AwsRefused, AwsResponse
from holdfast.services.aws.s3_url import Spot
from holdfast.system.clock import SystemClock
from simulator.proxies import CallFault, Rule, S3Faults
from simulator.servers import MotoServer
from tests.services.aws.conftest import REGION, QuickClock, account  # noqa: F401 (which all tests here use)


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.slow), "fauxqs"])
def endpoint(request: pytest.FixtureRequest) -> str:
    made: str = request.getfixturevalue(f"{request.param}_server").endpoint
    return made


@pytest.fixture
def bucket(endpoint: str) -> str:
    return made_bucket(endpoint)


@cache
def client(endpoint: str) -> Any:
    """A client of another maker. To make one takes longer than most tests; closed, it can be used again."""
    return boto3.client("s3", endpoint_url=endpoint, region_name=REGION)


def made_bucket(endpoint: str) -> str:
    """A new bucket's name."""
    name = f"reports-{uuid4().hex}"
    s3 = client(endpoint)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.close()
    return name


def connect(endpoint: str, bucket: str, options: str = "", s3: Any = None) -> S3Sink:
    url = S3SinkUrl.parse(f"s3://{bucket}/customer/a?region={REGION}{options}")
    return S3Sink(url, SystemClock(), endpoint=endpoint, part_bytes=PART_BYTES_MIN, s3=s3)


@pytest.fixture
async def sink(endpoint: str, bucket: str) -> AsyncIterator[S3Sink]:
    sink = connect(endpoint, bucket)
    yield sink
    await sink.close()


class TestS3Sink(SinkConformance):
    grain = 5 * MIB

    @pytest.fixture
    def sink(self, sink: S3Sink) -> S3Sink:
        return sink

    @pytest.fixture
    async def other_sink(self, endpoint: str, bucket: str) -> AsyncIterator[S3Sink]:
        sink = connect(endpoint, bucket)
        yield sink
        await sink.close()

    async def arrived(self, upload: Upload) -> None:
        assert isinstance(upload, S3Upload)
        await asyncio.gather(*upload.parts)

    @pytest.fixture
    def lists_parts(self, request: pytest.FixtureRequest) -> None:
        if request.node.callspec.params["endpoint"] == "fauxqs":
            request.applymarker(pytest.mark.xfail(strict=True, reason="fauxqs lists no parts"))

    @pytest.mark.usefixtures("lists_parts")
    async def test_an_upload_that_was_left_is_resumed(self, sink: Sink, other_sink: Sink) -> None:
        await super().test_an_upload_that_was_left_is_resumed(sink, other_sink)

    @pytest.mark.slow
    @pytest.mark.usefixtures("lists_parts")
    async def test_a_resumed_upload_is_not_committed_by_its_former_owner(
        self, sink: Sink, other_sink: Sink
    ) -> None:
        await super().test_a_resumed_upload_is_not_committed_by_its_former_owner(sink, other_sink)


def uploads(endpoint: str, bucket: str) -> int:
    """Uploads that are neither complete nor aborted."""
    s3 = client(endpoint)
    try:
        return len(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
    finally:
        s3.close()


async def test_a_file_is_kept_as_the_url_says(moto_server: MotoServer) -> None:
    bucket = made_bucket(moto_server.endpoint)
    sink = connect(moto_server.endpoint, bucket, "&encryption=aws:kms&kms_key=alias/reports")
    for size in (10, PART_BYTES_MIN + 1):
        await put(sink, "a.csv", bytes(size), attempt=str(size))
        kept = head(moto_server.endpoint, bucket, "customer/a/a.csv")
        assert kept["ServerSideEncryption"] == "aws:kms"
        assert kept["SSEKMSKeyId"] == "alias/reports"
    await sink.close()


async def test_an_upload_that_fails_is_aborted(moto_server: MotoServer) -> None:
    bucket = made_bucket(moto_server.endpoint)
    async with S3Faults(moto_server.endpoint, seed=1) as faults:
        sink = connect(faults.endpoint, bucket)
        faults.plan.add(Rule(fault=CallFault.ERROR, operation="UploadPart", status=500))
        upload = await sink.open("a.csv", "")
        with pytest.raises(Unavailable):
            await write_until_it_fails(upload)
        await upload.abort()
        assert await sink.stat("a.csv") is None
        assert uploads(moto_server.endpoint, bucket) == 0
        await sink.close()


class SlowS3:
    """Takes parts while ``open`` is set. ``asks``: it refuses what comes without an MD5."""

    def __init__(self, *, asks: bool = False) -> None:
        self.open = asyncio.Event()
        self.waiting = asyncio.Semaphore(0)
        self.parts: dict[str, bytes] = {}
        self.buffers: set[int] = set()
        self._asks = asks

    async def call(self, operation: str, spot: Spot, method: str, query: str, **sent: Any) -> AwsResponse:
        body = sent["body"]
        if self._asks and body and "Content-MD5" not in sent["headers"]:
            answer = AwsResponse(400, {}, b"")
            raise AwsRefused(
                "Content-MD5 OR x-amz-checksum- HTTP header is required", "InvalidRequest", answer
            )
        if operation == "UploadPart":
            self.buffers.add(id(body.obj))
            self.waiting.release()
            await self.open.wait()
            assert sent["body_sha256"] == hashlib.sha256(body).hexdigest()
            self.parts[query] = bytes(body)
        size = sum(len(part) for part in self.parts.values())
        return AwsResponse(200, {"ETag": "-", "Content-Length": str(size)}, b"<UploadId>u</UploadId>")


@pytest.mark.slow
async def test_so_many_parts_are_in_memory_and_no_more() -> None:
    slow = SlowS3()
    sink = connect("http://127.0.0.1:1", "slow", s3=slow)
    upload = await sink.open("a.csv", "")
    body = part(1, 10 * PART_BYTES_MIN) + b"rest"
    writing = asyncio.create_task(upload.write(body))
    for _ in range(AT_ONCE):
        await slow.waiting.acquire()
    assert not writing.done()
    slow.open.set()
    await writing
    await upload.commit(hashlib.sha256(body).hexdigest())
    assert len(slow.buffers) <= AT_ONCE + 1
    numbered = sorted(slow.parts, key=lambda query: int(dict(parse_qsl(query))["partNumber"]))
    assert b"".join(slow.parts[query] for query in numbered) == body


async def test_a_bucket_that_asks_for_md5_gets_it() -> None:
    slow = SlowS3(asks=True)
    slow.open.set()
    sink = connect("http://127.0.0.1:1", "locked", s3=slow)
    upload = await sink.open("a.csv", "")
    await upload.write(part(1, 2 * PART_BYTES_MIN))
    await upload.commit(hashlib.sha256(part(1, 2 * PART_BYTES_MIN)).hexdigest())
    assert len(slow.parts) == 2


@pytest.mark.slow
async def test_a_lost_answer_to_the_last_call_is_found_out(moto_server: MotoServer) -> None:
    bucket = made_bucket(moto_server.endpoint)
    async with S3Faults(moto_server.endpoint, seed=1) as faults:
        sink = connect(faults.endpoint, bucket)
        faults.plan.add(Rule(fault=CallFault.LOSE_REPLY, operation="CompleteMultipartUpload", times=1))
        await put(sink, "a.csv", part(1, 2 * PART_BYTES_MIN))
        assert await held(sink, "a.csv") == part(1, 2 * PART_BYTES_MIN)
        assert faults.calls["CompleteMultipartUpload"] == 2
        await sink.close()


@pytest.mark.parametrize(
    "url", ["s3://", "s3://b?x=1", "ftp://b", "s3://b/../a", "s3://b?encryption", "s3://b?acl=a%0d%0ab"]
)
def test_a_destination_that_is_no_url_of_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="destination must be the URL of a bucket"):
        S3SinkUrl.parse(url)


@pytest.mark.parametrize("size", [320, 2 * PART_BYTES_MIN], ids=["put at once", "in parts"])
async def test_a_passing_failure_is_made_up_for_by_one_who_may_only_put(
    moto_server: MotoServer, size: int
) -> None:
    bucket = made_bucket(moto_server.endpoint)
    body = part(1, size)
    async with S3Faults(moto_server.endpoint, seed=1) as faults:
        denied = [
            Rule(fault=CallFault.THROTTLE, operation=operation, status=403, code="AccessDenied")
            for operation in ("HeadObject", "GetObject", "GET", "AbortMultipartUpload")
        ]
        outage = [
            Rule(fault=CallFault.ERROR, operation=operation)
            for operation in ("PutObject", "CompleteMultipartUpload")
        ]
        tries = 0

        @asynccontextmanager
        async def connect() -> AsyncIterator[Sink]:
            nonlocal tries
            tries += 1
            faults.plan.rules = denied if tries > 1 else denied + outage
            where = S3SinkUrl.parse(f"s3://{bucket}/a?region={REGION}")
            sink = S3Sink(where, QuickClock(), endpoint=faults.endpoint, part_bytes=PART_BYTES_MIN)
            try:
                yield sink
            finally:
                await sink.close()

        parcel = FileToDeliver(name="a.csv", content="v1")
        done = await deliver_file(parcel, lambda: iter([body]), connect, QuickClock())
        assert (done.tries, done.duplicated) == (2, False)
    assert head(moto_server.endpoint, bucket, "a/a.csv")["ContentLength"] == size


async def write_until_it_fails(upload: Upload) -> None:
    while True:
        await upload.write(bytes(PART_BYTES_MIN))


def head(endpoint: str, bucket: str, key: str) -> Any:
    s3 = client(endpoint)
    try:
        return s3.head_object(Bucket=bucket, Key=key)
    finally:
        s3.close()
