"""Settings that are declared in code: each is checked by the type and the range that its field is written
with.

A struct of settings says what each may be in its annotations, such as ``timeout_s: Seconds``, and calls
:func:`check_settings` when it is made. ``inf``, ``nan``, a bool for a number or a text for a struct is then
refused where it is declared, and not by what computes with it a day later.
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
"""Some 31 years. A longer time is a mistake, and could overflow a timer or a date."""

COUNT_MAX = 2**31 - 1
"""What every store can keep as a number."""

Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]
Delay = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Milliseconds = Annotated[float, Meta(gt=0, le=1000 * SECONDS_MAX)]
Positive = Annotated[float, Meta(gt=0, le=COUNT_MAX)]
"""A rate a second, or a weight."""
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Limit = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
"""Where 0 is for no limit."""
RateLimit = Annotated[float, Meta(ge=0, le=COUNT_MAX)]
"""A second, where 0 is for no limit."""
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Text = Annotated[str, Meta(min_length=1)]


def check_settings(what: str, settings: msgspec.Struct) -> None:
    """Raise ConfigError for the first setting that isn't what its field is declared as. ``what`` names whose
    settings they are, such as ``task 'publish'``."""
    for setting, text in faults(settings):
        raise ConfigError(f"{what}: {setting} {text}")


def check_setting(what: str, setting: str, value: object, hint: Any) -> None:
    """The same for a single value that is no field of a struct."""
    if text := fault(value, hint):
        raise ConfigError(f"{what}: {setting} {text}")


def faults(settings: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Each wrong setting with what is wrong about it, those of structs in it included."""
    for name, hint, members in _hints(type(settings)):
        value = getattr(settings, name)
        if not _fits(value, members):
            yield name, _wrong(value, hint)
        elif isinstance(value, msgspec.Struct):
            for inner, text in faults(value):
                yield f"{name}.{inner}", text


@functools.cache
def _hints(kind: type[msgspec.Struct]) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """The settings of a struct that can't be just anything, each with what it may be."""
    hints = ((field.name, field.type) for field in msgspec.structs.fields(kind))
    return [(name, hint, _members(hint)) for name, hint in hints if hint is not Any]


def fault(value: object, hint: Any) -> str:
    """What is wrong about a value that should be a ``hint``; empty if nothing is."""
    return "" if _fits(value, _members(hint)) else _wrong(value, hint)


def _wrong(value: object, hint: Any) -> str:
    return f"is {_shown(value)}; it must be {_described(hint)}"


def _fits(value: object, members: tuple[Any, ...]) -> bool:
    """True if the value is one of these. One by one: msgspec takes no function or class beside a text."""
    for member in members:
        try:
            made = msgspec.convert(value, member)
        except msgspec.ValidationError:
            continue
        if made is value or made == value:  # else made of a list, or of a dict
            return True
    return False


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _shown(value: object) -> str:
    text = f"{value!r:.200}"
    return f"a {type(value).__name__}" if " at 0x" in text else text


def _described(hint: Any) -> str:
    """What a hint asks for, in words."""
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
