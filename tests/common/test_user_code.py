"""What is told of errors in user code."""

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.common import user_code
from holdfast.common.user_code import LOCAL_CHARS_MAX, explain, show_locals


@pytest.fixture
def raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exception:
    (tmp_path / "raising.py").write_text(
        "def run():\n    total, long, secret = 42, 'x' * 1000, 'hunter2'\n    return total / 0\n\nrun()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(user_code, "_with_locals", False)
    with pytest.raises(ZeroDivisionError) as caught:
        importlib.import_module("raising")
    return caught.value


def test_a_traceback_begins_with_user_code_and_not_with_what_imported_it(raised: Exception) -> None:
    first, second, *_ = explain(raised).splitlines()
    assert first == "Traceback (most recent call last):"
    assert second.endswith('raising.py", line 5, in <module>')


def test_locals_are_shown_only_if_asked_for_shortened_and_without_secrets(raised: Exception) -> None:
    assert "total = 42" not in explain(raised)
    show_locals()
    told = explain(raised)
    assert "total = 42" in told
    assert "secret = '***'" in told
    assert "hunter2" not in told
    assert max(map(len, told.splitlines())) < LOCAL_CHARS_MAX + 20


class Untold:
    """A value whose text can't be made."""

    def __repr__(self) -> str:
        raise RuntimeError("not open yet")


def explained(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is told of an error, with locals."""
    monkeypatch.setattr(user_code, "_with_locals", True)
    with ThreadPoolExecutor(1) as pool:  # so that it is caught in another file
        error = pool.submit(run).exception()
    assert error is not None
    return explain(error)


def test_a_value_whose_text_cannot_be_made_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        untold, huge, number = Untold(), 10**10_000, 42
        raise ValueError(number, id(untold) == id(huge))

    told = explained(run, monkeypatch)
    assert "number = 42" in told
    assert "untold = <Untold" in told
    assert "huge = <int" in told
    assert told.rstrip().endswith("ValueError: (42, False)")


def test_large_values_are_cut_before_a_text_of_all_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        made = 0

        def __repr__(self) -> str:
            Counted.made += 1
            return "a row"

    def run() -> None:
        rows, body = [Counted() for _ in range(1000)], b"x" * 100_000
        raise ValueError(len(rows) + len(body))

    told = explained(run, monkeypatch)
    assert "rows = [a row, " in told
    assert "body = b'xxx" in told
    assert Counted.made < 20


def test_locals_are_shown_and_cut_in_the_whole_chain_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        here = name + "x" * 1000
        raise KeyError(len(here))

    def run() -> None:
        try:
            fail("cause-")
        except KeyError as cause:
            try:
                raise ValueError from cause
            except ValueError:
                try:
                    fail("member-")
                except KeyError as member:
                    raise ExceptionGroup("all", [member]) from None

    def chained() -> None:
        try:
            fail("context-")
        except KeyError:
            try:
                fail("cause-")
            except KeyError as cause:
                raise ValueError from cause

    for names, each in {("member-",): run, ("cause-",): chained}.items():
        told = explained(each, monkeypatch)
        for name in names:
            assert f"here = '{name}xxx" in told
        assert max(map(len, told.splitlines())) < LOCAL_CHARS_MAX + 40
