"""The last hour from Prometheus, which also covers the time before this console's start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

import aiohttp
import msgspec

from holdfast.common.http_errors import describe_http_error
from holdfast.common.redaction import redact
from holdfast.config.settings import Config
from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock

HOUR_S, STEP_S = 3600.0, 15.0
POINTS = int(HOUR_S / STEP_S)
TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20
ERROR_MAX = 200

QUERIES = {
    "handled_per_s": "sum(rate(holdfast_handled_total{%s}[2m]))",
    "p50_s": "histogram_quantile(0.5, sum by (le) (rate(holdfast_delivery_seconds_bucket{%s}[2m])))",
    "p99_s": "histogram_quantile(0.99, sum by (le) (rate(holdfast_delivery_seconds_bucket{%s}[2m])))",
    "waiting": "sum(max by (queue, state)"
    ' (holdfast_queue_messages{state=~"ready|delayed", queue!~".+-briefs", %s}))',
    "dead": 'sum(max by (queue) (holdfast_queue_messages{state="dead", %s}))',
    "running": "sum(holdfast_tasks_running{%s})",
}
"""The query for each chart. ``%s`` stands for the labels that choose this cluster."""

Hour = Mapping[str, Sequence[float | None]]
"""The values of each chart, oldest first; None for a gap."""


class _Series(msgspec.Struct, frozen=True):
    values: tuple[tuple[float, str], ...] = ()


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Series, ...] = ()


class _RangeAnswer(msgspec.Struct, frozen=True):
    data: _Data = _Data()
    error: str = ""


_decode = msgspec.json.Decoder(_RangeAnswer).decode


class PrometheusHistory:
    """A client of one Prometheus. Only that server gets ``token``; ``labels`` choose this cluster."""

    def __init__(self, url: str, token: str, labels: str, clock: Clock) -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._labels = labels
        self._clock = clock

    @classmethod
    def of(cls, config: Config, clock: Clock) -> Self | None:
        """Return the client for the Prometheus of a config; None without one."""
        if not config.prometheus_url:
            return None
        token = config.prometheus_token
        secret = token.get_secret_value() if token is not None else ""
        return cls(config.prometheus_url, secret, config.prometheus_labels, clock)

    async def read(self) -> Hour:
        """Return the last hour. Raises Unavailable, which says what to look at."""
        timeout = aiohttp.ClientTimeout(TIMEOUT_S)
        end = self._clock.wall() // STEP_S * STEP_S
        try:
            async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
                return {name: await self._series(session, expr, end) for name, expr in QUERIES.items()}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._away(
                describe_http_error(error) if str(error) else f"no answer in {TIMEOUT_S:g} s"
            ) from None
        except ValueError:  # its text may have the token in it
            raise self._away("the token can't be sent; does it contain a line end?") from None

    async def _series(self, session: aiohttp.ClientSession, expr: str, end: float) -> Sequence[float | None]:
        asked = {
            "query": expr.replace("%s", self._labels),
            "start": str(end - HOUR_S + STEP_S),
            "end": str(end),
            "step": str(STEP_S),
        }
        # A redirect would carry the token on.
        async with session.get(self._url, params=asked, allow_redirects=False) as response:
            data = b""
            async for some in response.content.iter_any():
                data += some
                if len(data) > ANSWER_BYTES_MAX:
                    raise self._away(f"its answer is over {ANSWER_BYTES_MAX} bytes")
        try:
            answer = _decode(data)
            values = _placed(answer, end)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise self._away(f"it answers {response.status} in another format than Prometheus") from None
        if response.status != 200:
            raise self._away(f"it answers {response.status}: {answer.error[:ERROR_MAX]}")
        return values

    def _away(self, why: str) -> Unavailable:
        advice = "check prometheus_url, prometheus_token and prometheus_labels"
        return Unavailable(redact(f"Prometheus can't be read: {why}; {advice}"))


def _placed(answer: _RangeAnswer, end: float) -> Sequence[float | None]:
    """Return the values of an answer by their times, up to ``end``. Raises ValueError for one that is no
    number."""
    values: list[float | None] = [None] * POINTS
    for at, text in answer.data.result[0].values if answer.data.result else []:
        value = float(text)
        place = POINTS - 1 - round((end - at) / STEP_S)
        if 0 <= place < POINTS and math.isfinite(value):
            values[place] = value
    return values
