"""Publish one report: read, formatted and delivered in one pass, each of its files told of in the audit."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn
from zoneinfo import ZoneInfo

import msgspec

from holdfast.errors import Fenced, HoldfastError, InvalidMessage, Retry, Unavailable
from holdfast.extend import Clock, TaskState
from holdfast.extend.tools import redact, redact_url, storable
from holdfast.extend.tracing import span
from holdfast.reports.audit import Audit, AuditedAttempt, Row
from holdfast.reports.deliver import Connect, deliver_file
from holdfast.reports.deliver_credentials import Credential, Credentials
from holdfast.reports.deliver_plan import Companion, DeliveryStage, FileToDeliver, Record
from holdfast.reports.deliver_pool import PoolLimits, SinkPool
from holdfast.reports.deliver_root import is_below
from holdfast.reports.names import remote_name
from holdfast.reports.order import ReportDelivery, ReportOrder, Xlsx
from holdfast.reports.ports.sink import Sink
from holdfast.reports.report import Report, ReportFile

ERROR_CHARS_MAX = 1000
CONFLICTS_MAX = 20
MB = 1_000_000
OPTIONS = {"replace": bool, "read_back": bool, "in_place": bool, "if_gone": str}
"""What ``delivery.options`` may hold: fields of :class:`FileToDeliver`."""

REPORT, FILE, DESTINATION = "holdfast.report", "holdfast.file", "holdfast.destination"
"""What the spans of an order tell."""

OpenSink = Callable[[str, Credential], Sink]


class Misread(msgspec.Struct, frozen=True):
    """An order that can't be understood, why, and what it tells all the same."""

    error: InvalidMessage
    customer: str = ""
    report: str = ""
    date: dt.date | None = None
    destination: str = ""


class PublishedFile(msgspec.Struct, frozen=True):
    """A file in its place. ``duplicated``: it was there before."""

    name: str
    size: int
    rows: int
    sha256: str
    duplicated: bool = False


class Published(msgspec.Struct, frozen=True):
    """The result of an order. ``duplicated``: all of its files were there before."""

    files: list[PublishedFile]
    duplicated: bool


class Headway(NamedTuple):
    """The progress of an order: the fraction that is done, bytes that the destination has, rows that were
    read, bytes a second on average, and seconds left (None: unknown)."""

    fraction: float
    bytes: int
    rows: int
    rate: float
    left_s: float | None

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {self.left_s:.0f} s left"
        rate = f"{self.rate / MB:.1f} MB/s"
        return f"{self.bytes / MB:.1f} MB, {self.rows} rows, {self.fraction:.0%}, {rate}{left}"


class Publisher:
    """Publishes orders in one event loop.

    Args:
        open_sink: a connection to a destination, by URL and credential.
        credentials: finds the secrets that orders name.
        audit: keeps the rows.
        limits: of connections and rates.
        roots: what sources must lie in, as URLs; any, if there are none.
        destinations: what destinations must lie below, as URLs; any, if there are none.
    """

    def __init__(
        self,
        clock: Clock,
        open_sink: OpenSink,
        credentials: Credentials,
        audit: Audit,
        *,
        limits: PoolLimits | None = None,
        roots: Sequence[str] = (),
        destinations: Sequence[str] = (),
    ) -> None:
        self._clock = clock
        self._open_sink = open_sink
        self._credentials = credentials
        self._audit = audit
        self._pool = SinkPool(clock, limits)
        self._roots = roots
        self._destinations = destinations

    async def close(self) -> None:
        """Close connections that are kept."""
        await self._pool.close()

    async def publish(
        self,
        order: ReportOrder,
        attempt: AuditedAttempt,
        told: Callable[[Headway], None] = lambda _: None,
        *,
        leave: bool = True,
    ) -> Published:
        """Publish an order; ``told`` hears of headway, often. Without ``leave``, no attempt will go on with
        this one: nothing half-sent stays.

        Files that an earlier attempt delivered are not delivered again; a half-sent one is gone on with. If
        this is cancelled, what was sent is removed. Raises as ``Report`` and ``deliver`` do, and Fenced if
        another attempt goes on with it."""
        delivery, options = delivery_of(order)
        ordered_at = await self._ordered_at(attempt)
        day = order.date or ordered_at.astimezone(ZoneInfo(order.time_zone)).date()
        book = self._book(attempt, ordered_at, day, order.customer, order.report, delivery.destination)
        await book.begin(1, remote_name(order, ordered_at))
        try:
            # First of all: where a credential is wanted, the sources needn't be opened.
            connect = await self._connect(order, delivery)
            with span("open sources", attributes={REPORT: order.report}):
                report = await asyncio.to_thread(
                    Report,
                    order,
                    ordered_at=ordered_at,
                    secrets=lambda name: self._credentials.find(name).fields(),
                    roots=self._roots,
                )
            try:
                return await self._deliver(report, delivery, options, connect, book, told, leave=leave)
            finally:
                # In a thread that nobody waits for: what formats ends at its next batch.
                asyncio.get_running_loop().run_in_executor(None, report.close)
        except BaseException as error:
            await book.fail(error)
            raise

    async def refuse(self, misread: Misread, attempt: AuditedAttempt) -> NoReturn:
        """Tell in the audit of an order that can't be understood, and raise why."""
        ordered_at = await self._ordered_at(attempt)
        day = misread.date or ordered_at.date()
        book = self._book(attempt, ordered_at, day, misread.customer, misread.report, misread.destination)
        await book.begin(1, "")
        await book.fail(misread.error)
        raise misread.error

    async def _ordered_at(self, attempt: AuditedAttempt) -> dt.datetime:
        at = await self._audit.ordered_at(attempt.trace, attempt.ordered_at)
        return dt.datetime.fromtimestamp(at, dt.UTC)

    def _book(
        self,
        attempt: AuditedAttempt,
        ordered_at: dt.datetime,
        day: dt.date,
        customer: str,
        report: str,
        destination: str,
    ) -> _Book:
        blank = Row(
            app=attempt.app,
            trace=attempt.trace,
            customer=customer,
            report=report,
            day=day,
            destination=redact_url(destination),
            name="",
            ordered_at=ordered_at.timestamp(),
        )
        return _Book(self._audit, blank, attempt, self._clock)

    async def _connect(self, order: ReportOrder, delivery: ReportDelivery) -> Connect:
        where = delivery.destination
        if self._destinations and not any(is_below(where, root) for root in self._destinations):
            field = "delivery.destination"
            raise InvalidMessage(f"{field}: doesn't lie below what this app delivers to", field)
        credential = Credential()
        if delivery.credentials is not None:
            credential = await asyncio.to_thread(self._credentials.find, delivery.credentials)
        make = functools.partial(self._open_sink, where, credential)
        await make().close()  # a destination that can't be is refused before the sources are opened
        place = f"{where} {delivery.credentials or ''}"
        return lambda: self._pool.sink(place, order.customer, make)

    async def _deliver(
        self,
        report: Report,
        delivery: ReportDelivery,
        options: dict[str, Any],
        connect: Connect,
        book: _Book,
        told: Callable[[Headway], None],
        *,
        leave: bool,
    ) -> Published:
        maker = _FileMaker(report)
        counter = _Counter(self._clock, report, told)
        files: list[PublishedFile] = []
        while (file := await maker.file(len(files) + 1)) is not None:
            if files:
                await book.begin(file.number, file.name)
            parcel = FileToDeliver(
                name=file.name,
                content=f"{report.id}-{file.number}",
                companions=tuple(Companion[kind.upper()] for kind in delivery.companions),
                **options,
            )
            told_of = {FILE: file.name, DESTINATION: redact_url(delivery.destination)}
            with span("deliver file", kind="client", attributes=told_of):
                done = await deliver_file(
                    parcel,
                    functools.partial(maker.chunks, file.number),
                    connect,
                    self._clock,
                    record=book.row.record,
                    note=functools.partial(book.note, maker),
                    progress=counter.sent,
                    pace=self._pool.pace(report.order.customer),
                    leave=leave,
                )
            counter.next_file()
            row = await book.end(done.record, before=done.duplicated)
            files.append(PublishedFile(row.name, row.size, row.rows, row.sha256, done.duplicated))
            if not maker.may_split:
                break
        if not files:
            await book.end(None)
        return Published(files, bool(files) and all(file.duplicated for file in files))


class _Book:
    """The row of the file at hand; a ``blank`` one tells what all of an order's files have in common."""

    def __init__(self, audit: Audit, blank: Row, attempt: AuditedAttempt, clock: Clock) -> None:
        self._audit = audit
        self._blank = blank
        self._attempt = attempt
        self._clock = clock
        self.row: Row

    async def begin(self, number: int, name: str) -> None:
        """Begin a file's row, or go on with the one that an earlier attempt left, and may still write to."""
        for _ in range(CONFLICTS_MAX):
            try:
                return await self._begin(number, name)
            except Fenced as fenced:
                if fenced.epoch > self._attempt.epoch:
                    raise
        raise Unavailable(f"the row of {name!r} changes too often")

    async def _begin(self, number: int, name: str) -> None:
        told = self._attempt
        known = await self._audit.find(self._blank.day, told.trace, number)
        if known is not None and known.epoch > told.epoch:
            raise Fenced(f"attempt {known.epoch} at {told.trace!r} goes on with {known.name!r}", known.epoch)
        begun = msgspec.structs.replace(self._blank, number=number, started_at=self._clock.wall())
        row = known or begun
        await self._keep(
            msgspec.structs.replace(
                row, name=name, epoch=told.epoch, attempts=told.attempt, state=TaskState.RUNNING, error=""
            )
        )

    async def note(self, maker: _FileMaker, record: Record) -> None:
        """Keep how far its delivery is; the last step is kept with its end."""
        made = maker.made
        rows = made.rows if made is not None and made.ended else self.row.rows
        row = msgspec.structs.replace(
            self.row, record=record, size=record.size, sha256=record.sha256, rows=rows
        )
        if record.stage is DeliveryStage.DONE:
            self.row = row
        else:
            await self._keep(row)

    async def end(self, record: Record | None, *, before: bool = False) -> Row:
        """It is delivered, perhaps ``before`` this attempt, or there is nothing to deliver."""
        ended_at = (before and self.row.ended_at) or self._clock.wall()
        await self._keep(
            msgspec.structs.replace(self.row, record=record, state=TaskState.SUCCEEDED, ended_at=ended_at)
        )
        return self.row

    async def fail(self, error: BaseException) -> None:
        """The attempt failed: for good, or for another to come."""
        if isinstance(error, Fenced) or self.row.state is TaskState.SUCCEEDED:
            return
        told = self._attempt
        permanent = isinstance(error, HoldfastError) and error.retry is Retry.NEVER
        cancelled = not isinstance(error, Exception)
        over = permanent or cancelled or told.attempt >= told.tries
        text = "it was told to end" if cancelled else f"{type(error).__name__}: {error}"
        with contextlib.suppress(HoldfastError):  # the first error is the one to tell
            await self._keep(
                msgspec.structs.replace(
                    self.row,
                    state=TaskState.FAILED if over else TaskState.QUEUED,
                    error=storable(redact(text)[:ERROR_CHARS_MAX]),
                    ended_at=self._clock.wall() if over else 0.0,
                )
            )

    async def _keep(self, row: Row) -> None:
        await self._audit.keep(row)
        self.row = row


class _FileMaker:
    """Makes a report's files, each as often as it is asked for, and each but once if all goes well.

    ``made`` is the file at hand."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._files: Iterator[ReportFile] = iter(())
        self._begun = False
        self.made: ReportFile | None = None
        options = report.order.format
        self.may_split = isinstance(options, Xlsx) and options.overflow == "files"

    async def file(self, number: int) -> ReportFile | None:
        """The file of that number, if there is one."""
        return await asyncio.to_thread(self._seek, number)

    def chunks(self, number: int) -> Generator[bytes, None, None]:
        """Its bytes, from the beginning."""
        file = self._seek(number)
        if file is None:
            return
        self._begun = True
        with span("format file", attributes={FILE: file.name}):
            yield from file.chunks

    def _seek(self, number: int) -> ReportFile | None:
        made = self.made
        if made is not None and made.number == number and not self._begun:
            return made
        if made is None or made.number >= number or not (made.ended or not self._begun):
            self._files = self._report.files()
            made = self._next()
        while made is not None and made.number < number:
            for _ in made.chunks:
                pass
            made = self._next()
        return made

    def _next(self) -> ReportFile | None:
        self._begun = False
        self.made = next(self._files, None)
        return self.made


class _Counter:
    """Turns what is sent of each file into headway of the whole."""

    def __init__(self, clock: Clock, report: Report, told: Callable[[Headway], None]) -> None:
        self._clock = clock
        self._report = report
        self._told = told
        self._began_at = clock.monotonic()
        self._before = 0
        self._size = 0

    def sent(self, size: int) -> None:
        """So much of the file at hand is made and sent."""
        self._size = size
        sent, read = self._before + size, self._report.progress
        # What is read and made is ahead of what is sent.
        fraction = read.fraction * min(1.0, sent / max(1, read.bytes_out))
        took_s = max(1e-3, self._clock.monotonic() - self._began_at)
        left_s = took_s * (1 - fraction) / fraction if fraction > 0 else None
        self._told(Headway(fraction, sent, read.rows, sent / took_s, left_s))

    def next_file(self) -> None:
        """The file at hand is delivered."""
        self._before += self._size
        self._size = 0


def delivery_of(order: ReportOrder) -> tuple[ReportDelivery, dict[str, Any]]:
    """An order's delivery, with its options. Raises InvalidMessage that names the field."""
    delivery = order.delivery
    if delivery is None:
        raise InvalidMessage("delivery: is missing; say where the files go", "delivery")
    for name, value in delivery.options.items():
        field = f"delivery.options.{name}"
        if name not in OPTIONS:
            raise InvalidMessage(f"{field}: is no option; there are {', '.join(OPTIONS)}", field)
        if type(value) is not OPTIONS[name] or (name == "if_gone" and value not in ("leave", "send")):
            kind = "leave or send" if name == "if_gone" else "true or false"
            raise InvalidMessage(f"{field}: is {value!r}; it is {kind}", field)
    return delivery, dict(delivery.options)
