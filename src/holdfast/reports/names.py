"""The remote names of a report's files.

A template is text with fields: ``{customer}``, ``{report}``, ``{date}`` (or such as ``{date:%d.%m.%Y}``),
``{part}`` (1, 2, … of a split report; or ``{part:03}``) and ``{{`` for a brace. ``/`` makes folders; the
values of fields don't. A name can't leave the customer's root (:mod:`holdfast.reports.rules.remote_name`).
"""

from __future__ import annotations

import datetime as dt
import re
import string
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from holdfast.errors import InvalidMessage
from holdfast.reports.rules import remote_name as remote

if TYPE_CHECKING:
    from holdfast.reports.order import ReportOrder

_FIELDS = frozenset({"customer", "report", "date", "part"})
_DATE_SPEC = re.compile(r"(?:%[aAbBdjmyYGVuwUW%-]|[^%{}/\\])*")
_PART_SPEC = re.compile(r"0?[1-9]?d?")
_SOME_DAY = dt.date(2024, 2, 29)


def remote_name(order: ReportOrder, ordered_at: dt.datetime, part: int = 1) -> str:
    """Return the name of the file ``part``, which counts from 1.

    ``ordered_at`` (with a zone) gives the date if the order names none. Without ``{part}`` in the template,
    the second file gets ``-2`` before its suffix, and so on. Raises InvalidMessage.
    """
    assert ordered_at.tzinfo is not None
    day = order.date or ordered_at.astimezone(ZoneInfo(order.time_zone)).date()
    return remote.check(_fill(order, day, part))


def template_fault(order: ReportOrder) -> str:
    """Return what is wrong with the template; an empty text if it is valid."""
    try:
        fields = [(field, spec or "", how) for _, field, spec, how in string.Formatter().parse(order.name)]
    except ValueError as error:
        return f"{order.name[:80]!r} isn't a template ({error})"
    for field, spec, how in fields:
        if field is None:
            continue
        if field not in _FIELDS or how:
            return f"{{{field}}} isn't a field; fields are {', '.join(sorted(_FIELDS))}"
        fits = {"date": _DATE_SPEC, "part": _PART_SPEC}.get(field, re.compile(""))
        if not fits.fullmatch(spec):
            return f"{{{field}:{spec}}}: {spec!r} isn't a format of this field"
        value = getattr(order, field, None)
        if isinstance(value, str) and ("/" in value or value in (".", "..")):
            return f"{{{field}}} would be filled with {value!r}, which makes folders"
    try:
        remote.check(_fill(order, order.date or _SOME_DAY, 1))
    except InvalidMessage as error:
        return str(error)
    return ""


def _fill(order: ReportOrder, day: dt.date, part: int) -> str:
    template = order.name
    if part > 1 and not any(field == "part" for _, field, _, _ in string.Formatter().parse(template)):
        path = PurePosixPath(template)
        stem, dot, suffixes = path.name.partition(".")
        template = str(path.with_name(f"{stem}-{{part}}{dot}{suffixes}"))
    return template.format(customer=order.customer, report=order.report, date=day, part=part)
