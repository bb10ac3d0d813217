"""The terminals at the doors, simulated: each keeps its whitelist, crashes, and loses messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from examples.whitelist.app import Order
from holdfast import devices

BEHAVIOUR = devices.Behaviour(
    latency_s=0.03,
    spread=0.5,
    loss=0.05,
    answer_loss=0.05,
    duplicate=0.05,
    garbage=0.02,
    foreign=0.02,
    late=0.02,
    late_s=3.0,
    crash=0.01,
    crash_s=3.0,
    heartbeat_s=1.5,
)


class Sent(Order):
    """A command as it arrives."""

    messageId: str = ""  # noqa: N815 (the devices' word)


class Terminals:
    """All doors. ``people``: terminal → person → name; a crash doesn't erase it."""

    def __init__(self, names: Sequence[str], broker: str, seed: str) -> None:
        self.people: dict[str, dict[str, str]] = {name: {} for name in names}
        self.fleet = devices.Fleet(
            broker, names, behaviour=BEHAVIOUR, seed=seed, work=self._work, dialect=None, name="terminals"
        )

    def _work(self, device: str, command: str, payload: bytes) -> bytes:
        sent = msgspec.json.decode(payload, type=Sent)
        if sent.operator == "EditPerson":
            self.people[device][sent.person] = sent.name
        else:
            self.people[device].pop(sent.person, None)
        return msgspec.json.encode({"messageId": command, "code": 200})
