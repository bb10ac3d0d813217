"""CSV: the text of every type, every option, and files that other software reads back equal."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import gzip
import io
import zipfile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidMessage
from holdfast.reports.faults import UnwritableColumn
from holdfast.reports.formats.formulas import looks_like_formula, may_be_formula
from holdfast.reports.order import Column, Csv, Table
from holdfast.reports.report import Report
from tests.reports.making import (
    EVERY_TYPE,
    ORDERED_AT,
    SLOW,
    UTC,
    csv_of,
    made,
    naive,
    ordered,
    read_of,
    stored,
)

TEXTS = {
    "bool": ["true", "false", ""],
    "int8": ["-128", "127", ""],
    "uint64": ["0", "18446744073709551615", ""],
    "int64": ["-9223372036854775808", "9223372036854775807", ""],
    "float16": ["0.5", "-2.0", ""],
    "float32": ["0.1", "1e+30", ""],
    "float64": ["0.1", "-1e+300", ""],
    "decimal": ["-0.50", "12345678.90", ""],
    "decimal38": ["9" * 38, "1", ""],
    "decimal32": ["1.5", "-2.5", ""],
    "decimal256": ["9" * 60, "1", ""],
    "date32": ["0001-01-01", "9999-12-31", ""],
    "date64": ["2024-02-29", "1970-01-01", ""],
    "time": ["00:00:00", "23:59:59.999999", ""],
    "seconds": ["2024-01-01T12:00:00", "1900-01-01T00:00:00", ""],
    "nanoseconds": ["1970-01-01T00:00:00.000000001", "2023-11-14T22:13:20.123456789", ""],
    "zoned": ["2024-01-01T12:00:00+00:00", "2024-07-01T12:00:00.005+00:00", ""],
    "duration": ["P1DT1H1.5S", "PT0S", ""],
    "string": ["Grüße, „Ω“", "", ""],
    "large_string": ["a", "b", ""],
    "string_view": ["a", "longer than twelve bytes", ""],
    "dictionary": ["x", "y", ""],
    "binary": ["AP8=", "", ""],
    "fixed": ["YWJjZA==", "AAECAw==", ""],
    "list": ["[1,null,3]", "[]", ""],
    "struct": ['{"d":"2024-01-01","n":1.10}', '{"d":null,"n":null}', ""],
    "map": ['{"k":1,"l":2}', "{}", ""],
    "uuid": ["00000000-0000-0000-0000-000000000001", "80000000-0000-0000-0000-000000000000", ""],
    "null": ["", "", ""],
}


@pytest.fixture
def every(tmp_path: Path) -> str:
    return stored(tmp_path, EVERY_TYPE, "every.arrow")


def test_every_type_of_column_has_its_text_in_csv(every: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_of(every), newline="")))
    assert rows[0] == EVERY_TYPE.column_names
    assert {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])} == TEXTS


def test_duckdb_reads_back_what_was_written(tmp_path: Path) -> None:
    columns = {
        "bool": "BOOLEAN",
        "int8": "TINYINT",
        "int64": "BIGINT",
        "float64": "DOUBLE",
        "decimal": "DECIMAL(18,2)",
        "date64": "DATE",
        "time": "TIME",
        "seconds": "TIMESTAMP",
        "zoned": "TIMESTAMPTZ",
        "string": "VARCHAR",
    }
    table = EVERY_TYPE.select([*columns])
    source = stored(tmp_path, table)
    written = tmp_path / "out.csv"
    written.write_bytes(made(ordered(source))[0])
    connection = duckdb.connect()
    connection.execute("SET timezone='UTC'")
    back = connection.sql(
        f"SELECT * FROM read_csv('{written}', header=true, columns={columns}, allow_quoted_nulls=false)"
    ).to_arrow_table()
    assert back.cast(table.schema).to_pylist() == table.to_pylist()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers(-5, 5)
        ),
        min_size=1,
    ),
    st.sampled_from(["minimal", "all", "strings"]),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_any_text_in_csv_is_read_back_unchanged(
    tmp_path: Path, rows: list[tuple[str, int]], quoting: Any, delimiter: str
) -> None:
    source = stored(tmp_path, {"text": [text for text, _ in rows], "n": [n for _, n in rows]})
    text = csv_of(source, quoting=quoting, delimiter=delimiter, formulas="allow", line_end="\r\n")
    back = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    assert back == [["text", "n"], *([text, str(n)] for text, n in rows)]


# --- options


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, 'a,b\n"x,""y""",1.5\n,\n'),
        ({"delimiter": ";"}, 'a;b\n"x,""y""";1.5\n;\n'),
        ({"header": False}, '"x,""y""",1.5\n,\n'),
        ({"quote": "'"}, "a,b\n'x,\"y\"',1.5\n,\n"),
        ({"quoting": "all"}, '"a","b"\n"x,""y""","1.5"\n"",""\n'),
        ({"quoting": "strings"}, '"a","b"\n"x,""y""",1.5\n,\n'),
        ({"null_text": "NULL"}, 'a,b\n"x,""y""",1.5\nNULL,NULL\n'),
        ({"line_end": "\r\n"}, 'a,b\r\n"x,""y""",1.5\r\n,\r\n'),
        ({"delimiter": ";", "decimal_separator": ","}, 'a;b\n"x,""y""";1,5\n;\n'),
        ({"decimal_separator": ","}, 'a,b\n"x,""y""","1,5"\n,\n'),
    ],
)
def test_delimiters_and_quotes_are_as_ordered(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    assert csv_of(stored(tmp_path, {"a": ['x,"y"', None], "b": [1.5, None]}), **options) == text


def test_columns_are_chosen_named_and_ordered(tmp_path: Path) -> None:
    source = stored(tmp_path, {"a": [1], "b": [2], "c": [3]})
    columns = (Column(source="c", title="Größe, €"), Column(source="a"), Column(source="c", title=""))
    assert csv_of(Table(sources=(source,), columns=columns)) == '"Größe, €",a,""\n3,1,3\n'


def test_numbers_have_the_marks_and_decimals_of_the_order(tmp_path: Path) -> None:
    source = stored(
        tmp_path,
        {
            "i": [1234567, -999, 0],
            "f": [1234567.125, -0.005, 1e20],
            "d": pa.array(
                [decimal.Decimal("-1234567.125"), decimal.Decimal("0.125"), None], pa.decimal128(12, 3)
            ),
        },
    )
    columns = (Column(source="i"), Column(source="f", decimals=2), Column(source="d", decimals=2))
    table = Table(sources=(source,), columns=columns)
    assert (
        csv_of(table, header=False)
        == "1234567,1234567.12,-1234567.12\n-999,-0.01,0.12\n0,100000000000000000000.00,\n"
    )
    assert csv_of(table, header=False, delimiter=";", decimal_separator=",", thousands_separator=".") == (
        "1.234.567;1.234.567,12;-1.234.567,12\n-999;-0,01;0,12\n0;100.000.000.000.000.000.000,00;\n"
    )
    assert csv_of(table, header=False, delimiter=";", decimal_separator=",") == (
        "1234567;1234567,12;-1234567,12\n-999;-0,01;0,12\n0;100000000000000000000,00;\n"
    )


def test_what_is_rounded_to_zero_has_no_sign(tmp_path: Path) -> None:
    numbers = {
        "f": [-0.001, -0.0, 0.001],
        "d": pa.array([decimal.Decimal("-0.001")] * 3, pa.decimal128(9, 3)),
        "wide": pa.array([decimal.Decimal("-0.001")] * 3, pa.decimal256(60, 3)),
    }
    columns = tuple(Column(source=name, decimals=2) for name in numbers)
    text = csv_of(Table(sources=(stored(tmp_path, numbers),), columns=columns), header=False)
    assert text == "0.00,0.00,0.00\n" * 3


def test_decimals_of_more_digits_than_128_bits_hold_are_numbers(tmp_path: Path) -> None:
    numbers = [decimal.Decimal("-1.50"), decimal.Decimal("1234567.005"), decimal.Decimal("9" * 60), None]
    source = stored(tmp_path, {"n": pa.array(numbers, pa.decimal256(70, 3))})
    assert csv_of(source) == f"n\n-1.500\n1234567.005\n{'9' * 60}.000\n\n"
    rounded = Table(sources=(source,), columns=(Column(source="n", decimals=2),))
    assert csv_of(rounded) == f"n\n-1.50\n1234567.00\n{'9' * 60}.00\n\n"
    marks = {"decimal_separator": ",", "delimiter": ";", "header": False}
    assert csv_of(rounded, **marks) == f"-1,50\n1234567,00\n{'9' * 60},00\n\n"
    grouped = csv_of(rounded, thousands_separator=".", **marks)
    assert grouped == f"-1,50\n1.234.567,00\n{'.'.join(['999'] * 20)},00\n\n"
    assert csv_of(read_of(source, where=(("n", "<", 100),)), header=False) == "-1.500\n"


@pytest.mark.parametrize(
    "number, scale, decimals, text",
    [
        ("9" * 36 + ".99", 2, 1, "1" + "0" * 36 + ".0"),
        ("-" + "9" * 36 + ".99", 2, 5, "-" + "9" * 36 + ".99000"),
        ("0." + "9" * 38, 38, 0, "1"),
        ("0." + "0" * 37 + "5", 38, 15, "0." + "0" * 15),
        ("9" * 38, 0, 2, "9" * 38 + ".00"),
    ],
)
def test_decimals_at_their_limits_are_rounded(
    tmp_path: Path, number: str, scale: int, decimals: int, text: str
) -> None:
    source = stored(tmp_path, {"n": pa.array([decimal.Decimal(number)], pa.decimal128(38, scale))})
    table = Table(sources=(source,), columns=(Column(source="n", decimals=decimals),))
    assert csv_of(table, header=False) == f"{text}\n"


def test_short_floats_have_the_shortest_text(tmp_path: Path) -> None:
    halves = [0.1, -0.3333, 2050.0, 65504.0, float("nan"), None]
    table = {
        "half": pa.array(halves, pa.float16()),
        "halves": pa.array([[0.1, None]] * 6, pa.list_(pa.float16())),
        "singles": pa.array([[0.1, 16777216.0, float("inf")]] * 6, pa.list_(pa.float32())),
    }
    rows = list(csv.reader(io.StringIO(csv_of(stored(tmp_path, table), header=False))))
    assert [row[0] for row in rows] == ["0.1", "-0.3333", "2050.0", "65504.0", "NaN", ""]
    assert rows[0][1:] == ["[0.1,null]", "[0.1,16777216.0,null]"]
    assert csv_of(read_of(f"{tmp_path}/t.parquet", where=(("half", "=", 0.1),))).count("\n") == 2


def test_a_nul_in_a_title_is_refused_as_such(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": [1]})
    table = Table(sources=(source,), columns=(Column(source="n", title="a\0b"),))
    with pytest.raises(UnwritableColumn, match=r"in the header: .* holds a NUL"):
        csv_of(table)
    assert csv_of(table, unfit="drop") == "ab\n1\n"


def test_maps_with_a_key_twice_and_structs_with_a_field_twice_are_refused(tmp_path: Path) -> None:
    twice = pa.array([[("k", 1), ("l", 2)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(UnwritableColumn, match="'m' holds a map with a key twice"):
        csv_of(stored(tmp_path, {"m": twice}))
    fields = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), fields)
    with pytest.raises(UnwritableColumn, match=r"'s' is of type .* two fields have one name"):
        csv_of(stored(tmp_path, {"s": lists}))


def test_numbers_have_no_quotes_where_only_strings_have_them(tmp_path: Path) -> None:
    table = {
        "f": [-1234.5, float("nan"), None],
        "i": [1234, -5, None],
        "d": pa.array([decimal.Decimal("1234.5"), decimal.Decimal(-1), None], pa.decimal256(50, 1)),
        "t": ['a"b', "", None],
        "b": [True, False, None],
    }
    columns = (Column(source="f", decimals=1), *(Column(source=name) for name in ("i", "d", "t", "b")))
    text = Table(sources=(stored(tmp_path, table),), columns=columns)
    assert csv_of(text, quoting="strings", null_text="-") == (
        '"f","i","d","t","b"\n-1234.5,1234,1234.5,"a""b","true"\nNaN,-5,-1.0,"","false"\n-,-,-,-,-\n'
    )
    marks = {"delimiter": ";", "decimal_separator": ",", "header": False}
    assert csv_of(text, quoting="strings", thousands_separator=".", **marks) == (
        '-1.234,5;1.234;1.234,5;"a""b";"true"\nNaN;-5;-1,0;"";"false"\n;;;;\n'
    )
    assert csv_of(text, quoting="strings", decimal_separator=",", header=False) == (
        '"-1234,5",1234,"1234,5","a""b","true"\nNaN,-5,"-1,0","","false"\n,,,,\n'
    )


def test_nan_and_infinity_have_a_text(tmp_path: Path) -> None:
    source = stored(tmp_path, {"f": [float("nan"), float("inf"), float("-inf"), -1234567.5, None]})
    assert csv_of(source, header=False) == "NaN\ninf\n-inf\n-1234567.5\n\n"
    marks = {"delimiter": ";", "decimal_separator": ",", "header": False}
    texts = {"nan_text": "-", "infinity_text": "INF"}
    assert csv_of(source, **texts, **marks) == "-\nINF\n-INF\n-1234567,5\n\n"
    assert csv_of(source, thousands_separator=".", **marks) == "NaN\ninf\n-inf\n-1.234.567,5\n\n"


def test_booleans_and_nulls_have_the_texts_of_the_order(tmp_path: Path) -> None:
    source = stored(tmp_path, {"b": [True, False, None]})
    assert csv_of(source, true_text="ja", false_text="nein", null_text="?") == "b\nja\nnein\n?\n"


def test_times_in_the_customers_zone_and_pattern(tmp_path: Path) -> None:
    summer = dt.datetime(2024, 3, 31, 1, 0, tzinfo=UTC)  # the hour that Berlin lacks
    table = {
        "at": pa.array([summer, summer - dt.timedelta(seconds=1)], pa.timestamp("ms", "America/New_York")),
        "naive": pa.array([naive(2024, 3, 31, 1)] * 2, pa.timestamp("ms")),
        "day": [dt.date(2024, 3, 31)] * 2,
    }
    source = stored(tmp_path, table)
    columns = (Column(source="at"), Column(source="naive"), Column(source="day", pattern="%d. %B %Y"))
    order = ordered(
        Table(sources=(source,), columns=columns), form=Csv(header=False), time_zone="Europe/Berlin"
    )
    assert made(order)[0].decode() == (
        "2024-03-31T03:00:00+02:00,2024-03-31T01:00:00,31. March 2024\n"
        "2024-03-31T01:59:59+01:00,2024-03-31T01:00:00,31. March 2024\n"
    )
    patterns = {"zoned_pattern": "%d.%m.%Y %H:%M %Z", "timestamp_pattern": "%s", "date_pattern": "%j"}
    assert csv_of(source, header=False, **patterns).splitlines()[0] == "31.03.2024 01:00 UTC,1711846800,091"


@pytest.mark.parametrize(
    "options, column, field",
    [
        ({"date_pattern": "%H:%M"}, Column(source="d"), "format.date_pattern"),
        ({"date_pattern": "%Q"}, Column(source="d"), "format.date_pattern"),
        ({"time_pattern": "%Y"}, Column(source="t"), "format.time_pattern"),
        ({}, Column(source="d", pattern="%:z"), "tables[0].columns[0].pattern"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused(
    tmp_path: Path, options: dict[str, Any], column: Column, field: str
) -> None:
    source = stored(tmp_path, {"d": [dt.date(2024, 1, 1)], "t": [dt.time(1)]})
    with pytest.raises(InvalidMessage) as refused:
        csv_of(Table(sources=(source,), columns=(column,)), **options)
    assert refused.value.field == field


def test_columns_with_only_nulls_are_written(tmp_path: Path) -> None:
    assert csv_of(stored(tmp_path, {"a": pa.nulls(3), "b": pa.nulls(3)})) == "a,b\n,\n,\n,\n"
    assert csv_of(stored(tmp_path, {"a": pa.nulls(3, pa.date32())}), null_text="-") == "a\n-\n-\n-\n"
    assert csv_of(stored(tmp_path, {"a": pa.nulls(3)}), null_text="-") == "a\n-\n-\n-\n"


# --- encodings


def test_a_csv_file_has_the_encoding_that_is_ordered(tmp_path: Path) -> None:
    source = stored(tmp_path, {"text": ["Grüße €"] * 3})
    for encoding, mark, codec in (
        ("utf-8", b"", "utf-8"),
        ("utf-8-bom", b"\xef\xbb\xbf", "utf-8"),
        ("utf-16", b"\xff\xfe", "utf-16-le"),
        ("cp1252", b"", "cp1252"),
        ("iso-8859-15", b"", "iso-8859-15"),
        ("gb18030", b"", "gb18030"),
    ):
        (data,) = made(ordered(source, form=Csv(encoding=encoding)))  # type: ignore[arg-type]
        assert data == mark + ("text\n" + "Grüße €\n" * 3).encode(codec), encoding


def test_characters_that_the_encoding_lacks_are_refused_or_replaced(tmp_path: Path) -> None:
    source = stored(tmp_path, {"id": [1, 2], "text": ["a→b", "Łódź\0"]})
    with pytest.raises(UnwritableColumn, match="'text' holds a NUL") as refused:
        csv_of(source, encoding="cp1252")
    assert refused.value.column == "text"
    (data,) = made(ordered(source, form=Csv(encoding="cp1252", unfit="replace")))
    assert data == b"id,text\n1,a?b\n2,?\xf3d??\n"
    (data,) = made(ordered(source, form=Csv(encoding="cp1252", unfit="drop")))
    assert data == b"id,text\n1,ab\n2,\xf3d\n"
    with pytest.raises(UnwritableColumn, match="'text' holds '→', which cp1252 lacks"):
        csv_of(stored(tmp_path, {"id": [1], "text": ["→"]}), encoding="cp1252")


def test_characters_that_the_encoding_lacks_are_replaced_and_counted(tmp_path: Path) -> None:
    source = stored(tmp_path, {"text": ["→→", "a\0", "fine"]})
    with Report(
        ordered(source, form=Csv(encoding="cp1252", unfit="replace")), ordered_at=ORDERED_AT
    ) as report:
        for file in report.files():
            assert b"".join(file.chunks) == b"text\n??\na?\nfine\n"
            assert file.replaced == 3
            assert file.rows == 3


def test_a_lone_surrogate_is_no_text(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\3\0\0\0\5\0\0\0"), pa.py_buffer(b"\xed\xa0\x80ok")
    source = stored(tmp_path, {"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])})
    with pytest.raises(UnwritableColumn, match="'text' holds bytes that aren't UTF-8"):
        csv_of(source)
    assert csv_of(source, unfit="replace") == "text\n���\nok\n"
    assert csv_of(source, unfit="drop") == 'text\n""\nok\n'


# --- formulas


FORMULAS = [
    "=1+1",
    " =1",
    "+49 30",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "\u00a0=1",
    "'=1",
    "\ufeff=1",
    "\u2060=1",
    "\u00ad\u200e+1",
    "\ufe0f-1",
    "\u3164@A1",
    "\x01=1",
]


def test_text_that_a_spreadsheet_would_compute_is_guarded(tmp_path: Path) -> None:
    source = stored(
        tmp_path,
        {"=title": FORMULAS, "d": pa.array(FORMULAS).dictionary_encode(), "n": [-1.5] * len(FORMULAS)},
    )
    rows = list(csv.reader(io.StringIO(csv_of(source), newline="")))
    assert rows[0] == ["'=title", "d", "n"]
    assert rows[1:] == [[f"'{text}", f"'{text}", "-1.5"] for text in FORMULAS]
    assert csv_of(source, formulas="allow").startswith("=title,d,n\n=1+1,=1+1,-1.5\n")


def test_harmless_text_stays_as_it_is(tmp_path: Path) -> None:
    harmless = ["a=b", "1-1", "mail@host", "it's", "", " ", "ok\t", "ümlaut"]
    back = list(csv.reader(io.StringIO(csv_of(stored(tmp_path, {"t": harmless, "n": harmless})), newline="")))
    assert back[1:] == [[text, text] for text in harmless]


def test_a_formula_behind_a_dropped_nul_is_guarded(tmp_path: Path) -> None:
    assert csv_of(stored(tmp_path, {"t": ["\0=1"]}), unfit="drop") == "t\n'=1\n"


@pytest.mark.slow
def test_the_quick_test_for_formulas_misses_none() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = pl.DataFrame({"t": [*every, *(f"{character}=1" for character in every), ""]})
    column = pl.col("t")
    assert texts.filter(looks_like_formula(column) & ~may_be_formula(column)).is_empty()
    assert not texts.filter(column.is_in(["", "z", "7", "A=1", "a"]), may_be_formula(column)).height


# --- compression


@pytest.mark.slow
def test_compressed_files_unpack_to_the_same_bytes(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": range(300_000), "text": [f"row {n} of many" for n in range(300_000)]})
    plain = csv_of(source).encode()
    (data,) = made(ordered(source, form=Csv(compression="gzip")))
    assert gzip.decompress(data) == plain
    (data,) = made(ordered(source, form=Csv(compression="zstd")))
    assert pa.CompressedInputStream(pa.BufferReader(data), "zstd").read() == plain
    (data,) = made(ordered(source, form=Csv(compression="zip"), name="{report}.csv.zip"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["sales.csv"]
        assert archive.read("sales.csv") == plain
        assert len(data) < len(plain) / 3


@pytest.mark.parametrize("compression", ["none", "gzip", "zip", "zstd"])
def test_the_same_order_gives_the_same_bytes(tmp_path: Path, compression: Any) -> None:
    source = stored(tmp_path, {"n": range(100_000)}, row_group_size=7_000)
    order = ordered(source, form=Csv(compression=compression))
    assert made(order, threads=1) == made(order, threads=4)


# --- refusals


def test_without_quotes_nothing_may_need_them(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": [1, 2], "t": ["fine", "a,b"]})
    with pytest.raises(UnwritableColumn, match="'t' holds a delimiter"):
        csv_of(source, quoting="never")
    assert csv_of(source, quoting="never", delimiter="|") == "n|t\n1|fine\n2|a,b\n"


def test_without_quotes_no_pattern_of_dates_may_need_them(tmp_path: Path) -> None:
    source = stored(tmp_path, {"d": [dt.date(2026, 1, 2)]})
    with pytest.raises(InvalidMessage, match="date_pattern: '%d,%m' holds a delimiter"):
        csv_of(source, quoting="never", date_pattern="%d,%m")
    with pytest.raises(InvalidMessage, match="date_pattern: '%F' holds a delimiter"):
        csv_of(source, quoting="never", date_pattern="%F", delimiter="-")
    assert csv_of(source, quoting="never", date_pattern="%d.%m") == "d\n02.01\n"


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([-(2**31)], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.int64()).cast(pa.timestamp("us")),
        pa.array([-(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("ms", "UTC")),
    ],
)
def test_times_beyond_the_calendar_are_refused(tmp_path: Path, array: pa.Array) -> None:
    with pytest.raises(UnwritableColumn, match="'t' holds a time before the year 1 or after 9999"):
        made(ordered(stored(tmp_path, {"t": array}), time_zone="Europe/Berlin"))


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_first_and_last_moments_of_the_calendar_have_a_text(tmp_path: Path, unit: Any) -> None:
    moments = [naive(1, 1, 1), naive(9999, 12, 31, 23, 59, 59)]
    table = {
        "t": pa.array(moments, pa.timestamp(unit)),
        "z": pa.array(moments, pa.timestamp(unit, "UTC")),
    }
    source = stored(tmp_path, table)
    assert csv_of(source) == (
        "t,z\n0001-01-01T00:00:00,0001-01-01T00:00:00+00:00\n9999-12-31T23:59:59,9999-12-31T23:59:59+00:00\n"
    )
    with pytest.raises(UnwritableColumn, match=r"'z' .* after 9999 in Europe/Berlin"):
        made(ordered(source, time_zone="Europe/Berlin"))
    with pytest.raises(UnwritableColumn, match=r"'z' .* before the year 1 .* in America/New_York"):
        made(ordered(source, time_zone="America/New_York"))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[2**61]], pa.list_(pa.timestamp("us"))),
        pa.array([[2**62]], pa.list_(pa.duration("s"))),
        pa.array([2**62], pa.duration("s")),
        pa.array([2**62], pa.timestamp("s")),
    ],
)
def test_times_that_are_too_large_name_their_column(tmp_path: Path, array: pa.Array) -> None:
    with pytest.raises(UnwritableColumn, match=r"'far' holds a .* that can't be written"):
        csv_of(stored(tmp_path, {"far": array}, "t.arrow"))


@pytest.mark.parametrize("zone", ["+05:30", "Z", "Asia/Kathmandu", "America/Nowhere"])
def test_times_of_any_zone_are_written_in_that_of_the_order(tmp_path: Path, zone: str) -> None:
    moments = pa.array([0, None], pa.timestamp("ms", zone))
    source = stored(tmp_path, {"t": moments, "l": pa.array([[0], None], pa.list_(pa.timestamp("ns", zone)))})
    assert made(ordered(read_of(source, where=(("t", "is not null", None),)))) == [
        b't,l\n1970-01-01T00:00:00+00:00,"[""1970-01-01T00:00:00Z""]"\n'
    ]
    order = ordered(source, time_zone="Europe/Berlin", form=Csv(header=False))
    assert made(order) == [b'1970-01-01T01:00:00+01:00,"[""1970-01-01T01:00:00+01:00""]"\n,\n']


def test_a_zone_that_only_some_machines_know_is_refused(tmp_path: Path) -> None:
    source = stored(tmp_path, {"t": pa.array([0], pa.timestamp("ms", "UTC"))})
    with pytest.raises(InvalidMessage, match="time_zone: 'Factory' isn't a time zone"):
        made(ordered(source, time_zone="Factory"))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
    ],
)
def test_a_type_without_text_is_refused_before_anything_is_sent(tmp_path: Path, array: pa.Array) -> None:
    source = stored(tmp_path, {"odd": array}, "t.arrow")
    with pytest.raises(UnwritableColumn, match=r"'odd' is of type|'odd' holds values") as refused:
        Report(ordered(source), ordered_at=ORDERED_AT)
    assert refused.value.column == "odd"


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati"]
)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_from_tables_are_those_of_the_calendar(tmp_path: Path, zone: str, unit: Any) -> None:
    """Times are written from tables where that can be; Python's calendar must say the same."""
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    edges = [-2_208_988_800, -1, 0, 951_782_400, 1_711_846_800, 4_000_000_000, -5_000_000_000]
    ticks = [edge * scale + more for edge in edges for more in (0, 1, scale // 2)]
    if unit == "us":
        ticks += [2**50 // 3 * n for n in range(-10, 11)]
    source = stored(
        tmp_path,
        {
            "zoned": pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, "UTC")),
            "day": pa.array([tick // scale // 86_400 for tick in ticks], pa.int32()).cast(pa.date32()),
        },
    )
    form = Csv(header=False, zoned_pattern="%d.%m.%Y %I-%M-%S%.f%:z", date_pattern="%a %j")
    (data,) = made(ordered(source, form=form, time_zone=zone))
    for tick, line in zip(ticks, data.decode().splitlines(), strict=True):
        nanoseconds = tick % scale * (10**9 // scale)
        utc = dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=tick // scale)
        local = utc.astimezone(ZoneInfo(zone))
        fraction = f".{nanoseconds:09}".removesuffix("000").removesuffix("000") if nanoseconds else ""
        offset = round(local.utcoffset().total_seconds() / 60)  # type: ignore[union-attr]
        shown = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
        expected = f"{local:%d.%m.%Y %I-%M-%S}{fraction}{shown}"
        assert line == f"{expected},{utc:%a %j}"


@pytest.mark.nightly
def test_three_thousand_columns_are_written(tmp_path: Path) -> None:
    wide = pa.table({f"c{at}": [at, None] for at in range(3000)})
    lines = csv_of(stored(tmp_path, wide)).splitlines()
    assert lines[1] == ",".join(str(at) for at in range(3000))
    assert lines[2] == "," * 2999
