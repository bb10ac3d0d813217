"""Commands that are derived from the actions of operators."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.auditing import audited
from holdfast.cli.names import node_names
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.operate.actions import Action, Field, audited_fields

Key = Annotated[str, Parameter(help="The stream and its key: STREAM/KEY, as `holdfast status` shows them.")]
COMPLETERS = {"to": node_names}
"""The functions that complete the value of a field, by its name."""


def command(action: Action[str]) -> Callable[..., Awaitable[None]]:
    """Return the command of an action on a stream. Fields of its input are options, but for a list, whose
    values follow the key."""
    listed = [each.name for each in action.fields if each.kind == "list"]

    async def run(
        key: str,
        *values: str,
        yes: bool = False,
        json: bool = False,
        options: Options = DEFAULTS,
        **given: Any,
    ) -> None:
        check_stream(key)
        if action.confirm and not yes:
            raise ConfigError(f"{action.warning}; give --yes to confirm")
        try:
            chosen = msgspec.convert(given | {name: [*values] for name in listed}, action.input)
            async with (
                options.services(reads_only=True) as services,
                audited(services, action.audit or action.verb, key, audited_fields(chosen)) as under_way,
            ):
                done = await action.act(services, key, chosen)
                under_way.text = done.text
        except (msgspec.ValidationError, InvalidMessage) as error:
            raise ConfigError(str(error)) from None
        if json:
            output.json_line(done.answer if done.record is None else done.record)
        else:
            output.say(done.text)

    parameters = [*_parameters(action)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__name__ = action.verb
    run.__doc__ = action.help
    return run


def check_stream(key: str) -> None:
    """Raise ConfigError for a key that isn't STREAM/KEY."""
    stream, plain = output.split_key(key)
    if not (stream and plain):
        raise ConfigError(f"{key!r} must be STREAM/KEY, as `holdfast status` shows them")


def _parameters(action: Action[str]) -> Iterable[inspect.Parameter]:
    """Yield the parameters of an action's command, as Cyclopts reads them."""
    yield inspect.Parameter("key", inspect.Parameter.POSITIONAL_ONLY, annotation=Key)
    for each in sorted(action.fields, key=lambda each: each.kind != "list"):
        yield _parameter(each)
    if action.confirm:
        yield _option("yes", False, Annotated[bool, Parameter(name=["--yes", "-y"], help="Confirm.")])
    yield _option("json", False, Annotated[Json, Parameter(help="Print a JSON object.")])
    yield _option("options", DEFAULTS, Options)


def _parameter(each: Field) -> inspect.Parameter:
    """Return the parameter of a field: values for a list, else an option."""
    if each.kind == "list":
        annotation = Annotated[str, Parameter(help=each.description)]
        return inspect.Parameter(each.name, inspect.Parameter.VAR_POSITIONAL, annotation=annotation)
    described = Parameter(help=each.description, completer=COMPLETERS.get(each.name))
    default = inspect.Parameter.empty if each.required else each.default
    return _option(each.name, default, Annotated[each.type, described])


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
