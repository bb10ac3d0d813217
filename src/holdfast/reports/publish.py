"""Publish one report: read, format and deliver it in one pass, with an audit row for each file."""

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
"""The options of a delivery: fields of :class:`FileToDeliver`."""

REPORT, FILE, DESTINATION = "holdfast.report", "holdfast.file", "holdfast.destination"
"""The attributes of an order's spans."""

OpenSink = Callable[[str, Credential], Sink]


class InvalidOrder(msgspec.Struct, frozen=True):
    """An invalid order: the error, and the fields that can be read all the same."""

    error: InvalidMessage
    customer: str = ""
    report: str = ""
    date: dt.date | None = None
    destination: str = ""


class PublishedFile(msgspec.Struct, frozen=True):
    """A file in its place. ``duplicated``: an earlier attempt put it there."""

    name: str
    size: int
    rows: int
    sha256: str
    duplicated: bool = False


class Published(msgspec.Struct, frozen=True):
    """The result of an order. ``duplicated``: earlier attempts put all of its files in place."""

    files: list[PublishedFile]
    duplicated: bool


class PublishProgress(NamedTuple):
    """The progress of an order: the fraction that is done, bytes at the destination, rows read, bytes a
    second on average, and seconds left (None: unknown)."""

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
        open_sink: makes a sink, by URL and credential.
        roots: URLs that sources must lie below; without any, all sources are allowed.
        destinations: URLs that destinations must lie below; without any, all are allowed.
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
        await self._pool.close()

    async def publish(
        self,
        order: ReportOrder,
        attempt: AuditedAttempt,
        on_progress: Callable[[PublishProgress], None] = lambda _: None,
        *,
        leave: bool = True,
    ) -> Published:
        """Publish an order. ``leave``: a later attempt may resume an upload that this one leaves.

        Files of earlier attempts are not delivered again, and an upload of theirs is resumed. If this is
        cancelled, its upload is removed. Raises the errors of ``Report`` and ``deliver_file``, and Fenced if
        a later attempt owns the order."""
        delivery, options = delivery_of(order)
        ordered_at, rows = await self._rows(attempt, order, order.time_zone, delivery.destination)
        await rows.begin(1, remote_name(order, ordered_at))
        try:
            # First, as without the credential the sources needn't be opened.
            connect = await self._connect(order, delivery)
            with span("open sources", attributes={REPORT: order.report}):
                report = await asyncio.to_thread(
                    Report,
                    order,
                    ordered_at=ordered_at,
                    secrets=self._credentials.fields,
                    roots=self._roots,
                )
            try:
                return await self._deliver(report, delivery, options, connect, rows, on_progress, leave=leave)
            finally:
                # Not awaited: the formatting threads end at their next batch.
                asyncio.get_running_loop().run_in_executor(None, report.close)
        except BaseException as error:
            await rows.fail(error)
            raise

    async def refuse(self, order: InvalidOrder, attempt: AuditedAttempt) -> NoReturn:
        """Write the audit row of an invalid order, and raise its error."""
        _, rows = await self._rows(attempt, order, "UTC", order.destination)
        await rows.begin(1, "")
        await rows.fail(order.error)
        raise order.error

    async def _rows(
        self, attempt: AuditedAttempt, order: ReportOrder | InvalidOrder, time_zone: str, destination: str
    ) -> tuple[dt.datetime, _FileRows]:
        """Return the time of the order, and its audit rows."""
        at = await self._audit.ordered_at(attempt.task_id, attempt.ordered_at)
        ordered_at = dt.datetime.fromtimestamp(at, dt.UTC)
        common = Row(
            app=attempt.app,
            trace=attempt.task_id,
            customer=order.customer,
            report=order.report,
            day=order.date or ordered_at.astimezone(ZoneInfo(time_zone)).date(),
            destination=redact_url(destination),
            name="",
            ordered_at=ordered_at.timestamp(),
        )
        return ordered_at, _FileRows(self._audit, common, attempt, self._clock)

    async def _connect(self, order: ReportOrder, delivery: ReportDelivery) -> Connect:
        where = delivery.destination
        if self._destinations and not any(is_below(where, root) for root in self._destinations):
            field = "delivery.destination"
            raise InvalidMessage(f"{field}: doesn't lie below the destinations that this app allows", field)
        credential = Credential()
        if delivery.credentials is not None:
            credential = await asyncio.to_thread(self._credentials.find, delivery.credentials)
        make = functools.partial(self._open_sink, where, credential)
        await make().close()  # raises for a bad destination before the sources are opened
        place = f"{where} {delivery.credentials or ''}"
        return lambda: self._pool.sink(place, order.customer, make)

    async def _deliver(
        self,
        report: Report,
        delivery: ReportDelivery,
        options: dict[str, Any],
        connect: Connect,
        rows: _FileRows,
        on_progress: Callable[[PublishProgress], None],
        *,
        leave: bool,
    ) -> Published:
        maker = _FileMaker(report)
        meter = _ProgressMeter(self._clock, report, on_progress)
        files: list[PublishedFile] = []
        while (file := await maker.file(len(files) + 1)) is not None:
            if files:
                await rows.begin(file.number, file.name)
            wanted = FileToDeliver(
                name=file.name,
                content=f"{report.id}-{file.number}",
                companions=tuple(Companion[kind.upper()] for kind in delivery.companions),
                **options,
            )
            attributes = {FILE: file.name, DESTINATION: redact_url(delivery.destination)}
            with span("deliver file", kind="client", attributes=attributes):
                done = await deliver_file(
                    wanted,
                    functools.partial(maker.chunks, file.number),
                    connect,
                    self._clock,
                    record=rows.row.record,
                    note=functools.partial(rows.note, maker),
                    progress=meter.sent,
                    pace=self._pool.pace(report.order.customer),
                    leave=leave,
                )
            meter.next_file()
            row = await rows.end(done.record, before=done.duplicated)
            files.append(PublishedFile(row.name, row.size, row.rows, row.sha256, done.duplicated))
            if not maker.may_split:
                break
        if not files:
            await rows.end(None)
        return Published(files, bool(files) and all(file.duplicated for file in files))


class _FileRows:
    """Writes the audit row of the present file. ``common`` has the fields that an order's files share."""

    def __init__(self, audit: Audit, common: Row, attempt: AuditedAttempt, clock: Clock) -> None:
        self._audit = audit
        self._common = common
        self._attempt = attempt
        self._clock = clock
        self.row: Row

    async def begin(self, number: int, name: str) -> None:
        """Begin a file's row, or take over that of an earlier attempt, which may still write to it."""
        for _ in range(CONFLICTS_MAX):
            try:
                return await self._begin(number, name)
            except Fenced as fenced:
                if fenced.epoch > self._attempt.epoch:
                    raise
        raise Unavailable(f"the row of {name!r} changes too often")

    async def _begin(self, number: int, name: str) -> None:
        ours = self._attempt
        known = await self._audit.find(self._common.day, ours.task_id, number)
        if known is not None and known.epoch > ours.epoch:
            raise Fenced(f"attempt {known.epoch} at {ours.task_id!r} owns {known.name!r}", known.epoch)
        begun = msgspec.structs.replace(self._common, number=number, started_at=self._clock.wall())
        row = known or begun
        await self._keep(
            msgspec.structs.replace(
                row, name=name, epoch=ours.epoch, attempts=ours.attempt, state=TaskState.RUNNING, error=""
            )
        )

    async def note(self, maker: _FileMaker, record: Record) -> None:
        """Keep the record of the delivery; the last record is kept by ``end``."""
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
        """End the row: the file is delivered, perhaps ``before`` this attempt, or there is no file."""
        ended_at = (before and self.row.ended_at) or self._clock.wall()
        await self._keep(
            msgspec.structs.replace(self.row, record=record, state=TaskState.SUCCEEDED, ended_at=ended_at)
        )
        return self.row

    async def fail(self, error: BaseException) -> None:
        """Write the error of the attempt, and whether another one follows."""
        if isinstance(error, Fenced) or self.row.state is TaskState.SUCCEEDED:
            return
        permanent = isinstance(error, HoldfastError) and error.retry is Retry.NEVER
        cancelled = not isinstance(error, Exception)
        over = permanent or cancelled or self._attempt.attempt >= self._attempt.tries
        text = "the attempt was cancelled" if cancelled else f"{type(error).__name__}: {error}"
        with contextlib.suppress(HoldfastError):  # the first error is raised
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
    """Makes a report's files by number, once each if no delivery begins again. ``made`` is the present
    file."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._files: Iterator[ReportFile] = iter(())
        self._begun = False
        self.made: ReportFile | None = None
        options = report.order.format
        self.may_split = isinstance(options, Xlsx) and options.overflow == "files"

    async def file(self, number: int) -> ReportFile | None:
        return await asyncio.to_thread(self._seek, number)

    def chunks(self, number: int) -> Generator[bytes, None, None]:
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


class _ProgressMeter:
    """Turns the bytes sent of each file into the progress of the order."""

    def __init__(self, clock: Clock, report: Report, on_progress: Callable[[PublishProgress], None]) -> None:
        self._clock = clock
        self._report = report
        self._on_progress = on_progress
        self._began_at = clock.monotonic()
        self._before = 0
        self._size = 0

    def sent(self, size: int) -> None:
        """Report that ``size`` bytes of the present file are sent."""
        self._size = size
        sent, read = self._before + size, self._report.progress
        # Reading and formatting are ahead of sending.
        fraction = read.fraction * min(1.0, sent / max(1, read.bytes_out))
        took_s = max(1e-3, self._clock.monotonic() - self._began_at)
        left_s = took_s * (1 - fraction) / fraction if fraction > 0 else None
        self._on_progress(PublishProgress(fraction, sent, read.rows, sent / took_s, left_s))

    def next_file(self) -> None:
        """Go on to the next file."""
        self._before += self._size
        self._size = 0


def delivery_of(order: ReportOrder) -> tuple[ReportDelivery, dict[str, Any]]:
    """Return an order's delivery and its options. Raises InvalidMessage that names the field."""
    delivery = order.delivery
    if delivery is None:
        raise InvalidMessage("delivery: is missing; name the destination of the files", "delivery")
    for name, value in delivery.options.items():
        field = f"delivery.options.{name}"
        if name not in OPTIONS:
            raise InvalidMessage(f"{field}: must be one of {', '.join(OPTIONS)}", field)
        if type(value) is not OPTIONS[name] or (name == "if_gone" and value not in ("leave", "send")):
            kind = "leave or send" if name == "if_gone" else "true or false"
            raise InvalidMessage(f"{field}: is {value!r}; it must be {kind}", field)
    return delivery, dict(delivery.options)
