"""Dry runs: a report's size is estimated within a quarter, if its rows are alike."""

import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.reports.dry_run import dry_run
from holdfast.reports.order import Condition, Csv, Table, Xlsx
from tests.reports.making import ORDERED_AT, made, ordered, stored

ROWS = 250_000
FACTOR = 1.25


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of numbers, words and texts that don't compress, in row groups of a usual size."""
    chance = random.Random(1)
    table = {
        "id": range(ROWS),
        "word": [chance.choice(["alpha", "beta", "gamma, inc", None]) for _ in range(ROWS)],
        "price": [chance.random() for _ in range(ROWS)],
        "token": [f"{chance.getrandbits(96):x}" for _ in range(ROWS)],
    }
    return stored(tmp_path_factory.mktemp("many"), table, row_group_size=ROWS // 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [Csv(), Csv(compression="gzip"), Csv(compression="zip"), Xlsx(), Xlsx(rows_per_sheet=ROWS // 3)]
)
def test_the_size_is_told_within_a_quarter(source: str, form: Any) -> None:
    order = ordered(source, form=form)
    found = dry_run(order, ORDERED_AT, lambda _: {}, rows=3)
    (data,) = made(order)
    assert not found.exact
    assert len(data) / FACTOR < found.size < len(data) * FACTOR
    assert found.rows == ROWS
    assert len(found.lines) == 4


@pytest.mark.nightly
def test_also_where_nobody_knows_how_many_rows_there_are(source: str, tmp_path: Path) -> None:
    half = Table(sources=(source,), filter=(Condition(column="price", op="<", value=0.5),))
    (text,) = made(ordered(source))
    (tmp_path / "t.csv").write_bytes(text)
    for table in (half, str(tmp_path / "t.csv")):
        found = dry_run(ordered(table), ORDERED_AT, lambda _: {}, rows=3)
        (data,) = made(ordered(table))
        assert found.rows is None
        assert not found.exact
        assert len(data) / FACTOR < found.size < len(data) * FACTOR


@pytest.mark.parametrize("form", [Csv(), Xlsx()])
def test_the_size_of_little_is_exact(tmp_path: Path, form: Any) -> None:
    order = ordered(stored(tmp_path, {"n": [1, 2]}), form=form)
    found = dry_run(order, ORDERED_AT, lambda _: {}, rows=3)
    assert (found.exact, found.size) == (True, len(made(order)[0]))
