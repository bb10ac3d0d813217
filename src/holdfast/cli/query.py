"""``holdfast query``."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.codec import decode_plain
from holdfast.errors import InvalidMessage
from holdfast.streams import asking


async def query(
    key: Annotated[str, Parameter(help="The stream and its key: STREAM/KEY.")],
    request: str | None = None,
    /,
    *,
    timeout_s: float = asking.TIMEOUT_S,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Query a stream: its handler's `query()` answers from the last commit. Nothing changes.

    ```
    holdfast query sites/gate
    holdfast query sites/gate '{"since": "2026-01-01"}'
    ```

    Args:
        request: The query, as JSON; null by default.
        timeout_s: Seconds to wait for the answer.
        json: Print the answer with the epoch and number of its commit.
    """
    stream, plain = output.split_key(key)
    asked = _json(request)
    async with options.services(reads_only=True) as services:
        answer = await asking.ask(
            services.coordinator(), services.caller(), services.clock, stream, plain, asked, timeout_s
        )
    value = answer.value
    shown = output.body(value, "answer") if isinstance(value, bytes) else {"answer": value}
    if json:
        output.json_line({**shown, "epoch": answer.epoch, "number": answer.number})
    else:
        output.json_line(next(iter(shown.values())))


def _json(request: str | None) -> Any:
    if request is None:
        return None
    try:
        return decode_plain(request.encode())
    except ValueError as error:
        raise InvalidMessage(f"the request can't be read: {error}; quote it for the shell") from None
