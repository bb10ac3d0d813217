"""Sources: every format, chosen rows, datasets whose files differ, and files that are damaged."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import gzip
import http.server
import itertools
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InvalidMessage, Unavailable
from holdfast.reports.faults import UnreadableSource
from holdfast.reports.order import Column, Condition, Csv, Sort, Table, Xlsx
from holdfast.reports.report import Report
from holdfast.reports.sources import places
from holdfast.reports.sources import table as tables
from holdfast.reports.sources.http import READ_AHEAD_BYTES, REDIRECTS_MAX, HttpFile
from holdfast.reports.sources.places import check_root, is_below
from tests.reports.making import ORDERED_AT, csv_of, made, naive, ordered, read_of, stored

ROWS = pa.table({"n": [1, 2, 3], "t": ["a", None, "c,d"]})
UUIDS = [uuid.UUID(int=at << 100) for at in (1, 2, 3)]
TEXT = 'n,t\n1,a\n2,\n3,"c,d"\n'


# --- formats


def test_parquet_with_many_row_groups_is_read(tmp_path: Path) -> None:
    assert csv_of(stored(tmp_path, ROWS, row_group_size=1)) == TEXT


def test_an_orc_file_is_read_as_a_source(tmp_path: Path) -> None:
    assert csv_of(stored(tmp_path, ROWS, "t.orc")) == TEXT


@pytest.mark.parametrize("kind", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_and_streams_are_read(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "t.arrow"
    with pa.OSFile(str(path), "wb") as file, kind(file, ROWS.schema) as writer:
        writer.write_table(ROWS, max_chunksize=2)
    assert csv_of(str(path)) == TEXT
    assert csv_of(read_of(str(path), "t")) == 't\na\n\n"c,d"\n'


def test_csv_is_text_unless_types_are_stated(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('\ufeffzip,price,day,empty\n00123,1.50,2024-02-29,""\n,,,\n', "utf-8")
    assert csv_of(str(path)) == 'zip,price,day,empty\n00123,1.50,2024-02-29,""\n,,,\n'
    types = {"price": "decimal(9,3)", "day": "date"}
    assert csv_of(Table(sources=(str(path),), types=types), date_pattern="%d.%m.%y", header=False) == (
        '00123,1.500,29.02.24,""\n,,,\n'
    )


def test_csv_with_another_delimiter_and_newlines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a;b\n"x\ny";2\n')
    assert csv_of(Table(sources=(str(path),), delimiter=";")) == 'a,b\n"x\ny",2\n'
    tabs = tmp_path / "t.tsv"
    tabs.write_text("a\tb\n1\t2\n")
    assert csv_of(str(tabs)) == "a,b\n1,2\n"


def test_a_file_of_json_lines_is_read_as_a_source(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"n": 1, "t": "a", "o": {"k": [1]}}\n{"n": 2, "t": null}\n')
    assert csv_of(str(path)) == 'n,t,o\n1,a,"{""k"":[1]}"\n2,,\n'
    assert csv_of(read_of(str(path), "n", types={"n": "decimal(9,2)"})) == "n\n1.00\n2.00\n"


def test_csv_and_json_packed_by_gzip_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a\n1\n"))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert csv_of(str(tmp_path / "t.csv.gz")) == "a\n1\n"
    assert csv_of(str(tmp_path / "t.jsonl.gz")) == "a\n1\n"


def test_source_format_names_the_format_of_a_file(tmp_path: Path) -> None:
    source = stored(tmp_path, ROWS, "result")
    with pytest.raises(UnreadableSource, match=r"name the format in tables\[0\].source_format"):
        csv_of(source)
    assert csv_of(Table(sources=(source,), source_format="parquet")) == TEXT


def test_timestamps_of_the_oldest_kind_may_be_of_any_year(tmp_path: Path) -> None:
    far = pa.array([naive(9999, 12, 31), naive(1, 1, 1)], pa.timestamp("us"))
    source = stored(tmp_path, {"t": far}, use_deprecated_int96_timestamps=True)
    assert csv_of(source) == "t\n9999-12-31T00:00:00\n0001-01-01T00:00:00\n"


def test_a_column_that_orc_cannot_decode_is_named(tmp_path: Path) -> None:
    far = pa.array([naive(9999, 12, 31)], pa.timestamp("us"))
    source = stored(tmp_path, {"n": [1], "t": far}, "t.orc")
    with pytest.raises(UnreadableSource, match=r"column 't' of .* can't be read: .* out of range"):
        csv_of(source)
    assert csv_of(read_of(source, "n")) == "n\n1\n"


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 9007199254740993}\n{"n": 12345678901234567890}\n',
        '{"n": 0.5}\n{"n": 9007199254740993}\n',
        '{"n": [0.5, 9007199254740993]}\n',
        '{"n": {"m": 0.5}}\n{"n": {"m": -9007199254740993}}\n',
    ],
)
def test_json_lines_with_whole_numbers_that_a_float_would_round_are_refused(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(
        UnreadableSource, match=r"column 'n' of .* round it; state a type in tables\[0\].types"
    ):
        csv_of(str(path))


def test_json_lines_hold_any_number_whose_type_is_stated_or_that_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"n": 9007199254740993, "f": 1e300}\n{"n": 12345678901234567890, "f": 9007199254740992}\n'
    )
    for kind in ("uint64", "decimal(20,0)"):
        table = Table(sources=(str(path),), types={"n": kind})
        assert csv_of(table, header=False) == (
            "9007199254740993,1e+300\n12345678901234567890,9007199254740992.0\n"
        )


def test_timestamps_of_json_lines_keep_their_zone(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"n": 1, "z": null, "t": "2024-01-01 10:00:00", '
        '"l": [{"at": "2024-01-01T00:00:00+02:00"}], "b": null}\n'
        '{"n": 2, "z": "2024-01-01T00:00:00+02:00", "t": null, "l": [], "b": 0.5}\n'
        '{"n": 3, "z": "2024-01-01T00:00:00Z", "t": null, "l": null, "b": 2}\n'
    )
    (data,) = made(ordered(str(path), time_zone="Europe/Berlin"))
    assert data.decode() == (
        "n,z,t,l,b\n"
        '1,,2024-01-01T10:00:00,"[{""at"":""2024-01-01T00:00:00+02:00""}]",\n'
        "2,2023-12-31T23:00:00+01:00,,[],0.5\n"
        "3,2024-01-01T01:00:00+01:00,,,2.0\n"
    )
    stated = read_of(str(path), "z", types={"z": "string"})
    assert csv_of(stated, header=False) == "\n2024-01-01T00:00:00+02:00\n2024-01-01T00:00:00Z\n"


@pytest.mark.parametrize("blank", ["", "\n", "\n\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_an_empty_source_is_a_result_without_rows(tmp_path: Path, name: str, blank: str) -> None:
    path = tmp_path / name
    path.write_text(blank)
    columns = (Column(source="n", title="N"), Column(source="d", decimals=2))
    where = (Condition(column="m", op="=", value="x"),)
    table = Table(sources=(str(path),), columns=columns, types={"d": "decimal(9,2)"}, filter=where)
    assert csv_of(table) == "N,d\n"
    assert made(ordered(table, empty="nothing")) == []
    assert csv_of(str(path)) == ""
    assert made(ordered(str(path), form=Xlsx()))[0].startswith(b"PK")


@pytest.mark.parametrize("name, text", [("2.csv", "n\n1\n"), ("2.jsonl", '{"n": "1"}\n')])
def test_an_empty_file_fits_the_others(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name.replace("2", "1")).touch()
    (tmp_path / name).write_text(text)
    assert csv_of(f"{tmp_path}/") == "n\n1\n"


# --- which files


def test_a_list_is_read_in_its_order(tmp_path: Path) -> None:
    b, a = stored(tmp_path, {"n": [2]}, "b.parquet"), stored(tmp_path, {"n": [1]}, "a.parquet")
    assert csv_of(Table(sources=(b, a, b))) == "n\n2\n1\n2\n"


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_folder_is_read_by_name(tmp_path: Path, ending: str) -> None:
    for name in ("d/2.parquet", "d/10.parquet", "d/sub/1.parquet"):
        stored(tmp_path, {"f": [name]}, name)
    (tmp_path / "d" / "_SUCCESS").touch()
    (tmp_path / "d" / ".hidden.parquet").touch()
    assert csv_of(f"{tmp_path}/d{ending}") == "f\nd/10.parquet\nd/2.parquet\nd/sub/1.parquet\n"


def test_a_prefix_reads_all_its_files(tmp_path: Path) -> None:
    for name in ("part-1.parquet", "part-2.parquet", "other.parquet"):
        stored(tmp_path, {"f": [name]}, name)
    assert csv_of(f"{tmp_path}/part-*") == "f\npart-1.parquet\npart-2.parquet\n"
    assert csv_of(f"file://{tmp_path}/part-2.parquet") == "f\npart-2.parquet\n"


def test_a_partitioned_dataset_has_columns_of_its_folders(tmp_path: Path) -> None:
    for year, country in (
        ("2023", "de"),
        ("2024", "de"),
        ("2024", "a%2Fb"),
        ("2024", "__HIVE_DEFAULT_PARTITION__"),
    ):
        stored(tmp_path, {"n": [int(year)]}, f"year={year}/country={country}/x.parquet")
    assert csv_of(f"{tmp_path}/") == "n,year,country\n2023,2023,de\n2024,2024,\n2024,2024,a/b\n2024,2024,de\n"
    table = read_of(f"{tmp_path}/", "country", where=(("year", ">", 2023),), types={"year": "int32"})
    assert csv_of(table) == "country\n\na/b\nde\n"


def test_files_that_a_filter_on_folders_excludes_are_not_read(tmp_path: Path) -> None:
    stored(tmp_path, {"n": [1]}, "day=1/x.parquet")
    bad = Path(stored(tmp_path, {"n": [2] * 1000}, "day=2/x.parquet"))
    data = bytearray(bad.read_bytes())
    data[4:20] = b"x" * 16  # the footer is whole, the rows are not
    bad.write_bytes(data)
    assert csv_of(read_of(f"{tmp_path}/", where=(("day", "=", "1"),))) == "n,day\n1,1\n"


# --- which rows


@pytest.mark.parametrize(
    "op, value, rows",
    [
        ("=", 2, [2]),
        ("!=", 2, [1, 3]),
        ("<", 2, [1]),
        ("<=", 2, [1, 2]),
        (">", 2, [3]),
        (">=", 2, [2, 3]),
        ("in", [1, 3, 9], [1, 3]),
        ("not in", [1, 3], [2]),
        ("is null", None, [None]),
        ("is not null", None, [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_a_filter_keeps_exactly_the_rows_that_fit(
    tmp_path: Path, op: Any, value: Any, rows: list[int | None], size: int
) -> None:
    source = stored(tmp_path, {"id": range(4), "n": [1, 2, 3, None]}, row_group_size=size)
    text = "".join(f"{'' if n is None else n}\n" for n in rows)
    assert csv_of(read_of(source, "n", where=(("n", op, value),))) == f"n\n{text}"


@pytest.mark.parametrize(
    "array, value",
    [
        (pa.array(["0.10", "0.2"]).cast(pa.decimal128(5, 2)), 0.1),
        (pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]), "2024-01-01"),
        (
            pa.array(["2024-01-01T12:00:00Z", "2024-01-02T12:00:00Z"]).cast(pa.timestamp("us", "UTC")),
            "2024-01-01T12:00:00Z",
        ),
        (pa.array(["x", "y"]).dictionary_encode(), "x"),
        (pa.array([True, False]), True),
        (pa.array(["7.00", "7.50"]).cast(pa.decimal128(12, 2)), 7),
        (pa.array(["123456789012345678901", "7"]).cast(pa.decimal128(38, 0)), 123456789012345678901),
        (pa.array([2**64 - 1, 7], pa.uint64()), 2**64 - 1),
        (pa.array([dt.timedelta(seconds=7), dt.timedelta()], pa.duration("s")), 7),
        (pa.array(["x", "y"], pa.large_string()), "x"),
        (pa.array(["x", "y"], pa.string_view()), "x"),
        (pa.array([b"x", b"y"], pa.binary_view()), "x"),
        (pa.array([7, 8], pa.float16()), 7),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())), True),
        (pa.array([7, 8], pa.time32("ms")), 7),
        (pa.array([7, 8], pa.time64("us")), 7),
        (pa.array([36_000, 0], pa.time32("s")), "10:00"),
        (pa.array([36_000_500, 0], pa.time32("ms")), "10:00:00.5"),
        (pa.array([36_000_000_001, 0], pa.time64("us")), "10:00:00.000001"),
        (pa.array([36_000_000_000_001, 0], pa.time64("ns")), "10:00:00.000000001"),
        (pa.array([7, 8], pa.time64("ns")), [7]),
        (pa.array([UUIDS[1].bytes, UUIDS[2].bytes], pa.uuid()), str(UUIDS[1])),
        (pa.array([UUIDS[1].bytes, UUIDS[2].bytes], pa.uuid()), [UUIDS[1].hex.upper()]),
    ],
)
def test_values_are_read_as_the_columns_type(tmp_path: Path, array: pa.Array, value: Any) -> None:
    source = stored(tmp_path, {"id": [1, 2], "v": array})
    op = "in" if isinstance(value, list) else "="
    assert csv_of(read_of(source, "id", where=(("v", op, value),))) == "id\n1\n"


@pytest.mark.parametrize(
    "op, value, rows",
    [
        ("=", str(UUIDS[1]), "1"),
        ("!=", str(UUIDS[1]), "0 2"),
        ("<", str(UUIDS[1]), "0"),
        (">=", str(UUIDS[1]), "1 2"),
        ("in", [str(UUIDS[0]), str(UUIDS[2])], "0 2"),
        ("not in", [str(UUIDS[0])], "1 2"),
        ("is null", None, "3"),
        ("is not null", None, "0 1 2"),
    ],
)
@pytest.mark.parametrize("size, store_schema", [(1, True), (1, False), (100, True)])
def test_uuids_are_filtered_as_their_text_would_be(
    tmp_path: Path, op: Any, value: Any, rows: str, size: int, store_schema: bool
) -> None:
    """Also where the writer keeps no schema of Arrow beside Parquet's own."""
    rows_of = {"id": range(4), "v": pa.array([*(one.bytes for one in UUIDS), None], pa.uuid())}
    source = stored(tmp_path, rows_of, row_group_size=size, store_schema=store_schema)
    table = read_of(source, "id", where=(("v", op, value), ("id", "<", 9)))
    assert csv_of(table).split() == ["id", *rows.split()]


@pytest.mark.parametrize(
    "array, value",
    [
        (pa.array([1], pa.time32("ms")), "10:00:00.0005"),
        (pa.array([1], pa.time32("ms")), "noon"),
        (pa.array([1], pa.time32("ms")), 2**40),
        (pa.array([1], pa.time64("us")), "24:30"),
        (pa.array([1], pa.time64("us")), 2**63),
        (pa.array([1], pa.time64("us")), 1.5),
        (pa.array([1], pa.time32("ms")), True),
        (pa.array([bytes(16)], pa.uuid()), "one"),
        (pa.array([bytes(16)], pa.uuid()), 1),
    ],
)
def test_what_is_no_time_or_uuid_is_refused(tmp_path: Path, array: pa.Array, value: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"filter\[0\]\.value: .* isn't a value of type"):
        csv_of(read_of(stored(tmp_path, {"v": array}), where=(("v", "=", value),)))


@pytest.mark.parametrize(
    "fields, field, text",
    [
        ({"columns": (Column(source="naem"),)}, "columns[0].source", "did you mean 'name'"),
        ({"filter": (Condition(column="x", op="=", value=1),)}, "filter[0].column", "columns are n, name, l"),
        (
            {"filter": (Condition(column="n", op="=", value="one"),)},
            "filter[0].value",
            "isn't a value of type int64",
        ),
        (
            {"filter": (Condition(column="n", op="=", value=2**63),)},
            "filter[0].value",
            "9223372036854775808 isn't a value of type int64",
        ),
        ({"filter": (Condition(column="l", op="=", value=1),)}, "filter[0].value", "can't be compared"),
        ({"sort": (Sort(column="l"),)}, "sort[0].column", "has no order"),
        ({"columns": (Column(source="name", decimals=2),)}, "columns[0].decimals", "is text, which has none"),
        (
            {"columns": (Column(source="n", pattern="%Y"),)},
            "columns[0].pattern",
            "is integer, which has none",
        ),
        ({"types": {"n": "int"}}, "types.n", "'int' isn't a type"),
        ({"types": {"x": "int64"}}, "types.x", "no column 'x'"),
    ],
)
def test_what_does_not_fit_the_source_is_named(tmp_path: Path, fields: Any, field: str, text: str) -> None:
    source = stored(tmp_path, {"n": [1], "name": ["a"], "l": [[1]]})
    with pytest.raises(InvalidMessage) as refused:
        csv_of(Table(sources=(source,), **fields))
    assert refused.value.field == f"tables[0].{field}"
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())]
)
@pytest.mark.parametrize("op, value", [("!=", 1), ("not in", [1, 2])])
def test_not_a_number_differs_from_every_number(tmp_path: Path, kind: Any, op: Any, value: Any) -> None:
    """The statistics of a row group say nothing of NaN."""
    numbers = pa.array([1.0, float("nan"), 1.0])
    numbers = numbers.dictionary_encode() if pa.types.is_dictionary(kind) else numbers.cast(kind)
    assert csv_of(read_of(stored(tmp_path, {"f": numbers}), where=(("f", op, value),))) == "f\nNaN\n"


def test_a_column_of_intervals_has_no_order(tmp_path: Path) -> None:
    source = stored(tmp_path, {"n": [1], "i": pa.array([pa.MonthDayNano([1, 2, 3])])}, "t.arrow")
    with pytest.raises(InvalidMessage, match=r"sort\[0\].column: i is of type month_day_nano_interval"):
        csv_of(read_of(source, "n", sort=(Sort(column="i"),)))


def test_rows_are_sorted_by_the_columns_of_the_order(tmp_path: Path) -> None:
    source = stored(tmp_path, {"a": [2, 1, None, 2], "b": ["x", "y", "z", "w"]}, row_group_size=1)
    table = read_of(source, "b", sort=(Sort(column="a", descending=True), Sort(column="b")))
    assert csv_of(table) == "b\nw\nx\ny\nz\n"


@pytest.mark.parametrize("descending, order", [(False, "0 1 2 3"), (True, "2 1 0 3")])
def test_rows_are_sorted_by_uuids_as_their_text_would_be(
    tmp_path: Path, descending: bool, order: str
) -> None:
    shuffled = [UUIDS[1].bytes, None, UUIDS[2].bytes, UUIDS[0].bytes]
    source = stored(tmp_path, {"n": [1, 3, 2, 0], "v": pa.array(shuffled, pa.uuid())}, row_group_size=1)
    table = read_of(source, "n", sort=(Sort(column="v", descending=descending),))
    assert csv_of(table).split() == ["n", *order.split()]


def test_more_than_can_be_sorted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SORT_BYTES_MAX", 1000)
    source = stored(tmp_path, {"n": range(1000)})
    with pytest.raises(InvalidMessage, match="sort them in the query"):
        csv_of(Table(sources=(source,), sort=(Sort(column="n"),)))


# --- files that differ


def test_the_same_columns_stored_otherwise_are_the_same(tmp_path: Path) -> None:
    first = stored(tmp_path, {"n": [1], "t": ["a"]}, "1.parquet")
    second = stored(tmp_path, {"t": pa.array(["b"]).dictionary_encode(), "n": [2]}, "2.parquet")
    third = stored(tmp_path, {"n": [3], "t": pa.array(["c"], pa.large_string())}, "3.parquet")
    assert csv_of(Table(sources=(first, second, third))) == "n,t\n1,a\n2,b\n3,c\n"


@pytest.mark.parametrize(
    "other, text",
    [
        ({"n": ["1"], "t": ["b"]}, r"column 'n' is string in .*2.parquet but int64 in .*1.parquet"),
        ({"n": pa.array([1], pa.int32()), "t": ["b"]}, "column 'n' is int32"),
        ({"n": [1]}, "2.parquet lacks column 't'"),
        ({"n": [1], "t": ["b"], "more": [1]}, "2.parquet has column 'more'"),
    ],
)
def test_drift_is_refused_before_anything_is_sent(tmp_path: Path, other: Any, text: str) -> None:
    first, second = (
        stored(tmp_path, {"n": [1], "t": ["a"]}, "1.parquet"),
        stored(tmp_path, other, "2.parquet"),
    )
    with pytest.raises(UnreadableSource, match=text):
        Report(ordered(Table(sources=(first, second))), ordered_at=ORDERED_AT)


def test_drift_beside_the_chosen_columns_does_not_matter(tmp_path: Path) -> None:
    first = stored(tmp_path, {"n": [1], "t": ["a"]}, "1.parquet")
    second = stored(tmp_path, {"n": [2], "t": [7], "more": [1]}, "2.parquet")
    assert csv_of(Table(sources=(first, second), columns=(Column(source="n"),))) == "n\n1\n2\n"


def test_files_whose_columns_drift_are_merged_where_ordered(tmp_path: Path) -> None:
    first = stored(tmp_path, {"n": pa.array([1], pa.int32()), "t": ["a"]}, "1.parquet")
    second = stored(tmp_path, {"more": [1.5], "n": [2**40]}, "2.parquet")
    merged = Table(sources=(first, second), drift="merge")
    assert csv_of(merged) == "n,t,more\n1,a,\n1099511627776,,1.5\n"
    third = stored(tmp_path, {"n": ["x"]}, "3.parquet")
    with pytest.raises(UnreadableSource, match=r"3.parquet doesn't fit"):
        csv_of(Table(sources=(first, third), drift="merge"))


# --- files that are damaged


def test_a_source_that_is_missing_is_named(tmp_path: Path) -> None:
    for source in (*(f"{tmp_path}/no{end}" for end in (".parquet", "/", "*")), f"file://{tmp_path}/no.orc"):
        with pytest.raises(UnreadableSource, match=r"no (data )?file"):
            csv_of(source)


@pytest.mark.parametrize("suffix", ["parquet", "orc", "arrow"])
def test_a_truncated_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = Path(stored(tmp_path, {"n": range(100_000)}, f"t.{suffix}"))
    data = path.read_bytes()
    for length in (0, 3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(UnreadableSource, match=rf"t.{suffix} can't be read"):
            csv_of(str(path))


def test_a_source_with_damaged_rows_is_refused(tmp_path: Path) -> None:
    path = Path(stored(tmp_path, {"n": range(100_000)}, write_page_checksum=True))
    data = bytearray(path.read_bytes())
    data[1000:2000] = b"\xff" * 1000
    path.write_bytes(data)
    with pytest.raises(UnreadableSource, match=r"t.parquet can't be read"):
        csv_of(str(path))


@pytest.mark.parametrize(
    "name, text",
    [
        *(("t.csv", text) for text in ("a,b\n1\n", "n\nnot a number\n")),
        *(
            ("t.jsonl", text)
            for text in ('{"a": 1}\n{"a":', '{"a": 1}\n{"a": "x"}\n', "[1]\n", '{"t": "\\ud800"}\n')
        ),
    ],
)
def test_a_malformed_text_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    types = {"n": "int64"} if text.startswith("n") else {}
    with pytest.raises(UnreadableSource, match=rf"{name} can't be read"):
        csv_of(Table(sources=(f"{tmp_path}/{name}",), types=types))


def test_two_columns_with_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(UnreadableSource, match="two columns 'n'"):
        csv_of(stored(tmp_path, table))


def test_a_source_with_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="must be a URL of file, s3, http or https"):
        csv_of("gopher://host/t.parquet")


def test_a_source_outside_of_its_roots_is_refused(tmp_path: Path) -> None:
    source = stored(tmp_path / "in", ROWS)
    stored(tmp_path / "inside", ROWS)
    for roots in ([str(tmp_path / "in")], ["s3://b/", f"file://{tmp_path}/in/"]):
        for url in (source, f"file://{source}"):
            with Report(ordered(url), ordered_at=ORDERED_AT, roots=roots) as report:
                assert report.rows_total == 3
        for url in (
            f"{tmp_path}/inside/t.parquet",
            f"{tmp_path}/in/../inside/t.parquet",
            f"file://{tmp_path}/in/%2e%2e/inside/t.parquet",
            "s3://bucket/t.parquet",
            "t.parquet",
            "http://127.0.0.1/t.parquet",
        ):
            with pytest.raises(InvalidMessage, match="isn't below") as refused:
                Report(ordered(url), ordered_at=ORDERED_AT, roots=roots)
            assert refused.value.field == "tables[0].sources[0]"


@pytest.mark.parametrize("form", ["{}", "file://{}"])
@pytest.mark.parametrize("named", ["in/out/t.parquet", "in/t.parquet", "in/", "in/d/*", "in/file.parquet"])
def test_no_link_leads_out_of_roots(tmp_path: Path, form: str, named: str) -> None:
    outside = stored(tmp_path / "outside", ROWS)
    (tmp_path / "in" / "d").mkdir(parents=True)
    (tmp_path / "in" / "out").symlink_to("../outside")
    (tmp_path / "in" / "d" / "k%2e").symlink_to("../../outside")
    (tmp_path / "in" / "t.parquet").symlink_to(outside)
    (tmp_path / "in" / "file.parquet").symlink_to(outside)
    root, url = form.format(tmp_path / "in"), form.format(tmp_path / named)
    with pytest.raises((InvalidMessage, UnreadableSource), match=r"isn't below|leads out"):
        Report(ordered(url), ordered_at=ORDERED_AT, roots=[root])
    table = Table(sources=(url,), credentials="lake")
    with pytest.raises((InvalidMessage, UnreadableSource), match=r"doesn't lie below|leads out"):
        Report(ordered(table), ordered_at=ORDERED_AT, secrets=lambda _: {"root": root})
    assert csv_of(url).startswith("n,t")  # without roots, links are followed


def test_links_within_roots_are_followed_and_to_them(tmp_path: Path) -> None:
    stored(tmp_path / "real" / "v1", ROWS)
    (tmp_path / "real" / "now").symlink_to("v1")
    (tmp_path / "root").symlink_to("real")
    for url in (f"{tmp_path}/root/now/t.parquet", f"{tmp_path}/real/now/", f"{tmp_path}/root/now/t*"):
        with Report(ordered(url), ordered_at=ORDERED_AT, roots=[f"{tmp_path}/root"]) as report:
            assert report.rows_total == 3


@pytest.mark.parametrize(
    "url, root, below",
    [
        ("s3://lake/acme/t.parquet", "s3://lake/acme", True),
        ("s3://lake/acme/d/", "s3://lake/acme/", True),
        ("s3://lake/acme", "s3://lake/acme/", True),
        ("s3://lake/acme/a b%25.parquet", "s3://lake/acme", True),
        ("s3://lake/acme*", "s3://lake/acme", False),
        ("s3://lake/acme-2/t.parquet", "s3://lake/acme", False),
        ("s3://lake/acme/../t.parquet", "s3://lake/acme", False),
        ("s3://lake/acme/%2e%2e/t.parquet", "s3://lake/acme", False),
        ("s3://other/acme/t.parquet", "s3://lake/acme", False),
        ("/lake/acme/t.parquet", "s3://lake/acme", False),
        ("https://h/in/t.csv", "https://h/in", True),
        ("https://H:443/in/t.csv?day=1", "https://h/in", True),
        ("https://h/in?report=1", "https://h/in?report=1", True),
        ("https://h/in?report=2", "https://h/in?report=1", False),
        ("https://h/inside/t.csv", "https://h/in", False),
        ("https://h/in/../t.csv", "https://h/in", False),
        ("https://h/in/%252e%252e/t.csv", "https://h/in", False),
        ("https://h.evil/in/t.csv", "https://h/in", False),
        ("https://h@evil/in/t.csv", "https://h/in", False),
        ("https://evil/?https://h/in/t.csv", "https://h/in", False),
        ("http://h/in/t.csv", "https://h/in", False),
        ("https://h:8443/in/t.csv", "https://h/in", False),
        ("file://evil/in/t.csv", "file:///in", False),
        ("file:///in/t.csv", "/in", True),
        ("/in/t.csv", "file:/in", True),
        ("https://[h/in/t.csv", "https://h/in", None),
    ],
)
def test_a_credential_opens_nothing_but_what_is_below_its_root(
    url: str, root: str, below: bool | None
) -> None:
    if below:
        check_root(url, {"root": root}, "tables[0].sources[0]")
        assert is_below(url, [root])
        return
    with pytest.raises(InvalidMessage) as refused:
        check_root(url, {"root": root, "authorization": "Bearer hunter2"}, "tables[0].sources[0]")
    assert below is None or refused.value.field == "tables[0].sources[0]"
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["s3", "file"])
@pytest.mark.parametrize("mark", ["?", "#"])
def test_a_query_makes_no_source_of_another_folder(tmp_path: Path, scheme: str, mark: str) -> None:
    stored(tmp_path / "root-private", ROWS)
    root = f"{scheme}://{tmp_path if scheme == 'file' else 'b'}/root"
    for url in (f"{root}{mark}*", f"{root}/t.parquet{mark}x", f"{root}{mark}"):
        with pytest.raises(InvalidMessage, match="a \\? or #"):
            places.list_places(url, {}, [root])


def test_what_a_service_lists_outside_of_roots_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(url: str, secret: object) -> list[places.SourceFile]:
        return [
            places.SourceFile(f"s3://b/{key}", 1, "v", remote=True, open=lambda: None, path=f"b/{key}")
            for key in ("root/100%25.parquet", outside)
        ]

    monkeypatch.setattr(places, "listed", listed)
    outside = "root/in.parquet"
    assert len(places.list_places("s3://b/root/", {"root": "s3://b/root"}, ["s3://b"])) == 2
    outside = "root-private/t.parquet"
    for secret, roots in (({"root": "s3://b/root"}, []), ({}, ["s3://b/root/"])):
        with pytest.raises(UnreadableSource, match="leads out"):
            places.list_places("s3://b/root/", secret, roots)


def test_a_link_that_is_changed_after_it_was_followed_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = stored(tmp_path / "in", ROWS), stored(tmp_path / "outside", ROWS)
    link = tmp_path / "in" / "link.parquet"
    link.symlink_to(outside)
    really_listed = places.listed

    def listed(url: str, secret: dict[str, str]) -> list[places.SourceFile]:
        found = really_listed(url, secret)
        link.unlink()
        link.symlink_to(inside)
        return found

    monkeypatch.setattr(places, "listed", listed)
    with pytest.raises(UnreadableSource, match="leads out"):
        places.list_places(str(link), {}, [str(tmp_path / "in")])


# --- HTTP


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves bytes by ranges, as object stores do. What it does otherwise is set on its server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        if self.path.startswith("/moved/"):
            self._answer(302, b"", {"Location": server.elsewhere + self.path.removeprefix("/moved")})
            return
        if self.path.startswith("/signed/"):
            signed = self.path.removeprefix("/signed")
            self._answer(302, b"", {"Location": f"{signed}?signature={next(server.signatures)}"})
            return
        if server.expires_with and server.asked.count((self.path, None)) > 1:
            self._answer(server.expires_with, b"", {})
            return
        body = server.bodies.get(self.path.partition("?")[0])
        if body is None or server.status:
            self._answer(server.status or 404, b"", {})
            return
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        if server.drops:
            server.drops -= 1
            self.close_connection = True
            self.wfile.close()
            return
        if server.no_ranges:
            self._answer(200, body, {})
            return
        part = body[int(first) : int(last) + 1]
        headers = {
            "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}",
            "ETag": server.etag,
        }
        self._answer(206, part, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    server.daemon_threads = True
    server.bodies, server.asked, server.etag = {}, [], '"1"'
    server.status, server.drops, server.no_ranges, server.elsewhere = 0, 0, False, ""
    server.expires_with, server.signatures = 0, itertools.count()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def web() -> Iterator[Any]:
    with serving() as server:
        yield server


@pytest.fixture
def foreign() -> Iterator[Any]:
    """A server that no secret is for."""
    with serving() as server:
        yield server


def url(web: Any, path: str) -> str:
    return f"http://127.0.0.1:{web.server_address[1]}{path}"


@pytest.mark.slow
def test_a_source_over_http_is_read_as_a_local_file_is(tmp_path: Path, web: Any) -> None:
    rows = {"n": range(200_000), "t": [str(n * 7919) for n in range(200_000)]}
    local = stored(tmp_path, rows, row_group_size=50_000)
    web.bodies["/t.parquet"] = Path(local).read_bytes()
    web.bodies["/t.csv"] = b"a,b\n1,2\n"
    assert len(web.bodies["/t.parquet"]) > 2**20
    assert csv_of(url(web, "/t.parquet?signature=s")) == csv_of(local)
    assert csv_of(url(web, "/moved/t.csv")) == "a,b\n1,2\n"


def test_five_redirects_are_followed_and_no_more(web: Any) -> None:
    web.bodies["/t.csv"] = b"a\n1\n"
    assert csv_of(url(web, f"{'/moved' * REDIRECTS_MAX}/t.csv")) == "a\n1\n"
    with pytest.raises(UnreadableSource, match=f"more than {REDIRECTS_MAX} redirects"):
        csv_of(url(web, f"{'/moved' * (REDIRECTS_MAX + 1)}/t.csv"))


def test_a_broken_connection_is_made_again(web: Any) -> None:
    web.bodies["/t.csv"] = b"a\n1\n"
    web.drops = 1
    assert csv_of(url(web, "/t.csv")) == "a\n1\n"
    web.drops = 2
    with pytest.raises(Unavailable, match="can't be reached"):
        csv_of(url(web, "/t.csv"))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_an_address_that_expires_on_the_way_is_asked_for_again(web: Any, status: int) -> None:
    web.bodies["/t.csv"] = b"a\n" + b"123456789\n" * 300_000
    web.expires_with = status
    assert csv_of(url(web, "/signed/t.csv")).encode() == web.bodies["/t.csv"]
    web.bodies.clear()
    web.expires_with = 0
    with pytest.raises(UnreadableSource, match="no file"):
        csv_of(url(web, "/signed/t.csv"))


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.EMFILE, "Too many open files"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
    ],
    ids=repr,
)
def test_a_server_that_cannot_be_reached_is_tried_again_unless_it_is_untrusted(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", unreachable)
    kind, text = (
        (UnreadableSource, "certificate verify failed")
        if isinstance(error, ssl.SSLCertVerificationError)
        else (Unavailable, "can't be reached")
    )
    with pytest.raises(kind, match=text):
        csv_of("https://files.test/t.csv")


def test_refusals_over_http_have_their_errors(web: Any) -> None:
    with pytest.raises(UnreadableSource, match="no file"):
        csv_of(url(web, "/t.csv"))
    web.bodies["/t.csv"] = b"a\n1\n"
    web.status = 403
    with pytest.raises(UnreadableSource, match="may not be read"):
        csv_of(url(web, "/t.csv"))
    for web.status in (408, 425, 429, 503):
        with pytest.raises(Unavailable, match=f"HTTP status {web.status}"):
            csv_of(url(web, "/t.csv"))
    web.status, web.no_ranges = 0, True
    with pytest.raises(UnreadableSource, match="answers no ranges"):
        csv_of(url(web, "/t.csv"))


def test_reading_after_the_end_leaves_no_connection(web: Any) -> None:
    web.bodies["/t.csv"] = bytes(2 * READ_AHEAD_BYTES)
    with HttpFile(url(web, "/t.csv")) as file:
        pass
    file.seek(READ_AHEAD_BYTES)
    file.read(1)
    assert not file.connected


def test_a_file_that_changes_while_it_is_read(web: Any) -> None:
    web.bodies["/t.csv"] = b"a\n1\n"
    with Report(ordered(url(web, "/t.csv")), ordered_at=ORDERED_AT) as report:
        web.etag = '"2"'
        with pytest.raises(UnreadableSource, match="changed while it was read"):
            list(next(report.files()).chunks)


def test_secrets_are_found_by_name_and_not_shown(web: Any) -> None:
    web.bodies["/t.csv"] = b"a\n1\n"
    order = ordered(Table(sources=(url(web, "/t.csv?token=hidden"),), credentials="lake"), form=Csv())
    asked: list[str] = []

    def secrets(name: str) -> dict[str, str]:
        asked.append(name)
        return {"authorization": "Bearer x"}

    with Report(order, ordered_at=ORDERED_AT, secrets=secrets) as report:
        assert [b"".join(file.chunks) for file in report.files()] == [b"a\n1\n"]
    assert set(asked) == {"lake"}
    assert {header for _, header in web.asked} == {"Bearer x"}
    web.status = 404
    with pytest.raises(UnreadableSource) as refused:
        made(ordered(url(web, "/t.csv?token=hidden")))
    assert "hidden" not in str(refused.value)


def published(source: str, secret: dict[str, str], roots: Sequence[str] = ()) -> bytes:
    order = ordered(Table(sources=(source,), credentials="lake"), form=Csv())
    with Report(order, ordered_at=ORDERED_AT, secrets=lambda _: secret, roots=roots) as report:
        return b"".join(chunk for file in report.files() for chunk in file.chunks)


def headers(server: Any) -> set[str | None]:
    return {header for _, header in server.asked}


def test_a_source_outside_of_its_credentials_root_is_not_even_asked_for(web: Any, foreign: Any) -> None:
    foreign.bodies["/in/t.csv"] = web.bodies["/t.csv"] = b"a\n1\n"
    secret = {"authorization": "Bearer x", "root": url(web, "/in")}
    for source in (url(foreign, "/in/t.csv"), url(web, "/t.csv"), url(web, "/in/../t.csv")):
        with pytest.raises(InvalidMessage, match=r"tables\[0\]\.sources\[0\]: .*root of its credential"):
            published(source, secret)
    assert (web.asked, foreign.asked) == ([], [])


@pytest.mark.slow
def test_a_secret_is_not_sent_where_a_redirect_leads(tmp_path: Path, web: Any, foreign: Any) -> None:
    """Nor with the requests for later ranges, which begin there."""
    rows = {"n": range(200_000), "t": [str(n * 7919) for n in range(200_000)]}
    local = stored(tmp_path, rows, row_group_size=50_000)
    web.elsewhere = url(foreign, "")
    foreign.bodies["/t.parquet"] = Path(local).read_bytes()
    assert len(foreign.bodies["/t.parquet"]) > 2**20
    assert published(url(web, "/moved/t.parquet"), {"authorization": "Bearer x"}).startswith(b"n,t")
    assert len(foreign.asked) > 2
    assert headers(foreign) == {None}
    assert headers(web) == {"Bearer x"}


def test_on_its_own_server_a_secret_goes_no_further_than_its_root(web: Any) -> None:
    web.bodies["/t.csv"] = web.bodies["/moved/in/t.csv"] = b"a\n1\n"
    secret = {"authorization": "Bearer x", "root": url(web, "/moved")}
    assert published(url(web, "/moved/t.csv"), secret) == b"a\n1\n"
    assert dict(web.asked) == {"/moved/t.csv": "Bearer x", "/t.csv": None}
    assert published(url(web, "/moved/t.csv"), {"authorization": "Bearer x"}) == b"a\n1\n"
    assert web.asked[-1] == ("/t.csv", "Bearer x")


def test_no_redirect_leads_out_of_roots(web: Any, foreign: Any) -> None:
    foreign.bodies["/t.csv"] = b"a\n1\n"
    web.elsewhere = url(foreign, "")
    roots = [url(web, "/")]
    with pytest.raises(UnreadableSource, match=r"redirects to http://127\.0\.0\.1:\d+, .*add it to roots"):
        published(url(web, "/moved/t.csv"), {}, roots)
    assert foreign.asked == []
    assert published(url(web, "/moved/t.csv"), {}, [*roots, url(foreign, "/")]) == b"a\n1\n"
