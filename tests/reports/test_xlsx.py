"""XLSX: types kept, limits of sheets and cells, one pass; read back by openpyxl."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import math
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.worksheet.worksheet import Worksheet

from holdfast.errors import InvalidMessage
from holdfast.reports.faults import TooManyRows, UnwritableColumn
from holdfast.reports.formats.cells import letters
from holdfast.reports.order import Column, Table, Xlsx
from holdfast.reports.report import Report
from tests.reports.making import EVERY_TYPE, ORDERED_AT, SLOW, UTC, made, naive, ordered, stored


def workbook(data: bytes) -> openpyxl.Workbook:
    return openpyxl.load_workbook(io.BytesIO(data))


def values(sheet: Worksheet) -> list[list[Any]]:
    return [[cell.value for cell in row] for row in sheet.iter_rows()]


def sheet_of(table: Table | str, **options: Any) -> Worksheet:
    (data,) = made(ordered(table, form=Xlsx(**options)))
    (sheet,) = workbook(data).worksheets
    return sheet


def part(data: bytes, name: str) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(name).decode()


VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [-128, 127],
    "uint64": [0, "18446744073709551615"],
    "int64": ["-9223372036854775808", "9223372036854775807"],
    "float16": [0.5, -2],
    "float32": [0.1, 1e30],
    "float64": [0.1, -1e300],
    "decimal": [-0.5, 12345678.9],
    "decimal38": ["9" * 38, 1],
    "decimal32": [1.5, -2.5],
    "decimal256": ["9" * 60, 1],
    "date32": ["0001-01-01", naive(9999, 12, 31)],
    "date64": [naive(2024, 2, 29), naive(1970, 1, 1)],
    "time": [dt.time(0), naive(1900, 1, 1)],  # which is how openpyxl rounds 23:59:59.999999
    "seconds": [naive(2024, 1, 1, 12), "1900-01-01T00:00:00"],
    "nanoseconds": [naive(1970, 1, 1), naive(2023, 11, 14, 22, 13, 20, 123000)],
    "zoned": [naive(2024, 1, 1, 12), naive(2024, 7, 1, 12, 0, 0, 5000)],
    "duration": [dt.timedelta(hours=25, seconds=1.5), dt.timedelta(0)],
    "string": ["Grüße, „Ω“", ""],
    "large_string": ["a", "b"],
    "string_view": ["a", "longer than twelve bytes"],
    "dictionary": ["x", "y"],
    "binary": ["AP8=", ""],
    "fixed": ["YWJjZA==", "AAECAw=="],
    "list": ["[1,null,3]", "[]"],
    "struct": ['{"d":"2024-01-01","n":1.10}', '{"d":null,"n":null}'],
    "map": ['{"k":1,"l":2}', "{}"],
    "uuid": ["00000000-0000-0000-0000-000000000001", "80000000-0000-0000-0000-000000000000"],
    "null": [None, None],
}


def test_every_type_of_column_is_kept_in_a_workbook(tmp_path: Path) -> None:
    header, *rows = values(sheet_of(stored(tmp_path, EVERY_TYPE, "every.arrow")))
    assert header == EVERY_TYPE.column_names
    rows += [[None] * len(header)] * (3 - len(rows))  # a row of nulls has no cells
    for at, name in enumerate(header):
        assert [_to_the_ms(row[at]) for row in rows] == [*map(_to_the_ms, VALUES[name]), None], name


def _to_the_ms(value: object) -> object:
    """Excel's times are floats; openpyxl rounds them to the millisecond."""
    if isinstance(value, dt.time):
        return round((value.hour * 60 + value.minute) * 60 + value.second + value.microsecond / 1e6, 3)
    return value


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=SLOW)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(
                lambda text: (
                    not re.search("_x[0-9A-Fa-f]{4}_", text)  # openpyxl doesn't read that escape
                    and not {"\ufffe", "\uffff"} & set(text)
                )
            ),
            st.floats(allow_nan=False, allow_infinity=False) | st.none(),
            st.datetimes(naive(1900, 3, 1), naive(9999, 1, 1)) | st.none(),
            st.decimals(-99999, 99999, places=2) | st.none(),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_row_of_a_workbook_is_read_back_unchanged(tmp_path: Path, rows: list[tuple[Any, ...]]) -> None:
    texts, floats, times, decimals = zip(*rows, strict=True)
    source = stored(
        tmp_path,
        {
            "text": texts,
            "float": pa.array(floats, pa.float64()),
            "time": pa.array(times, pa.timestamp("us")),
            "decimal": pa.array(decimals, pa.decimal128(9, 2)),
        },
    )
    for given_row, row in zip(rows, values(sheet_of(source))[1:], strict=True):
        text, number, time, fraction = row
        assert text == given_row[0]
        assert number == given_row[1]
        assert fraction == (None if given_row[3] is None else float(given_row[3]))
        if given_row[2] is None:
            assert time is None
        else:
            assert abs(time - given_row[2]) <= dt.timedelta(milliseconds=1)


# --- texts


def test_texts_keep_what_xml_would_change(tmp_path: Path) -> None:
    texts = [" lead", "trail ", "a\nb", "a\r\nb", "tab\there", "<b>&amp;</b>", "]]>", '"quoted"', "🎉", "'"]
    rows = values(sheet_of(stored(tmp_path, {"t": texts, "u": texts[::-1]})))
    assert [row[0] for row in rows[1:]] == texts


def test_what_looks_like_an_escape_is_escaped(tmp_path: Path) -> None:
    (data,) = made(ordered(stored(tmp_path, {"t": ["a_x0041_b"]}), form=Xlsx()))
    assert "a_x005F_x0041_b" in part(data, "xl/worksheets/sheet1.xml")


def test_control_characters_are_refused_or_dropped(tmp_path: Path) -> None:
    source = stored(tmp_path, {"t": ["a\x01b", "c\0", "\ufffe", "fine"]})
    with pytest.raises(UnwritableColumn, match="'t' holds a control character"):
        sheet_of(source)
    assert [row[0] for row in values(sheet_of(source, unfit="drop"))[1:]] == ["ab", "c", "", "fine"]
    assert [row[0] for row in values(sheet_of(source, unfit="replace"))[1:]] == ["a�b", "c�", "�", "fine"]


def test_a_lone_surrogate_is_no_text(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\3\0\0\0\5\0\0\0"), pa.py_buffer(b"\xed\xa0\x80ok")
    source = stored(tmp_path, {"t": pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])})
    with pytest.raises(UnwritableColumn, match="'t' holds bytes that aren't UTF-8"):
        sheet_of(source)
    assert [row[0] for row in values(sheet_of(source, unfit="replace"))[1:]] == ["\ufffd" * 3, "ok"]
    assert [row[0] for row in values(sheet_of(source, unfit="drop"))[1:]] == ["", "ok"]


@pytest.mark.nightly
def test_three_thousand_columns_are_written(tmp_path: Path) -> None:
    source = stored(tmp_path, {f"c{at}": [at, -at] for at in range(3000)})
    header, numbers, opposites = values(sheet_of(source))
    assert header == [f"c{at}" for at in range(3000)]
    assert numbers == list(range(3000)) == [-number for number in opposites]


def test_texts_longer_than_a_cell_are_refused_or_cut(tmp_path: Path) -> None:
    fits, emoji = "x" * 32_767, "🎉" * 16_383 + "x"
    assert [row[0] for row in values(sheet_of(stored(tmp_path, {"t": [fits, emoji]})))[1:]] == [fits, emoji]
    source = stored(tmp_path, {"t": ["short", fits + "y", emoji + "🎉"]})
    with pytest.raises(UnwritableColumn, match="'t' holds a text of more than 32,767 characters"):
        sheet_of(source)
    assert [row[0] for row in values(sheet_of(source, long_text="cut"))[1:]] == ["short", fits, emoji]


def test_formulas_are_text_and_stay_text_when_edited(tmp_path: Path) -> None:
    texts = ["=1+1", " @x", "+49 30", "plain", None]
    source = stored(tmp_path, {"=a": texts, "n": [-1, -2, -3, -4, -5]})
    sheet = sheet_of(source)
    assert values(sheet) == [["=a", "n"], *([text, -at] for at, text in enumerate(texts, 1))]
    assert all(cell.data_type != "f" for row in sheet.iter_rows() for cell in row)
    assert [sheet.cell(row, 1).quotePrefix for row in range(2, 6)] == [True, True, True, False]
    assert not any(sheet_of(source, formulas="allow").cell(row, 1).quotePrefix for row in range(2, 6))


# --- numbers


def test_numbers_with_more_than_15_digits_are_written_as_text(tmp_path: Path) -> None:
    source = stored(
        tmp_path,
        {
            "i": [999_999_999_999_999, 1_000_000_000_000_000, -1_000_000_000_000_000],
            "d": pa.array(
                [
                    decimal.Decimal("9999999999999.99"),
                    decimal.Decimal("12345678901234.56"),
                    decimal.Decimal("-0.01"),
                ],
                pa.decimal128(20, 2),
            ),
        },
    )
    assert values(sheet_of(source))[1:] == [
        [999_999_999_999_999, 9999999999999.99],
        ["1000000000000000", "12345678901234.56"],
        ["-1000000000000000", -0.01],
    ]
    assert values(sheet_of(source, long_numbers="number"))[2] == [1_000_000_000_000_000, 12345678901234.56]
    with pytest.raises(UnwritableColumn, match="'i' holds a number of more than 15 digits"):
        sheet_of(source, long_numbers="error")


def test_zeros_at_the_end_of_a_fraction_are_no_digits_that_excel_would_round(tmp_path: Path) -> None:
    fractions = ["1234567.5", "-123456789012345", "100", "0", "1234567.123456789"]
    source = stored(
        tmp_path,
        {
            "fraction": pa.array([decimal.Decimal(text) for text in fractions], pa.decimal128(38, 9)),
            "whole": pa.array([decimal.Decimal(10**at) for at in (14, 15, 0, 0, 0)], pa.decimal128(38, 0)),
        },
    )
    assert values(sheet_of(source))[1:] == [
        [1234567.5, 10**14],
        [-123456789012345, "1000000000000000"],
        [100, 1],
        [0, 1],
        ["1234567.123456789", 1],
    ]


def test_numbers_are_rounded_to_the_decimals_of_the_order(tmp_path: Path) -> None:
    source = stored(
        tmp_path,
        {
            "f": [0.125, 2.675, -0.001, 1e300, math.nan, math.inf, None],
            "d": pa.array(
                [decimal.Decimal(f"{n}") for n in ("0.125", "1.995", "-0.001", "0", "1", "9.999", "0")],
                pa.decimal128(20, 3),
            ),
            "wide": pa.array([decimal.Decimal(f"{n}.005") for n in range(7)], pa.decimal256(50, 3)),
        },
    )
    columns = tuple(Column(source=name, decimals=2) for name in ("f", "d", "wide"))
    rows = values(sheet_of(Table(sources=(source,), columns=columns)))[1:]
    assert rows == [
        [0.12, 0.12, 0],
        [2.67, 2.0, 1],
        [0, 0, 2.0],
        [1e300, 0, 3],
        ["NaN", 1, 4.0],
        ["inf", 10, 5],
        [None, 0, 6.0],
    ]
    assert math.copysign(1, rows[2][0]) == 1


def test_digits_that_are_rounded_away_make_no_number_text(tmp_path: Path) -> None:
    numbers = [decimal.Decimal("12345678901234.567"), decimal.Decimal("999999999999999.999")]
    source = stored(tmp_path, {"d": pa.array(numbers, pa.decimal128(18, 3))})
    rounded = Table(sources=(source,), columns=(Column(source="d", decimals=1),))
    assert values(sheet_of(rounded))[1:] == [[12345678901234.6], ["1000000000000000.0"]]


@pytest.mark.parametrize("character", ["\0", "\x1f", "\ufffe"])
def test_control_characters_in_titles_are_refused_or_dropped(tmp_path: Path, character: str) -> None:
    title = Column(source="n", title=f"a{character}b")
    table = Table(sources=(stored(tmp_path, {"n": [1]}),), columns=(title,))
    with pytest.raises(UnwritableColumn, match=r"in the header: .* holds a control character") as refused:
        Report(ordered(table, form=Xlsx()), ordered_at=ORDERED_AT)
    assert character not in str(refused.value)
    assert values(sheet_of(table, unfit="drop")) == [["ab"], [1]]
    assert values(sheet_of(table, unfit="replace")) == [["a\ufffdb"], [1]]
    with Report(ordered(table, form=Xlsx(unfit="drop")), ordered_at=ORDERED_AT) as report:
        for file in report.files():
            assert b"".join(file.chunks)
            assert file.replaced == 1


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_the_first_and_last_days_are_times_too(tmp_path: Path, zone: str) -> None:
    first, last = naive(1, 1, 1, 12), naive(9999, 12, 31, 12)
    table = {
        "t": pa.array([first, last], pa.timestamp("us")),
        "z": pa.array([first, last], pa.timestamp("us", "UTC")),
    }
    (data,) = made(ordered(stored(tmp_path, table), form=Xlsx(), time_zone=zone))
    rows = values(workbook(data).worksheets[0])[1:]
    assert rows[0][0] == "0001-01-01T12:00:00"
    assert rows[0][1].startswith("0001-01-01T")
    assert rows[1][0] == last
    assert (rows[1][1].year, rows[1][1].month, rows[1][1].day) == (9999, 12, 31)


def test_what_excel_has_no_number_for_is_text(tmp_path: Path) -> None:
    source = stored(
        tmp_path,
        {
            "f": [math.nan, math.inf, -math.inf, 0.0],
            "d": [dt.date(1900, 2, 28), dt.date(1900, 3, 1), dt.date(1, 1, 1), None],
            "l": pa.array([-1, 0, 10**6, None], pa.duration("us")),
        },
    )
    assert values(sheet_of(source))[1:] == [
        ["NaN", "1900-02-28", "-PT0.000001S"],
        ["inf", naive(1900, 3, 1), dt.timedelta(0)],
        ["-inf", "0001-01-01", dt.timedelta(seconds=1)],
        [0, None, None],
    ]


def test_times_are_in_the_time_zone_of_the_order(tmp_path: Path) -> None:
    source = stored(
        tmp_path, {"t": pa.array([dt.datetime(2024, 7, 1, 23, tzinfo=UTC)], pa.timestamp("ms", "UTC"))}
    )
    (data,) = made(ordered(source, form=Xlsx(), time_zone="Europe/Berlin"))
    assert values(workbook(data).worksheets[0])[1] == [naive(2024, 7, 2, 1)]


def test_number_formats_and_widths_are_as_ordered(tmp_path: Path) -> None:
    source = stored(
        tmp_path,
        {
            "i": [1],
            "d": pa.array([decimal.Decimal("1.50")], pa.decimal128(9, 2)),
            "f": [0.125],
            "t": ["text that is rather long, so that the column is wide"],
            "day": [dt.date(2024, 1, 1)],
        },
    )
    columns = (
        Column(source="i"),
        Column(source="d"),
        Column(source="d", number_format='#,##0.00 "€"', width=33),
        Column(source="f", decimals=1),
        Column(source="t"),
        Column(source="day"),
    )
    sheet = sheet_of(Table(sources=(source,), columns=columns), date_format="dd.mm.yyyy")
    assert [cell.number_format for cell in sheet[2]] == [
        "0",
        "0.00",
        '#,##0.00 "€"',
        "0.0",
        "General",
        "dd.mm.yyyy",
    ]
    widths = [sheet.column_dimensions[name].width for name in "ABCDEF"]
    assert widths == [8, 8, 33, 8, 54, 12]
    assert sheet.freeze_panes == "A2"
    assert sheet["A1"].font.b
    assert sheet_of(source, freeze_header=False).freeze_panes is None


# --- sheets and files


def test_each_table_has_its_sheet(tmp_path: Path) -> None:
    first, second = (
        stored(tmp_path, {"a": [1]}, "a.parquet"),
        stored(tmp_path, {"b": ["x", "y"]}, "b.parquet"),
    )
    tables = (Table(sources=(first,), name="Über & unter"), Table(sources=(second,), name="O'Neil"))
    (data,) = made(ordered(*tables, form=Xlsx()))
    book = workbook(data)
    assert book.sheetnames == ["Über & unter", "O'Neil"]
    assert [values(sheet) for sheet in book.worksheets] == [[["a"], [1]], [["b"], ["x"], ["y"]]]


def test_more_rows_than_a_sheet_holds(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(25)}, row_group_size=7)
    tables = (Table(sources=(source,), name="x" * 31), Table(sources=(source,), name="X" * 27 + " (2)"))
    (data,) = made(ordered(*tables, form=Xlsx(rows_per_sheet=11)))
    book = workbook(data)
    assert book.sheetnames == [
        "x" * 31,
        "x" * 27 + " (3)",  # (2) is the other table's
        "x" * 27 + " (4)",
        "X" * 27 + " (2)",
        "X" * 27 + " (5)",
        "X" * 27 + " (6)",
    ]
    rolled = [values(sheet) for sheet in book.worksheets[:3]]
    assert [sheet[0] for sheet in rolled] == [["n"]] * 3
    assert [len(sheet) for sheet in rolled] == [11, 11, 6]
    assert [row[0] for sheet in rolled for row in sheet[1:]] == list(range(25))


def test_rows_over_the_limit_of_a_sheet_go_to_more_files(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(25)})
    form = Xlsx(rows_per_sheet=11, overflow="files")
    with Report(ordered(source, form=form, name="{report}.xlsx"), ordered_at=ORDERED_AT) as report:
        files = [(file.name, b"".join(file.chunks), file.rows) for file in report.files()]
    assert [(name, rows) for name, _, rows in files] == [
        ("sales.xlsx", 10),
        ("sales-2.xlsx", 10),
        ("sales-3.xlsx", 5),
    ]
    sheets = [values(workbook(data).worksheets[0]) for _, data, _ in files]
    assert [row[0] for sheet in sheets for row in sheet[1:]] == list(range(25))


def test_a_full_sheet_is_not_split(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(10)})
    for overflow in ("sheets", "files", "refuse"):
        assert len(made(ordered(source, form=Xlsx(rows_per_sheet=11, overflow=overflow)))) == 1
        assert sheet_of(source, rows_per_sheet=11, overflow=overflow).max_row == 11


def test_too_many_rows_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(25)})
    with pytest.raises(TooManyRows, match="more than 11 rows"):
        Report(ordered(source, form=Xlsx(rows_per_sheet=11, overflow="refuse")), ordered_at=ORDERED_AT)


@pytest.mark.slow
def test_too_many_columns_are_refused(tmp_path: Path) -> None:
    wide = stored(tmp_path, {str(at): [at] for at in range(16_385)}, "w.arrow")
    with pytest.raises(InvalidMessage, match=r"16,385 columns.*choose some") as refused:
        Report(ordered(wide, form=Xlsx()), ordered_at=ORDERED_AT)
    assert refused.value.field == "tables[0].columns"


def test_an_empty_result_has_a_header(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": pa.array([], pa.int64())})
    assert values(sheet_of(source)) == [["n"]]
    assert made(ordered(source, form=Xlsx(), empty="nothing")) == []


# --- the file


def test_the_archive_is_sound_and_without_times(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(1000)})
    (data,) = made(ordered(source, form=Xlsx()))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.slow
def test_the_same_order_gives_the_same_bytes(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(50_000), "t": ["x", "=y"] * 25_000}, row_group_size=7_000)
    order = ordered(source, form=Xlsx(rows_per_sheet=20_000))
    assert made(order, threads=1) == made(order, threads=4)


def test_columns_have_the_letters_of_excel() -> None:
    assert [letters(at) for at in (0, 25, 26, 701, 702, 16_383)] == ["A", "Z", "AA", "ZZ", "AAA", "XFD"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("soffice") is None, reason="LibreOffice isn't installed")
def test_libreoffice_reads_every_type_as_it_was_written(tmp_path: Path) -> None:
    table = EVERY_TYPE.drop_columns(["null"])
    (data,) = made(ordered(stored(tmp_path, table, "every.arrow"), form=Xlsx(rows_per_sheet=3)))
    (tmp_path / "every.xlsx").write_bytes(data)
    # As formatted, comma, quote, UTF-8; the last -1: every sheet to a file of its own.
    filters = "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,false,true,false,false,-1"
    command = ["soffice", f"-env:UserInstallation=file://{tmp_path}/profile", "--headless"]
    command += ["--convert-to", filters]
    subprocess.run(
        [*command, "--outdir", str(tmp_path), str(tmp_path / "every.xlsx")], check=True, timeout=300
    )
    rows = list(csv.reader((tmp_path / "every-Report.csv").read_text("utf-8").splitlines()))
    assert rows[0] == table.column_names
    shown = dict(zip(rows[0], rows[1], strict=True))
    for name, text in {
        "bool": "TRUE",
        "int8": "-128",
        "int64": "-9223372036854775808",
        "decimal": "-0.50",
        "decimal38": "9" * 38,
        "date32": "0001-01-01",
        "date64": "2024-02-29",
        "time": "00:00:00",
        "seconds": "2024-01-01 12:00:00",
        "zoned": "2024-01-01 12:00:00",
        "duration": "25:00:01",
        "string": "Grüße, „Ω“",
        "list": "[1,null,3]",
        "map": '{"k":1,"l":2}',
    }.items():
        assert shown[name] == text, name
    assert (tmp_path / "every-Report (2).csv").exists()
