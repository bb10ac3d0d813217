"""User code: import it by its name, run it inside a node, and describe its errors."""

from __future__ import annotations

import importlib
import re
import reprlib
import signal
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from holdfast.common.redaction import redact
from holdfast.common.text import storable
from holdfast.errors import ConfigError, HoldfastError

ERROR_CHARS_MAX = 1000
DETAIL_CHARS_MAX = 16_000
LOCAL_CHARS_MAX = 200

_OF_IMPORTS = (
    importlib.__file__,
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)
"""The files of frames between an import and the imported code."""

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in ')

_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python\d)|^<frozen ")
"""Matches paths that aren't user code: libraries, and the standard library."""

_OURS = __file__.removesuffix("user_code.py").removesuffix("common/")
"""The beginning of the paths of Holdfast's own code."""

_with_locals = False

P = ParamSpec("P")
T = TypeVar("T")


class UserCodeExited(Exception):
    """User code raised an error that ends a process, such as SystemExit, in a process with other work."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"it raised {cause!r}, which would end the process; raise another error")
        self.cause = cause

    def __repr__(self) -> str:
        return repr(self.cause)


def run_user_code(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call user code inside a node. An error that would end the node becomes UserCodeExited."""
    try:
        return function(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        if is_interrupted(error):
            raise
        raise UserCodeExited(error) from error


def kind_and_place(error: BaseException) -> tuple[str, str]:
    """Return the type and the place of an error of user code, without its text, which may hold personal
    data."""
    if isinstance(error, UserCodeExited):
        error = error.cause
    at = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, f"{at.filename}:{at.lineno}"


def is_interrupted(error: BaseException) -> bool:
    """Return True if a user has pressed Ctrl-C. Nodes handle that signal themselves."""
    by_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and by_python


def resolve(path: str) -> Any:
    """Return the object at ``module:name``. Raises ConfigError, with the traceback of a failing import."""
    module_name, _, name = path.partition(":")
    if not module_name or not name.isidentifier():
        raise ConfigError(f"{path!r} must be written as module:name")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        raise ConfigError(f"{module_name} can't be imported: {describe(error)}\n{explain(error)}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{module_name} has no {name!r}; its file is {getattr(module, '__file__', None)}")
    return getattr(module, name)


def describe(error: BaseException) -> str:
    """Describe an error in a few lines for the store. Texts of Holdfast's own errors stay unchanged."""
    own = isinstance(error, HoldfastError)
    text = str(error) if own else "".join(traceback.format_exception_only(error)).strip()
    return storable(redact(text)[:ERROR_CHARS_MAX])


def raised_at(traceback: str) -> str:
    """Return ``file:line`` of the last frame of user code in a traceback, or else of its last frame; empty
    without frames."""
    frames = [(frame["file"], frame["line"]) for frame in _FRAME.finditer(traceback)]
    own = [frame for frame in frames if not (_LIBRARY.search(frame[0]) or frame[0].startswith(_OURS))]
    return ":".join((own or frames)[-1]) if frames else ""


def show_locals(shown: bool = True) -> None:
    """Have all tracebacks of this process show the values of local variables, or none of them."""
    global _with_locals  # noqa: PLW0603
    _with_locals = shown


def explain(error: BaseException) -> str:
    """Return the traceback of an error from the first frame of user code, without frames of the file that
    caught it and of imports."""
    trace = error.__traceback__
    skipped = {trace.tb_frame.f_code.co_filename, *_OF_IMPORTS} if trace is not None else set()
    while trace is not None and trace.tb_frame.f_code.co_filename in skipped:
        trace = trace.tb_next
    if isinstance(error, MemoryError):
        traceback.clear_frames(trace)
    report = traceback.TracebackException(type(error), error, trace)
    if _with_locals:
        _add_locals(report, error, trace)
    try:
        text = "".join(report.format())
    except SystemError:  # Python 3.11 parses each line, to mark a part of it; two threads at once it confuses
        plain = [(line.filename, line.lineno or 0, line.name, line.line) for line in report.stack]
        text = "".join([*traceback.format_list(plain), *report.format_exception_only()])
    return storable(redact(text)[-DETAIL_CHARS_MAX:])


def _add_locals(
    report: traceback.TracebackException, error: BaseException, trace: TracebackType | None
) -> None:
    """Add the values of local variables to all frames of an error and of its causes. The library would make
    each text in full, and fail at a value without a text."""
    left = [(report, error, trace)]
    while left:
        report, error, trace = left.pop()
        for summary, (frame, _) in zip(report.stack, traceback.walk_tb(trace), strict=False):
            summary.locals = {name: _brief(value) for name, value in frame.f_locals.items()}
        members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        origins = [
            (report.__cause__, error.__cause__),
            (report.__context__, error.__context__),
            *zip(report.exceptions or (), members, strict=False),
        ]
        left += [
            (text, its, its.__traceback__) for text, its in origins if text is not None and its is not None
        ]


class _Brief(reprlib.Repr):
    """Makes short texts of values, of long ones only from their beginning and end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = LOCAL_CHARS_MAX

    def repr_bytes(self, value: bytes, level: int) -> str:
        """Only the beginning of a body that may be large."""
        return repr(value[: self.maxstring])

    repr_bytearray = repr_bytes


_texts = _Brief()


def _brief(value: object) -> str:
    """Return a value as a short text, whatever its class does."""
    try:
        return _texts.repr(value)[:LOCAL_CHARS_MAX]
    except Exception as error:  # noqa: BLE001 - user code
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"
