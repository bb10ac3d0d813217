"""The operation of the console's JSON API that lists the files of reports."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from holdfast.extend import TaskState
from holdfast.extend.api import Call, Limit, NoFields, Operation
from holdfast.reports.listing import files_of, today

if TYPE_CHECKING:
    from holdfast.extend.products import Services

LIMIT = 100


class FilesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose files."""

    date: Annotated[dt.date | None, Meta(description="The reports' day; else today.")] = None
    customer: str = ""
    state: TaskState | None = None
    app: Annotated[str, Meta(description="Also reports of this app that no node has begun.")] = ""
    offset: Annotated[int, Meta(ge=0, description="The number of files to skip.")] = 0
    limit: Limit = LIMIT


class FileRecord(msgspec.Struct):
    """One ordered file. ``number`` counts a report's files from 1. Times are wall times in seconds, or 0.
    ``attempts`` are the task's; ``error`` is that of the last attempt."""

    app: str
    trace: str
    number: int
    customer: str
    report: str
    day: dt.date
    destination: str
    name: str
    state: TaskState
    ordered_at: float
    started_at: float
    ended_at: float
    size: int
    rows: int
    sha256: str
    attempts: int
    error: str


class FilesOfDay(msgspec.Struct):
    """Files of one day, and the total. ``complete`` is false if the app has too many tasks: reports which
    no node has begun may be missing."""

    date: dt.date
    files: list[FileRecord]
    total: int
    complete: bool


def operations(services: Services) -> Sequence[Operation]:

    async def files(call: Call[FilesQuery, NoFields]) -> FilesOfDay:
        query = call.query
        day = query.date or today(services)
        found = await files_of(services, day, customer=query.customer, state=query.state, app=query.app)
        shown = found.rows[query.offset : query.offset + query.limit]
        fields = FileRecord.__struct_fields__
        records = [FileRecord(**{name: getattr(row, name) for name in fields}) for row in shown]
        return FilesOfDay(day, records, len(found.rows), found.complete)

    return [
        Operation(
            method="GET",
            path="/reports",
            name="listReportFiles",
            summary="List the ordered files of a day, and their states.",
            act=files,
            answer=FilesOfDay,
            query=FilesQuery,
        )
    ]
