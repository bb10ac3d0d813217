"""User code: imports it by its name, and describes its errors in texts that can be stored."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

from holdfast.common.redaction import redact
from holdfast.errors import ConfigError, HoldfastError

ERROR_CHARS_MAX = 1000
DETAIL_CHARS_MAX = 16_000


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
    """Describe an error in one or few lines for the store. The texts of Holdfast's own errors are used
    unchanged."""
    own = isinstance(error, HoldfastError)
    text = str(error) if own else "".join(traceback.format_exception_only(error)).strip()
    return _storable(redact(text)[:ERROR_CHARS_MAX])


def explain(error: BaseException) -> str:
    """Return the traceback of an error that was caught in a worker, from the first frame of user code."""
    trace = error.__traceback__
    worker = trace.tb_frame.f_code.co_filename if trace is not None else ""
    while trace is not None and trace.tb_frame.f_code.co_filename == worker:
        trace = trace.tb_next
    if isinstance(error, MemoryError):
        traceback.clear_frames(trace)
    text = "".join(traceback.format_exception(type(error), error, trace))
    return _storable(redact(text)[-DETAIL_CHARS_MAX:])


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
