"""The devices that a node knows."""

from holdfast import App
from holdfast.devices.dispatcher import DispatcherCounts
from holdfast.devices.dispatcher.register import DeviceRegister
from holdfast.devices.ports.outbox import KnownDevice
from holdfast.devices.rules.device_queue import Correlation, Patience
from holdfast.devices.rules.presence import PresenceRules
from tests.cluster.fakes import Log
from tests.devices.dispatcher.conftest import SetClock

PATIENCE = Patience(retry_s=2.0, retry_max_s=4.0)


class Desk:
    """A register, and what it stands on."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.log = Log()
        self.counts = DispatcherCounts()
        presence = PresenceRules(heartbeats=False, silent_tries=2)
        spec = App("office").outbox("doors", patience=PATIENCE, presence=presence).spec
        self.register = DeviceRegister(spec, self.clock, self.log, self.counts)


def test_a_device_known_to_be_away_stays_so_until_it_is_seen() -> None:
    desk = Desk()
    desk.register.add_shard([KnownDevice("d0", None, True), KnownDevice("d1", None, False)])
    assert desk.register.away == {"d0"}
    assert desk.register.seen("d0") == (True, True)
    assert desk.register.away == set()
    assert desk.register.seen("d0") == (True, False)
    assert set(desk.register.news(0.0)) == {"d0"}
    desk.register.drop_shard(0)
    assert desk.register.seen("d1") == (False, False)


def test_tries_without_an_answer_make_a_device_away() -> None:
    desk = Desk()
    for tries in (1, 2, 3):
        desk.register.sent("d0", Correlation(1, 1, tries))
    assert desk.register.away == {"d0"}
