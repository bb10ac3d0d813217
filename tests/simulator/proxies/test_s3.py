"""Faults in front of S3, and the names of its calls."""

from __future__ import annotations

import aiohttp
import pytest

from simulator.proxies import CallFault, Rule, S3Faults
from simulator.proxies.s3 import named


@pytest.mark.parametrize(
    "method,path,expected",
    [
        ("GET", "/b/k", "GetObject"),
        ("HEAD", "/b/a/k", "HeadObject"),
        ("PUT", "/b/a/k?x-id=PutObject", "PutObject"),
        ("DELETE", "/b/k", "DeleteObject"),
        ("POST", "/b/k?uploads=", "CreateMultipartUpload"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("POST", "/b/k?uploadId=u", "CompleteMultipartUpload"),
        ("DELETE", "/b/k?uploadId=u", "AbortMultipartUpload"),
        ("PUT", "/b", "CreateBucket"),
        ("GET", "/b?list-type=2", "ListObjectsV2"),
        ("HEAD", "/b/", "HeadBucket"),
        ("PATCH", "/b", "PATCH"),
    ],
)
def test_calls_are_named_as_s3_names_them(method: str, path: str, expected: str) -> None:
    assert named(method, path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fauxqs"], indirect=True)  # moto asks for signatures
async def test_faults_befall_objects_and_all_else_passes(http: aiohttp.ClientSession, backend: str) -> None:
    async with S3Faults(backend) as faults:
        bucket = f"{faults.endpoint}/faulty"
        body = bytes(range(256)) * 1000
        async with http.put(bucket) as made, http.put(f"{bucket}/a%20b", data=body) as put:
            assert (made.status, put.status) == (200, 200)
        faults.plan.add(Rule(fault=CallFault.THROTTLE, operation="GetObject", times=1, status=503))
        async with http.get(f"{bucket}/a%20b") as refused:
            assert (refused.status, "<Code>SlowDown</Code>" in await refused.text()) == (503, True)
        async with http.get(f"{bucket}/a%20b", headers={"Range": "bytes=1-2"}) as part:
            assert (part.status, await part.read()) == (206, b"\1\2")
        async with http.head(f"{bucket}/a%20b") as head:
            assert int(head.headers["Content-Length"]) == len(body)
        faults.plan.add(Rule(fault=CallFault.CUT, times=1))
        with pytest.raises(aiohttp.ClientPayloadError):
            async with http.get(f"{bucket}/a%20b") as cut:
                await cut.read()
    assert faults.calls == {"CreateBucket": 1, "PutObject": 1, "GetObject": 3, "HeadObject": 1}
    assert faults.bytes_in["PutObject"] == len(body)
