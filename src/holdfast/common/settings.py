"""Checks of settings that are declared in code, by the type and the range of their fields.

A struct of settings has the allowed values in its annotations, such as ``timeout_s: Seconds``, and calls
:func:`check_settings` when it is made. So ``inf``, ``nan``, a bool for a number or a text for a struct is
refused at the declaration, and not a day later at its use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Meta, inspect

from holdfast.errors import ConfigError

SECONDS_MAX = 1e9
"""Maximum seconds, about 31 years: more could overflow a timer or a date."""

COUNT_MAX = 2**31 - 1
"""Maximum count that every store can keep."""

Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]
Delay = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Milliseconds = Annotated[float, Meta(gt=0, le=1000 * SECONDS_MAX)]
Positive = Annotated[float, Meta(gt=0, le=COUNT_MAX)]
"""A rate per second, or a weight."""
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Limit = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
"""A limit, where 0 means no limit."""
RateLimit = Annotated[float, Meta(ge=0, le=COUNT_MAX)]
"""A rate per second, where 0 means no limit."""
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Text = Annotated[str, Meta(min_length=1)]


def check_settings(what: str, settings: msgspec.Struct) -> None:
    """Raise ConfigError for the first setting that doesn't fit its declaration. ``what`` names the owner of
    the settings, such as ``task 'publish'``."""
    for setting, text in faults(settings):
        raise ConfigError(f"{what}: {setting} {text}")


def check_setting(what: str, setting: str, value: object, hint: Any) -> None:
    """Raise ConfigError if a single value doesn't fit the type ``hint``."""
    if text := fault(value, hint):
        raise ConfigError(f"{what}: {setting} {text}")


def faults(settings: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Yield each wrong setting and its fault, also of structs inside."""
    for name, hint, members in _hints(type(settings)):
        value = getattr(settings, name)
        if not _fits(value, members):
            yield name, _wrong(value, hint)
        elif isinstance(value, msgspec.Struct):
            for inner, text in faults(value):
                yield f"{name}.{inner}", text


@functools.cache
def _hints(kind: type[msgspec.Struct]) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """Return the restricted settings of a struct, each with its allowed types."""
    hints = ((field.name, field.type) for field in msgspec.structs.fields(kind))
    return [(name, hint, _members(hint)) for name, hint in hints if hint is not Any]


def fault(value: object, hint: Any) -> str:
    """Return the fault of a value for the type ``hint``; empty without one."""
    return "" if _fits(value, _members(hint)) else _wrong(value, hint)


def _wrong(value: object, hint: Any) -> str:
    return f"is {_shown(value)}; it must be {_described(hint)}"


def _fits(value: object, members: tuple[Any, ...]) -> bool:
    """Return True if the value fits one of these types. They are tried one by one, because msgspec doesn't
    allow a function or class beside a text."""
    for member in members:
        if type(value) is member:
            return True
        try:
            made = msgspec.convert(value, member)
        except msgspec.ValidationError:
            continue
        if made is value or made == value:  # else msgspec converted it from a list or dict
            return True
    return False


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _shown(value: object) -> str:
    text = f"{value!r:.200}"
    return f"a {type(value).__name__}" if " at 0x" in text else text


def _described(hint: Any) -> str:
    """Return the type of a hint in words."""
    return " or ".join(_word(inspect.type_info(member)) for member in _members(hint))


def _word(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return f"a whole number{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_range(kind)}"
        case inspect.StrType():
            return f"a text{_length(kind)}"
        case inspect.BoolType():
            return "True or False"
        case inspect.NoneType():
            return "None"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case inspect.VarTupleType():
            return f"a tuple (each item {_word(kind.item_type)})"
        case inspect.DictType():
            return f"a mapping (each value {_word(kind.value_type)})"
        case inspect.UnionType():
            return " or ".join(map(_word, kind.types))
        case inspect.StructType() | inspect.CustomType():
            return {Callable: "a function", type: "a class"}.get(kind.cls, f"a {kind.cls.__name__}")
        case _:
            return str(kind)


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = {"above": kind.gt, "at least": kind.ge, "below": kind.lt, "at most": kind.le}
    said = [f"{word} {int(bound):,}" for word, bound in bounds.items() if bound is not None]
    return f" {', '.join(said)}" if said else ""


def _length(kind: inspect.StrType) -> str:
    said = [f"of at least {kind.min_length} characters"] if kind.min_length else []
    said += [f"of at most {kind.max_length} characters"] if kind.max_length else []
    said += [f"like {kind.pattern}"] if kind.pattern else []
    return f" {' and '.join(said)}" if said else ""
