"""Handlers in a slot fetch objects from S3, and their calls are counted by the node's meter."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from holdfast.ports.meter import Meter
from holdfast.ports.slots import MessageWork
from holdfast.services.aws.objects import S3Objects
from holdfast.slots.stream_slots import StreamSlotSettings, stream_slots
from holdfast.system.clock import SystemClock

BODY = bytes(range(256)) * 400


@pytest.fixture
def bucket_url(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a slot finds objects; it goes by the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    return f"s3://b-{uuid4().hex}"


@pytest.fixture
async def objects(bucket_url: str, server: str) -> AsyncIterator[S3Objects]:
    async with aiohttp.ClientSession() as http, http.put(bucket_url.replace("s3:/", server)) as made:
        assert made.status == 200
    store = S3Objects(bucket_url, SystemClock())
    yield store
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["waits", "awaits"])
async def test_a_handler_in_a_slot_fetches_objects_from_s3(
    bucket_url: str, objects: S3Objects, stream: str
) -> None:
    urls = [await objects.put(f"{number}.jpg", BODY[number:]) for number in range(3)]
    meter = Meter()
    settings = StreamSlotSettings(
        app="objects_app:app", objects="holdfast.services.aws.service:s3", objects_url=bucket_url
    )
    slots = stream_slots(settings, SystemClock(), meter)
    slot = await slots.spawn()
    await slot.open(stream, "k", None, 0)
    for number, url in enumerate(urls):
        ran = await slot.run(stream, "k", [MessageWork(0, number, url.encode())], 1, 10.0)
        assert (ran.error, ran.results) == ("", [b"%d" % (len(BODY) - number)])
    ran = await slot.run(stream, "k", [MessageWork(0, 3, f"{bucket_url}/none".encode())], 1, 10.0)
    assert "FileNotFoundError" in ran.error
    assert not ran.permanent
    await slots.close()
    assert meter.calls["s3", "GetObject"] == 4
