"""Reads the types of a handler from its annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.errors import ConfigError
from holdfast.streams.handler import Context
from holdfast.streams.typed.state_codec import name_of

EXPECTED = "(message), (message, context), (message, state) or (message, state, context)"

UNTYPED = (Any, inspect.Parameter.empty, object)


class Signature(NamedTuple):
    """The parameters of a handler function: the types of message and state, None if not declared, and whether
    it takes the context."""

    message: Any
    state: Any
    takes_context: bool


def read_signature(
    function: Callable[..., Any],
    *,
    first: str = "message",
    message: Any = None,
    state: Any = None,
    names: Mapping[str, Any] | None = None,
) -> Signature:
    """Read a function's signature. The last parameter is the context if it is annotated so. Without an
    annotation it is the context, unless ``state`` is given and the name isn't ``context``.

    Args:
        first: what the first parameter is, for messages.
        message, state: the types that the declaration gives itself; None if it leaves them to annotations.
        names: local names of the declaring function, for annotations that are texts.

    Raises ConfigError for a signature of another form, and for a type that is unknown or contradicts.
    """
    name = getattr(function, "__name__", repr(function))
    expected = EXPECTED.replace("message", first)
    parameters = _positional(function, name, expected)
    hints = _hints(function, names)
    kinds = [hints.get(parameter.name, parameter.annotation) for parameter in parameters]
    by_name = state is not None and len(kinds) == 2
    takes_context = len(kinds) > 1 and _is_context(parameters[-1].name, kinds[-1], by_name=by_name)
    if takes_context:
        del kinds[-1]
    if not 1 <= len(kinds) <= 2 or (parameters and parameters[0].name in ("self", "cls")):
        raise ConfigError(
            f"handler {name} takes ({', '.join(p.name for p in parameters)}); it takes {expected}"
        )
    if len(kinds) == 2 and kinds[1] in UNTYPED and state is None:
        raise ConfigError(
            f"handler {name}: parameter {parameters[1].name!r} has no type; annotate it with the type of the"
            " state"
        )
    if len(kinds) == 1 and state is not None:
        raise ConfigError(
            f"handler {name} takes no state, and state= is {name_of(state)}; it takes {expected}"
        )
    return Signature(
        _agreed(name, parameters[0].name, first, kinds[0], message),
        _agreed(name, parameters[1].name, "state", kinds[1], state) if len(kinds) == 2 else None,
        takes_context,
    )


def _positional(function: Any, name: str, expected: str) -> list[inspect.Parameter]:
    """Return the parameters that a call by position fills."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"handler {name} is a generator, which yields; a handler returns one result")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"handler {name} has no signature that can be read; it takes {expected}") from error
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in parameters:
        if parameter.kind not in kinds and parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"handler {name}: parameter {parameter} can't be given; it takes {expected}")
    return [each for each in parameters if each.kind in kinds]


class Unresolved(NamedTuple):
    """An annotation whose names aren't known when the program runs."""

    text: str
    error: str


def _hints(function: Any, names: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the types in a function's annotations."""
    annotated = getattr(function, "func", function)  # of a partial
    if not hasattr(annotated, "__annotations__"):
        annotated = type(annotated).__call__
    known, local = getattr(inspect.unwrap(annotated), "__globals__", {}), dict(names or {})
    hints: dict[str, Any] = {}
    for name, annotation in annotated.__annotations__.items():
        one = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(one, known, local, include_extras=True)
        except NameError as error:
            hints[name] = Unresolved(str(annotation), str(error))
    return hints


def _is_context(name: str, kind: Any, *, by_name: bool) -> bool:
    """Return True if a last parameter is the context. ``by_name``: without a type, only its name counts."""
    if isinstance(kind, Unresolved):
        return name == "context" or kind.text.rpartition(".")[2] == Context.__name__
    return kind is Context or (kind in UNTYPED and (name == "context" or not by_name))


def _agreed(name: str, parameter: str, role: str, annotated: Any, given: Any) -> Any:
    """Return the type that annotation and declaration agree on; None if neither says one."""
    if annotated in UNTYPED or (given is not None and isinstance(annotated, Unresolved)):
        return given
    if isinstance(annotated, Unresolved):
        raise ConfigError(
            f"handler {name}: {annotated.error} in the annotation of {parameter!r}; define or import the type"
            f" above the handler, outside of TYPE_CHECKING, or pass {role}= to the decorator"
        )
    if given is not None and given != annotated:
        raise ConfigError(
            f"handler {name}: {role}= is {name_of(given)}, and {parameter!r} is annotated with"
            f" {name_of(annotated)}; leave {role}= out"
        )
    return annotated
