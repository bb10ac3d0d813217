"""``holdfast limits``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from holdfast.cli import output
from holdfast.cli.auditing import audited
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.settings import COUNT_MAX
from holdfast.errors import ConfigError
from holdfast.operate import limits
from holdfast.operate.limits import LimitRecord

app = App(name="limits", help="Limit how many tasks of an app run at once. Running nodes follow changes.")

Owner = Annotated[str, Parameter(help="Name of the app.")]


@app.command(name="set")
async def set_(
    owner: Owner,
    /,
    *,
    maximum: Annotated[int | None, Parameter(name="--global")] = None,
    per_node: Annotated[int | None, Parameter(name="--node")] = None,
    strict: Annotated[bool | None, Parameter(negative="--no-strict")] = None,
    rate: list[str] | None = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Limit the tasks of an app: how many run on all nodes together and on each node, and how many of a type
    begin per second. 0 removes a limit.

    Running tasks continue; none begins while more run than the new limit allows.

    A node that can't reach the registry for half a minute ends its tasks, because others may begin as many;
    they run again and spend no try. With --no-strict they continue, and more than the limit may run.

    ```
    holdfast limits set reports --global 40 --node 8
    holdfast limits set reports --rate report.publish=2.5 --rate mail.send=declared
    ```

    Args:
        maximum: The most tasks at once on all nodes.
        per_node: The most on one node; nodes with fewer slots run fewer.
        strict: Keep the limit in any case (the default).
        rate: TYPE=NUMBER: attempts of a type that begin per second on all nodes together; 0 for no limit, and
            TYPE=declared for the rate in the app's code. May be repeated.
        json: Print JSON.
    """
    for name, limit in (("--global", maximum), ("--node", per_node)):
        if limit is not None and limit < 0:
            raise ConfigError(f"{name} is {limit}: give 0 for no limit, or the most tasks at once")
    if maximum is None and per_node is None and strict is None and not rate:
        raise ConfigError("give a limit: --global, --node, --strict or --rate, such as --global 40")
    rates = dict(map(_rate, rate or ()))
    async with options.services() as services:
        limits_given = {"global": maximum, "node": per_node, "strict": strict, "rates": " ".join(rate or ())}
        async with audited(services, limits.SET_ACTION, owner, limits_given):
            record = await limits.change_limits(
                services, owner, maximum=maximum, per_node=per_node, strict=strict, rates=rates
            )
        from holdfast.operate.tasks import tasks_warning  # noqa: PLC0415 - a page of help needs none

        if warning := await tasks_warning(services, owner, rates):
            output.remark(warning)
    _print([record], json)


@app.command(name="ls")
async def ls(
    owner: Annotated[str, Parameter(help="Name of an app. Default: all.")] = "",
    /,
    *,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List limits, and the tasks that nodes may run at present under a global limit.

    ```
    holdfast limits ls
    ```

    Args:
        json: Print JSON lines, one an app.
    """
    async with options.services(reads_only=True) as services:
        found = await limits.listed(services, owner)
    _print(found, json)


def _rate(text: str) -> tuple[str, float | None]:
    name, _, rate = text.partition("=")
    try:
        per_s = None if rate == "declared" else float(rate)
    except ValueError:
        per_s = -1.0
    if not name or (per_s is not None and not 0 <= per_s <= COUNT_MAX):
        raise ConfigError(f"--rate {text!r} must be TYPE=NUMBER, at least 0, such as report.publish=2.5")
    return name, per_s


def _print(records: Sequence[LimitRecord], json: bool) -> None:
    rows = [
        [
            record.app,
            record.maximum or "none",
            record.per_node or "none",
            record.strict,
            record.granted,
            record.wanted,
            record.nodes,
            ", ".join(f"{name}={rate:g}" for name, rate in record.rates.items()),
        ]
        for record in records
    ]
    columns = [field.encode_name for field in msgspec.structs.fields(LimitRecord)]
    output.show("Limits", columns, rows, records, json=json)
