"""What calls of S3 cost with one client.

Arguments: ``holdfast`` or ``aiobotocore``; the bucket; how many calls of each kind; bytes of an object.
Prints a line of JSON: processor time and rate of each kind of call, what the first call took, and the
peak of memory.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

CALLERS = 16
PART_BYTES = 5 << 20
PARTS = 8
PARTS_AT_ONCE = 4

Put = Callable[[str, bytes], Awaitable[object]]
Get = Callable[[str], Awaitable[bytes]]


async def with_holdfast(bucket: str, measure: Callable[[Get, Put, Put], Awaitable[None]]) -> None:
    """With the object store that slots have."""
    from holdfast.services.aws.objects import S3Objects  # noqa: PLC0415
    from holdfast.system.clock import SystemClock  # noqa: PLC0415

    objects = S3Objects(f"s3://{bucket}", SystemClock(), part_bytes=PART_BYTES)
    try:
        await measure(lambda name: objects.get(f"s3://{bucket}/{name}"), objects.put, objects.put)
    finally:
        await objects.close()


async def with_aiobotocore(bucket: str, measure: Callable[[Get, Put, Put], Awaitable[None]]) -> None:
    """The same with aiobotocore, with the settings that are fastest."""
    from aiobotocore.config import AioConfig  # noqa: PLC0415
    from aiobotocore.session import get_session  # noqa: PLC0415

    config = AioConfig(max_pool_connections=CALLERS, retries={"mode": "standard"}, parameter_validation=False)
    async with get_session().create_client("s3", config=config) as opened:
        client: Any = opened

        async def get(name: str) -> bytes:
            answer = await client.get_object(Bucket=bucket, Key=name, ChecksumMode="ENABLED")
            async with answer["Body"] as body:
                data: bytes = await body.read()
                return data

        async def put(name: str, data: bytes) -> None:
            await client.put_object(Bucket=bucket, Key=name, Body=data, ChecksumAlgorithm="CRC32")

        async def put_in_parts(name: str, data: bytes) -> None:
            begun = await client.create_multipart_upload(Bucket=bucket, Key=name)
            upload = {"Bucket": bucket, "Key": name, "UploadId": begun["UploadId"]}
            room = asyncio.Semaphore(PARTS_AT_ONCE)

            async def part(number: int) -> dict[str, object]:
                async with room:
                    body = data[(number - 1) * PART_BYTES : number * PART_BYTES]
                    said = await client.upload_part(**upload, PartNumber=number, Body=body)
                    return {"PartNumber": number, "ETag": said["ETag"]}

            parts = await asyncio.gather(*map(part, range(1, -(-len(data) // PART_BYTES) + 1)))
            await client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

        await measure(get, put, put_in_parts)


CONTENDERS = {"holdfast": with_holdfast, "aiobotocore": with_aiobotocore}


async def spent(call: Callable[[int], Awaitable[object]], calls: int) -> tuple[float, float]:
    """Processor time and time of so many calls, ``CALLERS`` at once, in seconds."""
    remaining = iter(range(calls))

    async def call_some() -> None:
        for number in remaining:
            await call(number)

    begin_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*(call_some() for _ in range(CALLERS)))
    return time.process_time() - cpu_s, time.monotonic() - begin_s


async def told(contender: str, bucket: str, calls: int, size: int) -> dict[str, float]:
    """All figures of one client."""
    figures: dict[str, float] = {}
    data = bytes(range(256)) * (size // 256)
    begin_cpu_s = time.process_time()

    async def measure(get: Get, put: Put, put_in_parts: Put) -> None:
        await put("0.jpg", data)
        figures["first_call_cpu_s"] = time.process_time() - begin_cpu_s
        figures["first_call_mb"] = _peak_mb()
        await spent(lambda number: put(f"{number}.jpg", data), CALLERS * 2)
        await spent(lambda number: get(f"{number % CALLERS}.jpg"), CALLERS * 2)
        cpu_s, took_s = await spent(lambda number: put(f"{number % 100}.jpg", data), calls)
        figures["put_us"], figures["puts_per_s"] = 1e6 * cpu_s / calls, calls / took_s
        cpu_s, took_s = await spent(lambda number: get(f"{number % CALLERS}.jpg"), calls)
        figures["get_us"], figures["gets_per_s"] = 1e6 * cpu_s / calls, calls / took_s
        if await get("1.jpg") != data:
            raise AssertionError("what came is not what was put")
        figures["small_mb"] = _peak_mb()
        large = bytes(PARTS * PART_BYTES)
        cpu_s = time.process_time()
        await put_in_parts("large", large)
        figures["part_ms_per_mib"] = 1e3 * (time.process_time() - cpu_s) / (len(large) >> 20)

    await CONTENDERS[contender](bucket, measure)
    return figures


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure one client."""
    contender, bucket, calls, size = sys.argv[1:]
    print(json.dumps(uvloop.run(told(contender, bucket, int(calls), int(size)))), flush=True)


if __name__ == "__main__":
    main()
