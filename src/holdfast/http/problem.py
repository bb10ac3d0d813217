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
"""The headers with the membership that owns a stream, its address, and its epoch."""


DATA_PLANE, NO_421 = "X-Data-Plane", "no-421"
"""The header of a data plane that can't send a request again after a 421, and needs a 503 instead."""

TARGET_AWAY = "urn:holdfast:target-away"
"""The type of a 503 that no other node and no quick repeat would change."""


class RequestRefused(HoldfastError):
    """A request that can't be served unchanged; the client must change it."""

    def __init__(self, status: int, kind: str, title: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = Problem(f"urn:holdfast:{kind}", title, status, redact(detail))


def of(error: HoldfastError) -> Problem:
    """Return the problem details of an error, for a client."""
    detail = redact(str(error))
    match error:
        case RequestRefused():
            return error.problem
        case NotOwner():
            return Problem("urn:holdfast:not-owner", "Another node owns the stream", 421, detail)
        case Busy():
            return Problem("urn:holdfast:busy", "The stream takes no more for the moment", 429, detail)
        case TargetAway():
            return Problem(TARGET_AWAY, "A target of the stream takes nothing", 503, detail)
        case NotKnown():
            return Problem("urn:holdfast:not-known", "There is no such thing", 404, detail)
        case OperationRefused():
            return Problem("urn:holdfast:refused", "It makes no sense as things stand", 409, detail)
        case InvalidMessage():
            return Problem("urn:holdfast:invalid", "The request can't be understood", 400, detail)
        case TooLarge():
            return Problem("urn:holdfast:too-large", "The body is too large", 413, detail)
        case NoQuery():
            return Problem("urn:holdfast:no-query", "The stream answers no queries", 404, detail)
        case QueryFailed():
            return Problem("urn:holdfast:query-failed", "The query failed", 422, detail)
        case SetAside() | HandlerFailed():
            return Problem("urn:holdfast:set-aside", "The message was set aside", 422, detail)
        case OutcomeUnknown():
            return Problem("urn:holdfast:no-answer", "No answer in time", 504, detail)
    if error.retry is Retry.SAFE:
        return Problem("urn:holdfast:unavailable", "Not now", 503, detail)
    return FAILED


def headers(error: HoldfastError) -> dict[str, str]:
    """Return further headers of the answer: when to try again, and where."""
    match error:
        case NotOwner():
            told = {OWNER: error.member, OWNER_ADDRESS: error.address, EPOCH: str(error.epoch or "")}
            return {name: value for name, value in told.items() if value}
        case Busy() | TargetAway():
            return {"Retry-After": str(math.ceil(error.retry_after_s))}
    return {"Retry-After": str(RETRY_AFTER_S)} if of(error).status in (503, 504) else {}


def response(
    error: HoldfastError, more: dict[str, str] | None = None, *, no_421: bool = False
) -> web.Response:
    """Return the answer to a request that failed. With ``no_421``, a 421 becomes a 503 that names the
    owner."""
    problem, told = of(error), headers(error)
    if no_421 and problem.status == 421:
        problem = msgspec.structs.replace(problem, status=503)
        told["Retry-After"] = str(RETRY_AFTER_S)
    return problem_response(problem, {**told, **(more or {})})
