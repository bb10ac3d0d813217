"""Apps in which goes wrong what alerts are for. Their nodes ask services every second how they are."""

import os
import signal
import sys
from typing import Any

from holdfast import App, Context, Job
from holdfast.devices.rules.device_queue import Patience
from holdfast.devices.rules.presence import PresenceRules

NO_RECEIVER = "http://127.0.0.1:9/hook"
"""A webhook without a server."""

working = App("working")
opening = App("opening")

gates = opening.outbox(
    "gates",
    patience=Patience(retry_s=1.0, retry_max_s=1.0, max_tries=1000),
    presence=PresenceRules(silent_tries=0),
)


def load() -> None:
    raise FileNotFoundError("the weights are gone")


working.model("gone", load)


@opening.stream("chain", seq="n", first_seq=0)
@working.stream("chain", seq="n", first_seq=0)
@working.stream("skipping", seq="n", first_seq=0, gap_timeout_s=0.5, prefer_latency=True)
@working.stream("holding", seq="n", first_seq=0, on_gap="hold")
@working.stream("seeing", models="gone")
def returning(message: dict[str, Any], context: Context) -> Any:
    return message


@working.stream("telling")
def telling(message: dict[str, Any], context: Context) -> None:
    context.send(NO_RECEIVER, message)


@working.stream("dying")
def dying(message: dict[str, Any], context: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@working.task("failing", tries=1)
def failing(body: dict[str, Any], job: Job) -> None:
    raise ValueError("it must fail")


if "CHAOS_PLACE" in os.environ and "holdfast-slot" not in sys.argv:
    from holdfast.cluster import service_metrics

    service_metrics.FREE_EVERY_S = service_metrics.HEALTH_EVERY_S = 1.0
