"""``holdfast reports``: publish a report without a queue, and list ordered ones."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from holdfast.errors import ConfigError
from holdfast.extend import TaskState, extra
from holdfast.extend.commands import DEFAULTS, Json, Options, audited, exits, output
from holdfast.extend.products import MemoryRegistry, Services
from holdfast.extend.tools import redact_url
from holdfast.reports.assembly import report_publisher
from holdfast.reports.audit import Audit, AuditedAttempt, Row
from holdfast.reports.deliver_credentials import Credentials
from holdfast.reports.listing import LEFT_OUT, files_of, today
from holdfast.reports.order import ReportOrder, from_plain

app = App(name="reports", help="Publish a report, and list ordered ones.")

PREVIEW_ROWS = 10
COLUMNS = ("customer", "report", "name", "state", "ended", "bytes", "rows", "sha256", "attempts", "error")
SUFFIXES = {"none": "", "gzip": ".gz", "zip": ".zip", "zstd": ".zst"}


@app.command
async def publish(
    source: str,
    destination: str,
    /,
    *,
    form: Annotated[Literal["csv", "xlsx"], Parameter(name="--format")] = "csv",
    name: Annotated[str, Parameter(show_default=False)] = "",
    column: tuple[str, ...] = (),
    option: tuple[str, ...] = (),
    customer: str = "customer",
    report: Annotated[str, Parameter(show_default=False)] = "",
    time_zone: str = "UTC",
    companion: tuple[Literal["ok", "md5", "sha256"], ...] = (),
    credentials: str | None = None,
    credentials_file: Path | None = None,
    order: Path | None = None,
    dry_run: bool = False,
    record: bool = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Read a query's result, format it, and deliver it, without a queue and a node.

    With `--dry-run` nothing is sent: the command prints the columns, the first rows as they would be written,
    and the size of the file.

    ```
    holdfast reports publish sales.parquet sftp://sftp.acme.example/in --format xlsx --credentials acme
    holdfast reports publish s3://lake/sales/ ./out --option delimiter=';' --column id --column price=Price
    holdfast reports publish sales.parquet ./out --dry-run
    ```

    Args:
        source: URL or path of a file; with `/` at the end, all files below; with `*`, all files with this
            prefix.
        destination: URL of the customer's folder, or a path.
        form: The format of the file.
        name: Template of the remote name; by default the source's name.
        column: A column to write, as SOURCE or SOURCE=TITLE; may be repeated. By default all.
        option: An option of the format, as NAME=VALUE; may be repeated.
        customer: The customer, for names.
        report: The report's name, for names; by default the source's name.
        time_zone: The customer's time zone.
        companion: A small file beside the report, written after it.
        credentials: Name of the secret that opens the destination.
        credentials_file: TOML file of secrets; by default they are in the environment.
        order: JSON file with an order; these arguments replace its sources and its delivery.
        dry_run: Send nothing.
        record: Record it in the store, for `holdfast reports status` and the audit log.
        json: Print JSON.
    """
    config = options.load()
    plain = await asyncio.to_thread(_read, order) if order is not None else {}
    stem = PurePosixPath(source.rstrip("/*")).name.partition(".")[0] or "report"
    plain.setdefault("customer", customer)
    plain.setdefault("report", report or stem)
    plain.setdefault("time_zone", time_zone)
    plain.setdefault("format", {"type": form})
    plain["format"] |= _options(option)
    suffix = SUFFIXES.get(plain["format"].get("compression", "none"), "")
    usual = f"{stem}.{plain['format'].get('type', form)}{suffix}".replace("{", "{{").replace("}", "}}")
    plain["name"] = name or plain.get("name", usual)
    (table, *_) = plain.setdefault("tables", [{}])
    table["sources"] = [source]
    if column:
        table["columns"] = [_column(text) for text in column]
    plain["delivery"] = plain.get("delivery", {}) | {"destination": _destination(destination)}
    if companion:
        plain["delivery"]["companions"] = companion
    if credentials is not None:
        plain["delivery"]["credentials"] = credentials
    wanted, known = from_plain(plain), Credentials(file=credentials_file)
    async with Services(config) as services:
        if dry_run:
            return await _show(wanted, services.clock.wall(), known, json=json)
        registry = services.registry() if record else MemoryRegistry(services.clock)
        task_id = f"cli-{services.clock.new_id()}"
        async with contextlib.AsyncExitStack() as stack:
            if record:  # else nothing is written to the cluster's store
                where = {"destination": redact_url(plain["delivery"]["destination"]), "trace": task_id}
                subject = f"{wanted.customer} {wanted.report}"
                await stack.enter_async_context(audited(services, "publish a report", subject, where))
            publisher = await stack.enter_async_context(
                report_publisher(services.clock, registry, known, access=services.access)
            )
            with _bar(quiet=json) as progress:
                bar = progress.add_task(wanted.report, total=1.0, note="opening the sources")
                published = await publisher.publish(
                    wanted,
                    AuditedAttempt(task_id=task_id, ordered_at=services.clock.wall()),
                    lambda now: progress.update(bar, completed=now.fraction, note=str(now)),
                    leave=False,  # another call has another id, and can't resume this one
                )
    if json:
        output.json_line(published)
        return exits.OK
    for file in published.files:
        output.say(f"{file.name}: {file.size} bytes, {file.rows} rows, sha256 {file.sha256}")
    if not published.files:
        output.say("the result is empty: the order delivers no file then")
    return exits.OK


@app.command
async def status(
    *,
    date: Annotated[dt.date | None, Parameter(show_default=False)] = None,
    customer: str = "",
    state: TaskState | None = None,
    of: str = "",
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """List the files of a day: state, size, checksum, attempts. The exit code is 1 if a file has failed.

    ```
    holdfast reports status --date 2024-02-29
    holdfast reports status --of reports --state failed --json
    ```

    Args:
        date: The reports' day; by default today in UTC.
        customer: Only files of this customer.
        state: Only files of this state.
        of: Name of an app, whose reports that no node has begun are listed too: waiting ones of any day, and
            ended ones of this day.
        json: Print JSON lines.
    """
    async with options.services(reads_only=True) as services:
        day = date or today(services)
        found = await files_of(services, day, customer=customer, state=state, app=of)
    if json:
        for row in found.rows:
            output.json_line(_record(row))
    else:
        output.console().print(output.table(f"reports of {day}", COLUMNS, map(_cells, found.rows)))
    if not found.complete:
        output.remark(LEFT_OUT)
    return exits.FAILED if any(row.state is TaskState.FAILED for row in found.rows) else exits.OK


@app.command
async def forget(before: dt.date, /, *, options: Options = DEFAULTS) -> None:
    """Drop the records of files of days before a date.

    ```
    holdfast reports forget 2024-01-01
    ```

    Args:
        before: The first day that is kept.
    """
    async with (
        options.services(reads_only=True) as services,
        audited(services, "forget reports", f"before {before}"),
    ):
        dropped = await Audit(services.registry(), services.clock).forget(before)
    output.say(f"{dropped} files forgotten")


async def _show(order: ReportOrder, now: float, known: Credentials, *, json: bool) -> int:
    with extra("reports", "report.publish"):
        from holdfast.reports.dry_run import dry_run  # noqa: PLC0415

    ordered_at = dt.datetime.fromtimestamp(now, dt.UTC)
    found = await asyncio.to_thread(dry_run, order, ordered_at, known.fields, PREVIEW_ROWS)
    if json:
        output.json_line(found)
        return exits.OK
    output.console().print(output.table(found.name, ("column", "type"), found.columns))
    output.say("")
    for line in found.lines:
        output.say(line)
    output.say("")
    rows = "an unknown number of" if found.rows is None else str(found.rows)
    output.say(f"{rows} rows, {'' if found.exact else 'about '}{found.size} bytes")
    return exits.OK


def _bar(*, quiet: bool) -> Progress:
    console = output.error_console()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def _read(order: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(order.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"--order {order} can't be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"--order {order} isn't a JSON object: {error}") from None


def _options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options of the format: numbers, true and false as in JSON, other values as text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--option {text!r} must be NAME=VALUE, such as --option header=false")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


def _column(text: str) -> dict[str, str]:
    source, equals, title = text.partition("=")
    return {"source": source, "title": title} if equals else {"source": source}


def _destination(text: str) -> str:
    if "://" in text or text.startswith("file:"):
        return text
    return f"file:{Path(text).expanduser().absolute()}"


def _record(row: Row) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in row.__struct_fields__ if name != "record"}
    times = ("ordered_at", "started_at", "ended_at")
    return fields | {name: output.moment(getattr(row, name)) for name in times}


def _cells(row: Row) -> tuple[Any, ...]:
    return (
        row.customer,
        row.report,
        row.name,
        row.state.value,
        output.moment(row.ended_at),
        row.size,
        row.rows,
        row.sha256[:12],
        row.attempts,
        row.error,
    )
