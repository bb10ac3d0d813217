"""Objects on S3: the port's promises, URLs, refusals, limits, and the loop of a slot."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import pytest
from botocore.config import Config
from yarl import URL

from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.services.aws import listing
from holdfast.services.aws.client import AwsClient, ResolvedEndpoint
from holdfast.services.aws.objects import S3Objects
from holdfast.services.aws.s3 import S3, address
from holdfast.services.aws.s3_url import Spot, locate, parse
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import ObjectsConformance

REGION = "us-east-1"
MIB = 1 << 20


@pytest.fixture(params=["moto", "fauxqs"])
def server(request: pytest.FixtureRequest) -> str:
    """The URL of a server that speaks S3."""
    endpoint: str = request.getfixturevalue(f"{request.param}_server").endpoint
    return endpoint


@pytest.fixture
async def s3(server: str, clock: Clock) -> AsyncIterator[S3]:
    """Calls past the adapter."""
    client = AwsClient("s3", clock, region=REGION, endpoint=server)
    yield S3(client)
    await client.close()


@pytest.fixture
async def bucket(server: str) -> str:
    """A new bucket."""
    name = f"b-{uuid4().hex}"
    async with aiohttp.ClientSession() as http, http.put(f"{server}/{name}") as answer:
        assert answer.status == 200
    return name


@pytest.fixture
async def objects(server: str, bucket: str, clock: Clock) -> AsyncIterator[S3Objects]:
    store = S3Objects(f"s3://{bucket}", clock, region=REGION, endpoint=server)
    yield store
    await store.close()


class TestS3Objects(ObjectsConformance):
    """A whole bucket."""

    @pytest.fixture
    def objects(self, objects: S3Objects) -> S3Objects:
        return objects


class TestS3ObjectsBelowPrefix(ObjectsConformance):
    """An odd prefix in a bucket."""

    @pytest.fixture
    async def objects(self, server: str, bucket: str, clock: Clock) -> AsyncIterator[S3Objects]:
        prefix = quote("cams/käse +%")
        store = S3Objects(f"s3://{bucket}/{prefix}/", clock, region=REGION, endpoint=server)
        yield store
        await store.close()


# --- what is where


async def test_objects_are_put_below_the_prefix(server: str, bucket: str, clock: Clock, s3: S3) -> None:
    store = S3Objects(f"s3://{bucket}/frames", clock, region=REGION, endpoint=server)
    assert await store.put("cam 1/0.jpg", b"x") == f"s3://{bucket}/frames/cam%201/0.jpg"
    assert (await s3.call("GetObject", Spot(bucket, "frames/cam 1/0.jpg"), "GET")).body == b"x"
    await store.close()


async def test_a_long_list_is_read_page_by_page(objects: S3Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    put = [await objects.put(f"many/{number % 3}/a b+{number}", b"") for number in range(11)]
    monkeypatch.setattr(listing, "KEYS_MAX", 4)
    assert sorted([url async for url in objects.urls("many")]) == sorted(put)


async def test_a_bucket_that_is_not_there_can_not_be_listed(server: str, clock: Clock) -> None:
    for url, text in (
        ("s3://none-such", "no bucket 'none-such': make it"),
        ("s3://", "archive is 's3://', which names no bucket"),
    ):
        store = S3Objects(url, clock, region=REGION, endpoint=server, setting="archive")
        with pytest.raises(ConfigError, match=text):
            [each async for each in store.urls("a")]
        await store.close()


async def test_objects_of_any_bucket_are_read(objects: S3Objects, s3: S3) -> None:
    other = Spot(f"b-{uuid4().hex}", "a//b c")
    await s3.call("CreateBucket", Spot(other.bucket, ""), "PUT")
    await s3.call("PutObject", other, "PUT", body=b"theirs")
    assert await objects.get(f"s3://{other.bucket}/a//b%20c") == b"theirs"
    assert await objects.get(f"s3://{other.bucket}/a//b c") == b"theirs"


async def test_a_missing_bucket_is_named(objects: S3Objects, server: str, clock: Clock) -> None:
    with pytest.raises(FileNotFoundError, match="no bucket 'none-such'"):
        await objects.get("s3://none-such/a")
    store = S3Objects("s3://none-such", clock, region=REGION, endpoint=server)
    with pytest.raises(ConfigError, match="no bucket 'none-such': make it"):
        await store.put("a", b"x")
    await store.close()


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///a", "s3://a", "s3://B!/a", "s3://b/", "s3://b?x/a", "s3://bb/a?x", "s3://bb/%ff"]
)
def test_urls_of_no_object_are_refused(url: str) -> None:
    with pytest.raises(InvalidMessage):
        locate(url)


@pytest.mark.parametrize("url", ["s3:", "s3:///frames", "s3://b/../a", "s3://bb/a?x=1", "s3://b_/"])
def test_urls_of_no_bucket_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="objects_url is"):
        parse(url)


async def test_a_key_that_gets_too_long_is_refused(objects: S3Objects) -> None:
    await objects.put("ä" * 512, b"x")
    with pytest.raises(InvalidMessage, match="1024 bytes"):
        await objects.put("ä" * 513, b"x")


async def test_without_a_bucket_there_is_only_reading(objects: S3Objects, server: str, clock: Clock) -> None:
    url = await objects.put("a", b"x")
    store = S3Objects("s3://", clock, region=REGION, endpoint=server)
    assert await store.get(url) == b"x"
    with pytest.raises(ConfigError, match="names no bucket"):
        await store.put("a", b"x")
    await store.close()


# --- large objects


async def test_an_object_over_the_limit_is_refused(server: str, bucket: str, clock: Clock) -> None:
    store = S3Objects(f"s3://{bucket}", clock, region=REGION, endpoint=server, max_bytes=1000)
    assert await store.get(await store.put("fits", bytes(1000))) == bytes(1000)
    url = await store.put("large", bytes(1001))
    with pytest.raises(TooLarge, match="1001 bytes or more, over the limit of 1000"):
        await store.get(url)
    await store.close()


@pytest.mark.slow
async def test_a_large_object_is_put_in_parts(server: str, bucket: str, clock: Clock) -> None:
    meter = Meter()
    store = S3Objects(f"s3://{bucket}", clock, meter, region=REGION, endpoint=server, part_bytes=5 * MIB)
    data = bytes(range(256)) * (12 * MIB // 256) + b"end"
    assert await store.get(await store.put("a/large one", data)) == data
    assert meter.calls == {
        ("s3", "CreateMultipartUpload"): 1,
        ("s3", "UploadPart"): 3,
        ("s3", "CompleteMultipartUpload"): 1,
        ("s3", "GetObject"): 1,
    }
    await store.close()


def test_parts_that_s3_would_not_take_are_refused(clock: Clock) -> None:
    with pytest.raises(ConfigError, match="part_bytes is 1024"):
        S3Objects("s3://bucket", clock, part_bytes=1024)


# --- where calls go


def place(endpoint: str, region: str = "eu-west-1", style: str | None = None) -> ResolvedEndpoint:
    config = Config(s3={"addressing_style": style}) if style else Config()
    return ResolvedEndpoint(URL(endpoint), region, config, 3, None, None)


@pytest.mark.parametrize(
    "endpoint,bucket,style,expected",
    [
        ("https://s3.eu-west-1.amazonaws.com", "frames", None, "https://frames.s3.eu-west-1.amazonaws.com/k"),
        ("https://s3.eu-west-1.amazonaws.com", "a.b", None, "https://s3.eu-west-1.amazonaws.com/a.b/k"),
        (
            "https://s3.eu-west-1.amazonaws.com",
            "Old_one",
            None,
            "https://s3.eu-west-1.amazonaws.com/Old_one/k",
        ),
        (
            "https://s3.eu-west-1.amazonaws.com",
            "frames",
            "path",
            "https://s3.eu-west-1.amazonaws.com/frames/k",
        ),
        ("https://minio.example:9000", "frames", None, "https://minio.example:9000/frames/k"),
        ("https://minio.example/s3/", "frames", None, "https://minio.example/s3/frames/k"),
        ("https://objects.example", "frames", "virtual", "https://frames.objects.example/k"),
        ("http://127.0.0.1:5000", "frames", "virtual", "http://127.0.0.1:5000/frames/k"),
        ("http://localhost:5000", "frames", "virtual", "http://localhost:5000/frames/k"),
        ("http://[::1]:5000", "frames", None, "http://[::1]:5000/frames/k"),
        ("https://amazonaws.com.example", "frames", None, "https://amazonaws.com.example/frames/k"),
    ],
)
def test_the_bucket_is_in_the_host_or_in_the_path(
    endpoint: str, bucket: str, style: str | None, expected: str
) -> None:
    here = place(endpoint, style=style)
    assert str(address(here, Spot(bucket, "k"), "", here.region)) == expected


def test_keys_are_encoded_as_s3_signs_them() -> None:
    at = address(
        place("http://127.0.0.1:5000"), Spot("bucket", "a b+c/~d//ä%2F?=#'(*)!"), "uploads=", "eu-west-1"
    )
    assert at.raw_path == "/bucket/a%20b%2Bc/~d//%C3%A4%252F%3F%3D%23%27%28%2A%29%21"
    assert at.raw_query_string == "uploads="


# --- in a slot


def test_opening_imports_nothing_of_aws() -> None:
    script = """
import sys
from holdfast.services.aws.objects import S3Objects
from holdfast.system.clock import SystemClock
S3Objects("s3://bucket/frames", SystemClock())
sys.exit(any(name.partition(".")[0] in ("botocore", "aiohttp", "yarl") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_objects_are_read_where_the_loop_runs_only_during_calls(
    server: str, bucket: str, objects: S3Objects
) -> None:
    urls = [await objects.put(f"f{i}", b"%d" % i) for i in range(3)]

    def in_slot() -> list[bytes]:
        loop = asyncio.new_event_loop()
        store = S3Objects(f"s3://{bucket}", SystemClock(), region=REGION, endpoint=server)
        try:
            return [loop.run_until_complete(store.get(url)) for url in urls]
        finally:
            loop.run_until_complete(store.close())
            loop.close()

    assert await asyncio.to_thread(in_slot) == [b"0", b"1", b"2"]
