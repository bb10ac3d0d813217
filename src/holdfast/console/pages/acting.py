"""Actions of pages: each is audited, and ends with a notice on a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from holdfast.common.redaction import redact
from holdfast.console.access import caller_of
from holdfast.console.parts import ConsoleParts
from holdfast.errors import ConfigError, HoldfastError
from holdfast.operate.actions import Action, SubjectT

NUMBER_MAX = 10**39 - 1
"""The largest number in a form: that of the longest seq."""


async def act(
    parts: ConsoleParts,
    request: web.Request,
    action: str,
    subject: str,
    work: Callable[[], Awaitable[str]],
    *,
    back: str,
    details: Mapping[str, object] | None = None,
) -> web.Response:
    """Do ``work``, which returns its outcome in words, and redirect to the page ``back``, which shows
    that."""
    who, failed = caller_of(request).name, False
    try:
        # It must end even if the browser hangs up or loads another page.
        doing = asyncio.ensure_future(_audited(parts, who, action, subject, work, details))
        text = await asyncio.shield(doing)
    except HoldfastError as error:
        text, failed = redact(str(error)), True
    parts.cache.clear()
    notice = parts.clock.new_id()
    parts.renderer.note(notice, text, failed=failed)
    parts.events.publish("audit")
    glue = "&" if "?" in back else "?"
    return web.Response(status=303, headers={"Location": f"{back}{glue}notice={notice}"})


def action_route(
    parts: ConsoleParts,
    action: Action[SubjectT],
    path: str,
    find: Callable[[Mapping[str, object]], Awaitable[tuple[SubjectT, str]]],
) -> web.RouteDef:
    """Return the route of an action's form. ``find`` returns the form's subject and the path of its page."""

    async def serve(request: web.Request) -> web.Response:
        form = await request.post()
        subject, back = await find(form)

        async def work() -> str:
            if action.confirm and field(form, "confirm") != "yes":
                raise ConfigError(f"{action.warning}: tick the box to confirm it")
            return (await action.act(parts.services, subject, _wish(action, form))).text

        given = {each.name: text for each in action.inputs if (text := field(form, each.name))}
        return await act(
            parts, request, action.audit or action.verb, str(subject), work, back=back, details=given
        )

    return web.post(f"{path}/{action.verb}", serve)


def _wish(action: Action[Any], form: Mapping[str, object]) -> Any:
    """Return the input of an action as a form gives it. Raises ConfigError."""
    given = dict(action.form)
    for each in action.inputs:
        if each.kind == "flag":
            given[each.name] = field(form, each.name) == "yes"
        elif each.kind == "number":
            given[each.name] = number(form, each.name, each.label)
        elif text := field(form, each.name):
            given[each.name] = text
    try:
        return msgspec.convert(given, action.input)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None


async def _audited(
    parts: ConsoleParts,
    who: str,
    action: str,
    subject: str,
    work: Callable[[], Awaitable[str]],
    details: Mapping[str, object] | None,
) -> str:
    async with parts.audit.doing(who, action, subject, details) as under_way:
        under_way.text = await work()
    return under_way.text


def field(form: Mapping[str, object], name: str) -> str:
    """Return a field of a form, without spaces around it; "" if it isn't there."""
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def whole_number(text: str, most: int) -> int | None:
    """Return a text of an address or a form as a whole number from 0 to ``most``, or None."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    value = int(text)
    return value if value <= most else None


def number(form: Mapping[str, object], name: str, what: str) -> int | None:
    """Return a field of a form as an integer, None where it is empty. Raises ConfigError."""
    text = field(form, name)
    if not text:
        return None
    value = whole_number(text, NUMBER_MAX)
    if value is None:
        raise ConfigError(f"{what} must be a number, at least 0; this is {text[:50]!r}")
    return value
