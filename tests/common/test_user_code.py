"""What is told of errors in user code."""

import ast
import importlib
import signal
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.common.user_code import (
    LOCAL_CHARS_MAX,
    UserCodeExited,
    explain,
    kind_and_place,
    run_user_code,
    show_locals,
)


@pytest.fixture(autouse=True)
def without_locals() -> Iterator[None]:
    """Tracebacks show no values again after each test."""
    yield
    show_locals(False)


@pytest.fixture
def raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exception:
    (tmp_path / "raising.py").write_text(
        "def run():\n    total, long, secret = 42, 'x' * 1000, 'hunter2'\n    return total / 0\n\nrun()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
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


class Strange(BaseException):
    """An error that hardly anything catches."""


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), CancelledError(), Strange("odd")])
def test_user_code_in_a_node_raises_nothing_that_ends_the_node(error: BaseException) -> None:
    def run(number: int) -> int:
        raise error if number else ZeroDivisionError

    with pytest.raises(UserCodeExited) as caught:
        run_user_code(run, 1)
    assert repr(error) in str(caught.value)
    kind, place = kind_and_place(caught.value)
    assert (kind, "test_user_code.py:" in place) == (type(error).__name__, True)
    with pytest.raises(ZeroDivisionError):
        run_user_code(run, 0)
    assert run_user_code(abs, -1) == 1


def test_who_ends_a_program_by_the_keyboard_ends_it_in_user_code_too() -> None:
    def run() -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_user_code(run)
        signal.signal(signal.SIGINT, lambda *_: None)  # as a node has it
        with pytest.raises(UserCodeExited):
            run_user_code(run)
    finally:
        signal.signal(signal.SIGINT, before)


class Untold:
    """A value whose text can't be made."""

    def __repr__(self) -> str:
        raise RuntimeError("not open yet")


def explained(run: Callable[[], None]) -> str:
    """What is told of an error, with locals."""
    show_locals()
    with ThreadPoolExecutor(1) as pool:  # so that it is caught in another file
        error = pool.submit(run).exception()
    assert error is not None
    return explain(error)


def test_a_value_whose_text_cannot_be_made_hides_no_other() -> None:
    def run() -> None:
        untold, huge, number = Untold(), 10**10_000, 42
        raise ValueError(number, id(untold) == id(huge))

    told = explained(run)
    assert "number = 42" in told
    assert "untold = <Untold" in told
    assert "huge = <int" in told
    assert told.rstrip().endswith("ValueError: (42, False)")


def test_large_values_are_cut_before_a_text_of_all_is_made() -> None:
    class Counted:
        made = 0

        def __repr__(self) -> str:
            Counted.made += 1
            return "a row"

    def run() -> None:
        rows, body = [Counted() for _ in range(1000)], b"x" * 100_000
        raise ValueError(len(rows) + len(body))

    told = explained(run)
    assert "rows = [a row, " in told
    assert "body = b'xxx" in told
    assert Counted.made < 20


def test_locals_are_shown_and_cut_in_the_whole_chain_of_errors() -> None:
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
        told = explained(each)
        for name in names:
            assert f"here = '{name}xxx" in told
        assert max(map(len, told.splitlines())) < LOCAL_CHARS_MAX + 40


def test_an_error_is_explained_also_where_python_can_not_parse_the_lines_of_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11 does so to underline a part, and two threads at once confuse it."""

    def refuse(*_: object, **__: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=33, after=133)")

    def divide() -> None:
        print(1 + 1 / 0)  # noqa: T201

    monkeypatch.setattr(ast, "parse", refuse)
    told = explained(divide)
    assert "in divide" in told
    assert told.endswith("ZeroDivisionError: division by zero\n")
