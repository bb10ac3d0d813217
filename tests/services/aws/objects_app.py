"""An app whose handlers fetch objects, in both forms."""

from holdfast.app.app import App
from holdfast.streams.handler import Context

app = App("objects")


@app.stream("waits", message=bytes)
def waits(message: bytes, context: Context) -> int:
    """Fetches in a call that returns the bytes."""
    return len(context.fetch(message.decode()))


@app.stream("awaits", message=bytes)
async def awaits(message: bytes, context: Context) -> int:
    """Fetches in a coroutine."""
    return len(await context.fetch_async(message.decode()))
