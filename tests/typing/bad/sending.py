"""Messages sent to streams with an argument that there isn't, or a value that can't be."""

from __future__ import annotations

from holdfast import AsyncClient, Client, StreamMessage

with Client("meters") as client:
    client.stream("readings").send({}, kee="m")  # error
    client.stream("readings").send({}, seq="7")  # error
    client.stream("readings").send()  # error
    client.stream(7)  # error
    client.stream("readings").send_many(StreamMessage({}))  # error


async def send_async() -> None:
    async with AsyncClient("meters") as client:
        await client.stream("readings").send({}, delay="1")  # error
        StreamMessage({}, dedupe="7")  # error
