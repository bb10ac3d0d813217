"""A customer's order: the typed body of a report's task, as JSON.

All fields but ``customer``, ``report``, ``tables`` and ``name`` have defaults. Unknown fields are refused:
else a misspelt option would show only when a customer complains. ``from_plain`` also checks rules that types
can't express.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, Struct

from holdfast.errors import InvalidMessage
from holdfast.extend.tools import check_key, decode_json, faults
from holdfast.extend.tools import encode_json as write_json
from holdfast.reports.names import template_fault

Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Byte = Annotated[str, Meta(pattern=r"^[\x00-\x7f]$")]
"""One ASCII character."""

Encoding = Literal[
    "utf-8",
    "utf-8-bom",
    "utf-16",
    "ascii",
    "cp1250",
    "cp1251",
    "cp1252",
    "iso-8859-1",
    "iso-8859-2",
    "iso-8859-15",
    "shift_jis",
    "gb18030",
]
SourceFormat = Literal["auto", "parquet", "orc", "csv", "jsonl", "arrow"]
Unfit = Literal["error", "replace", "drop"]
Formulas = Literal["guard", "allow"]
Value = str | int | float | bool | None

SHEET_ROWS_MAX = 1_048_576
SHEET_COLUMNS_MAX = 16_384
CELL_CHARACTERS_MAX = 32_767
SHEET_NAME_MAX = 31
SHEET_NAME_REFUSED = frozenset("[]:*?/\\")


LISTS = frozenset({"sources", "columns", "filter", "sort", "companions", "tables"})


class _Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base of an order's parts. A value of another type or out of range raises InvalidMessage, which names
    the field, in JSON and in Python. In Python a list may stand for a tuple."""

    def __post_init__(self) -> None:
        for field in LISTS & {*self.__struct_fields__}:
            if isinstance(given := getattr(self, field), list):
                msgspec.structs.force_setattr(self, field, tuple(given))
        for field, text in faults(self):
            raise InvalidMessage(f"{field} {text}", field)


class Column(_Part, frozen=True):
    """A column of the report.

    ``source``: its name in the source; ``title``: its header, by default the same.
    ``decimals``: digits after the point of a float or a decimal (rounded half to even).
    ``pattern``: the strftime pattern of a date, time or timestamp in CSV.
    ``number_format``: the cell format in XLSX, such as ``#,##0.00``; ``width``: its width there, in
    characters.
    """

    source: str  # of any length: sources name their columns as they like
    title: str | None = None
    decimals: Annotated[int, Meta(ge=0, le=15)] | None = None
    pattern: Text | None = None
    number_format: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    width: Annotated[float, Meta(gt=0, le=255)] | None = None


class Condition(_Part, frozen=True):
    """A condition on rows. ``value`` is read as the column's type; it is a list for ``in`` and ``not in``,
    and absent for ``is null`` and ``is not null``. A null fulfils no other condition."""

    column: Text
    op: Literal["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null"]
    value: Value | list[Value] = None


class Sort(_Part, frozen=True):
    """A sort key. Nulls come last in both directions; equal rows keep their order."""

    column: Text
    descending: bool = False


class Table(_Part, frozen=True):
    """The content of a CSV file, or of one sheet of a workbook: the sources, and the wanted columns and rows.

    ``sources``: URLs of files (``file``, ``s3``, ``http``, ``https``, or a path), read one after the other. A
    URL that ends with ``/`` is a dataset: all data files below it, by name, with ``key=value`` folders as
    columns of text. A URL that ends with ``*`` is a prefix of files' names.
    ``columns``: in the order written; by default all.
    ``types``: of columns of CSV and JSON lines, such as ``{"n": "int64", "p": "decimal(12,2)"}``. By default
    a column of CSV is text, and one of JSON lines has the type of its first values.
    ``delimiter``: of CSV sources.
    ``drift``: the rule for files whose columns differ. ``merge`` takes the wider type, and null for a missing
    column.
    ``credentials``: name of the secret that opens the sources; by default from the environment.
    """

    sources: Annotated[tuple[Text, ...], Meta(min_length=1)]
    source_format: SourceFormat = "auto"
    name: str = "Report"
    columns: tuple[Column, ...] = ()
    filter: tuple[Condition, ...] = ()
    sort: tuple[Sort, ...] = ()
    types: dict[str, str] = {}
    delimiter: Byte = ","
    drift: Literal["refuse", "merge"] = "refuse"
    credentials: str | None = None


class Csv(_Part, frozen=True, tag_field="type", tag="csv"):
    """CSV. Patterns are strftime's; ``%.f`` writes the fraction of a second, if it isn't zero.

    ``unfit``: the rule for characters that the encoding lacks, for NUL, and for bytes that aren't text.
    ``formulas``: ``guard`` puts an apostrophe before text that a spreadsheet would compute.
    """

    delimiter: Byte = ","
    quote: Byte = '"'
    quoting: Literal["minimal", "all", "strings", "never"] = "minimal"
    header: bool = True
    null_text: Annotated[str, Meta(max_length=64)] = ""
    encoding: Encoding = "utf-8"
    unfit: Unfit = "error"
    line_end: Literal["\n", "\r\n"] = "\n"
    decimal_separator: Literal[".", ","] = "."
    thousands_separator: Literal["", ",", ".", " ", "'", "\u00a0", "\u202f"] = ""
    date_pattern: Text = "%Y-%m-%d"
    time_pattern: Text = "%H:%M:%S%.f"
    timestamp_pattern: Text = "%Y-%m-%dT%H:%M:%S%.f"
    zoned_pattern: Text = "%Y-%m-%dT%H:%M:%S%.f%:z"
    true_text: Annotated[str, Meta(max_length=64)] = "true"
    false_text: Annotated[str, Meta(max_length=64)] = "false"
    nan_text: Annotated[str, Meta(max_length=64)] = "NaN"
    infinity_text: Annotated[str, Meta(max_length=64)] = "inf"
    binary: Literal["base64", "hex"] = "base64"
    formulas: Formulas = "guard"
    compression: Literal["none", "gzip", "zip", "zstd"] = "none"
    compression_level: Annotated[int, Meta(ge=1, le=9)] = 1


class Xlsx(_Part, frozen=True, tag_field="type", tag="xlsx"):
    """An Excel workbook.

    ``rows_per_sheet``: with the header. ``overflow``: the rule for more rows: further ``sheets`` or
    ``files``, each with the header again, or ``refuse``.
    ``long_text``: the rule for texts of more than 32,767 characters; ``long_numbers``: for numbers of more
    than 15 digits, which Excel would round. ``unfit``: for characters that XML lacks, and for bytes that
    aren't text.
    ``formulas``: text is always written as text; ``guard`` also marks text that looks like a formula, so that
    it stays text when a user edits the cell.
    """

    header: bool = True
    freeze_header: bool = True
    rows_per_sheet: Annotated[int, Meta(ge=2, le=SHEET_ROWS_MAX)] = SHEET_ROWS_MAX
    overflow: Literal["sheets", "files", "refuse"] = "sheets"
    long_text: Literal["error", "cut"] = "error"
    long_numbers: Literal["text", "number", "error"] = "text"
    unfit: Unfit = "error"
    date_format: Annotated[str, Meta(min_length=1, max_length=255)] = "yyyy-mm-dd"
    time_format: Annotated[str, Meta(min_length=1, max_length=255)] = "hh:mm:ss"
    timestamp_format: Annotated[str, Meta(min_length=1, max_length=255)] = "yyyy-mm-dd hh:mm:ss"
    duration_format: Annotated[str, Meta(min_length=1, max_length=255)] = "[h]:mm:ss"
    binary: Literal["base64", "hex"] = "base64"
    formulas: Formulas = "guard"
    compression_level: Annotated[int, Meta(ge=1, le=9)] = 1


class ReportDelivery(_Part, frozen=True):
    """The destination of the files, and how they are delivered there.

    ``destination``: the URL of the customer's root; ``credentials``: the *name* of the secret that opens it.
    ``companions``: small files beside each file, such as ``.ok`` once it is complete.
    """

    destination: Text
    credentials: str | None = None
    companions: tuple[Literal["ok", "md5", "sha256"], ...] = ()
    options: dict[str, str | int | bool] = {}


class ReportOrder(_Part, frozen=True):
    """One report to publish.

    ``customer``, ``report``: for names, limits and the audit.
    ``name``: the template of the remote name, relative to the destination; see :mod:`.names`.
    ``date``: the report's day; by default the day of the order, in ``time_zone``.
    ``time_zone``: the customer's, for the date in the name and for all timestamps with a zone.
    ``empty``: the delivery of a result without rows: a file with a header only, or nothing.
    """

    customer: Text
    report: Text
    tables: Annotated[tuple[Table, ...], Meta(min_length=1, max_length=255)]
    name: Text
    format: Csv | Xlsx = msgspec.field(default_factory=Csv)
    date: dt.date | None = None
    time_zone: str = "UTC"
    empty: Literal["header", "nothing"] = "header"
    delivery: ReportDelivery | None = None


_AT_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)


def plain_json(body: bytes) -> object:
    """Decode a JSON body. Raises InvalidMessage."""
    try:
        return decode_json(body)
    except ValueError as error:
        raise InvalidMessage(f"the order isn't JSON: {error}", "order") from error


def from_plain(plain: object) -> ReportOrder:
    """Return the checked order of a decoded body. Raises InvalidMessage that names the field."""
    try:
        order = msgspec.convert(plain, ReportOrder)
    except msgspec.ValidationError as error:
        found = _AT_PATH.match(str(error))
        assert found is not None
        field = found["path"] or "order"
        raise InvalidMessage(f"{field}: {found['what']}", field) from error
    check(order)
    return order


def encode(order: ReportOrder) -> bytes:
    """Return the order as JSON, without defaults. Raises InvalidMessage for values that JSON can't hold."""
    try:
        return write_json(order)
    except ValueError as error:
        raise InvalidMessage(f"the order can't be written as JSON: {error}", "order") from None


def check(order: ReportOrder) -> None:
    """Check the rules that types can't express. Raises InvalidMessage that names the field."""
    for field, text in _faults(order):
        raise InvalidMessage(f"{field}: {text}", field)


def _faults(order: ReportOrder) -> Iterator[tuple[str, str]]:
    try:
        check_key(order.customer, "customer")
    except InvalidMessage as error:
        yield "customer", str(error)
    try:
        ZoneInfo(order.time_zone)
    except (KeyError, ValueError, OSError):
        yield "time_zone", f"{order.time_zone!r} isn't a time zone; give one such as Europe/Berlin"
    if fault := template_fault(order):
        yield "name", fault
    match order.format:
        case Csv():
            if len(order.tables) > 1:
                yield (
                    "tables",
                    "a CSV file holds one table; order a file for each, or XLSX with a sheet for each",
                )
            yield from _csv_faults(order.format)
        case Xlsx():
            yield from _sheet_name_faults(order.tables)
    for at, table in enumerate(order.tables):
        yield from _table_faults(f"tables[{at}]", table)


def _csv_faults(options: Csv) -> Iterator[tuple[str, str]]:
    if options.delimiter in "\r\n\0":
        yield "format.delimiter", "can't be the end of a line, or NUL"
    if options.quote in "\r\n\0" or options.quote == options.delimiter:
        yield "format.quote", "must differ from the delimiter, and can't be the end of a line, or NUL"
    if options.thousands_separator and options.thousands_separator == options.decimal_separator:
        yield "format.thousands_separator", "must differ from the decimal separator"
    if options.quoting == "never" and options.delimiter == options.decimal_separator:
        yield "format.decimal_separator", "is the delimiter too, and nothing is quoted"
    if options.quoting == "never" and options.delimiter == options.thousands_separator:
        yield "format.thousands_separator", "is the delimiter too, and nothing is quoted"
    if options.true_text == options.false_text:
        yield "format.false_text", "must differ from true_text"
    texts = ("null_text", "true_text", "false_text", "nan_text", "infinity_text")
    for name in texts:
        if set(getattr(options, name)) & {options.delimiter, options.quote, "\r", "\n", "\0"}:
            yield f"format.{name}", "can't hold the delimiter, the quote, the end of a line, or NUL"


def _sheet_name_faults(tables: tuple[Table, ...]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for at, table in enumerate(tables):
        field, name = f"tables[{at}].name", table.name
        if not name or len(name) > SHEET_NAME_MAX or set(name) & SHEET_NAME_REFUSED or not name.isprintable():
            yield field, f"a sheet's name has 1 to {SHEET_NAME_MAX} characters, and none of []:*?/\\"
        if name.startswith("'") or name.endswith("'"):
            yield field, "a sheet's name can't begin or end with an apostrophe"
        if name.casefold() in seen:
            yield field, f"there are two sheets {name!r}; name them differently"
        seen.add(name.casefold())


def _table_faults(field: str, table: Table) -> Iterator[tuple[str, str]]:
    for at, source in enumerate(table.sources):
        if "\0" in source:
            yield f"{field}.sources[{at}]", "holds a NUL"
    for at, condition in enumerate(table.filter):
        here = f"{field}.filter[{at}].value"
        if condition.op in ("in", "not in"):
            if not isinstance(condition.value, list) or not condition.value or None in condition.value:
                yield here, f"{condition.op!r} takes a list of values, without null"
        elif condition.op in ("is null", "is not null"):
            if condition.value is not None:
                yield here, f"{condition.op!r} takes no value"
        elif condition.value is None or isinstance(condition.value, list):
            yield here, f"{condition.op!r} takes one value; nulls are found by 'is null'"
