"""An outbox's numbers on a node's metrics page."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.devices.metrics import OutboxMetrics
from holdfast.devices.rules.device_queue import CommandState, Patience
from tests.devices.simulated.conftest import Site


async def test_they_are_those_of_the_dispatcher(site: Site) -> None:
    await site.start(2, patience=Patience(retry_s=1.0, retry_max_s=1.0, max_tries=2))
    site.silence("odd")
    for n in range(4):
        await site.run(f"d{n % 2}")
    await site.until(await site.add("odd"), CommandState.FAILED)
    await site.add("odd")
    await site.add("nowhere")
    await site.clock.sleep(0.5)
    registry = CollectorRegistry()
    work: Any = SimpleNamespace(name="doors", dispatcher=site.dispatcher, briefs=SimpleNamespace(sent=3))
    registry.register(OutboxMetrics([work]))
    lines = generate_latest(registry).decode().splitlines()
    served = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    ours = {name.removeprefix("holdfast_outbox_"): float(value) for name, value in served.items()}
    assert ours.pop('turns_total{outbox="doors"}') >= 5
    assert ours == {
        'sent_total{outbox="doors"}': 8,
        'repeated_total{outbox="doors"}': 1,
        'strays_total{outbox="doors"}': 0,
        'late_total{outbox="doors"}': 0,
        'strangers_total{outbox="doors"}': 0,
        'briefs_total{outbox="doors"}': 3,
        'closed_total{outbox="doors",state="acknowledged"}': 4,
        'closed_total{outbox="doors",state="failed"}': 1,
        'in_flight{outbox="doors"}': 1,
        'shards{outbox="doors"}': 1,
        'connected{outbox="doors"}': 1,
        'away{outbox="doors"}': 1,
    }
