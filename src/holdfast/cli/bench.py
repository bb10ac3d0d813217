"""``holdfast bench``."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options

if TYPE_CHECKING:
    from holdfast.config.settings import Config
    from holdfast.operate.bench import BenchReport


def bench(
    *,
    seconds: Annotated[float, Parameter(validator=Number(gt=0, lte=3600))] = 20.0,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Measure Holdfast on your services: messages a second, latency, and fail-over after a kill.

    Two nodes run on this host for one or two minutes, on a stream of their own, `holdfast-bench-…`. Messages
    have 100 bytes, and 100 keys. One node is killed at the end. Ends with an error if a message is lost,
    doubled or out of order.

    ```
    holdfast bench --url sqlite:///bench.db
    holdfast bench --json
    ```

    Args:
        seconds: How long each of the three parts lasts.
        json: Print the figures as one JSON object.
    """
    config = options.load(logs=False)
    report = asyncio.run(_measure(config, options, seconds))
    if json:
        import msgspec  # noqa: PLC0415

        output.json_line(msgspec.to_builtins(report))
    else:
        for line in summary(report):
            output.say(line)
    return exits.OK if report.is_right else exits.FAILED


async def _measure(config: Config, options: Options, seconds: float) -> BenchReport:
    from holdfast.cli.children import Launcher  # noqa: PLC0415
    from holdfast.operate import bench_app  # noqa: PLC0415
    from holdfast.operate.bench import Bench  # noqa: PLC0415
    from holdfast.wiring.services import Services  # noqa: PLC0415

    stream = f"holdfast-bench-{secrets.token_hex(3)}"
    arguments = ["node", f"{bench_app.__name__}:app", *options.file_arguments()]
    environment = {bench_app.STREAM_VARIABLE: stream}
    with tempfile.TemporaryFile() as log:
        launcher = Launcher(arguments, config, Path(), log, environment)
        try:
            async with Services(config) as services:
                return await Bench(services, stream, launcher.node, output.remark, seconds).run()
        finally:
            launcher.close()


def summary(report: BenchReport) -> list[str]:
    """Return the figures as lines that can be pasted."""
    services = ", ".join(dict.fromkeys(report.services.values()))
    machine = f"{report.system}, {report.cores} cores, {report.nodes} nodes"
    latency = f"{report.latency_p50_ms:.1f} ms median, {report.latency_p99_ms:.1f} ms p99"
    wrong = f"{report.lost} lost, {report.doubled} doubled, {report.out_of_order} out of order"
    return [
        f"holdfast {report.holdfast}, Python {report.python}, {machine}",
        f"services     {services} (durability: {report.durability})",
        f"throughput   {report.messages_per_s:,.0f} messages/s",
        f"latency      {latency}, at {report.calm_rate} messages/s",
        f"fail-over    {report.failover_ms:,.0f} ms, the longest wait of a message when a node is killed",
        f"correctness  {report.messages:,} messages: {wrong}",
    ]
