"""Errors as RFC 9457 problem details."""

from __future__ import annotations

import math

import msgspec
from aiohttp import web

from holdfast.common.redaction import redact
from holdfast.errors import (
    Busy,
    HandlerFailed,
    HoldfastError,
    InvalidMessage,
    NoQuery,
    NotKnown,
    NotOwner,
    OperationRefused,
    OutcomeUnknown,
    QueryFailed,
    Retry,
    SetAside,
    TargetAway,
    TooLarge,
)
from holdfast.http.serving import FAILED, MEDIA_TYPE, RETRY_AFTER_S, Problem, problem_response

__all__ = ["MEDIA_TYPE", "RETRY_AFTER_S", "Problem"]

OWNER, OWNER_ADDRESS, EPOCH = "X-Owner", "X-Owner-Address", "X-Epoch"
"""Headers with the membership that owns a stream, its address, and its epoch."""


DATA_PLANE, NO_421 = "X-Data-Plane", "no-421"
"""Header of a data plane that can't repeat a request after a 421, and needs a 503 instead."""

TARGET_AWAY = "urn:holdfast:target-away"
"""Type of a 503 that another node or a quick repeat wouldn't change."""


class RequestRefused(HoldfastError):
    """A request that the client must change."""

    def __init__(self, status: int, kind: str, title: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = Problem(f"urn:holdfast:{kind}", title, status, redact(detail))


PROBLEMS: tuple[tuple[type[HoldfastError] | tuple[type[HoldfastError], ...], str, str, int], ...] = (
    (NotOwner, "not-owner", "Another node owns the stream", 421),
    (Busy, "busy", "The stream has no room for the moment", 429),
    (TargetAway, "target-away", "A target of the stream takes nothing", 503),
    (NotKnown, "not-known", "Not found", 404),
    (OperationRefused, "refused", "Refused in the present state", 409),
    (InvalidMessage, "invalid", "The request can't be understood", 400),
    (TooLarge, "too-large", "The body is too large", 413),
    (NoQuery, "no-query", "The stream answers no queries", 404),
    (QueryFailed, "query-failed", "The query failed", 422),
    ((SetAside, HandlerFailed), "set-aside", "The message was set aside", 422),
    (OutcomeUnknown, "no-answer", "No answer in time", 504),
)
"""Kinds of errors with type, title and status. The first that fits counts."""


def of(error: HoldfastError) -> Problem:
    """Return the problem details of an error, for a client."""
    if isinstance(error, RequestRefused):
        return error.problem
    detail = redact(str(error))
    for kinds, name, title, status in PROBLEMS:
        if isinstance(error, kinds):
            return Problem(f"urn:holdfast:{name}", title, status, detail)
    if error.retry is Retry.SAFE:
        return Problem("urn:holdfast:unavailable", "Unavailable", 503, detail)
    return FAILED


def headers(error: HoldfastError) -> dict[str, str]:
    """Return further headers of the answer: the time and the place for another try."""
    match error:
        case NotOwner():
            found = {OWNER: error.member, OWNER_ADDRESS: error.address, EPOCH: str(error.epoch or "")}
            return {name: value for name, value in found.items() if value}
        case Busy() | TargetAway():
            return {"Retry-After": str(math.ceil(error.retry_after_s))}
    return {"Retry-After": str(RETRY_AFTER_S)} if of(error).status in (503, 504) else {}


def response(
    error: HoldfastError, more: dict[str, str] | None = None, *, no_421: bool = False
) -> web.Response:
    """Return the answer to a request that failed. With ``no_421``, a 421 becomes a 503 that names the
    owner."""
    problem, found = of(error), headers(error)
    if no_421 and problem.status == 421:
        problem = msgspec.structs.replace(problem, status=503)
        found["Retry-After"] = str(RETRY_AFTER_S)
    return problem_response(problem, {**found, **(more or {})})
