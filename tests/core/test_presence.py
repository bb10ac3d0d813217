"""Which devices are there, and what is sent to those that aren't."""

import pytest

from holdfast.core.presence import Presence, PresenceRules, Standing
from holdfast.errors import ConfigError

HEARTBEATS = PresenceRules(offline_after_s=90, probe_every_s=60)
NONE = PresenceRules(heartbeats=False, silent_tries=2, probe_every_s=60)


def test_a_device_that_nothing_is_known_of_counts_as_there_for_a_while() -> None:
    presence = Presence(HEARTBEATS)
    assert presence.standing("a", 0) is Standing.UNKNOWN
    assert presence.send_at("a", 0) == 0
    assert presence.sent("a", 0)
    assert presence.send_at("a", 90) == 90
    assert presence.standing("a", 91) is Standing.OFFLINE


def test_silence_makes_it_offline_and_a_sign_of_life_online_at_once() -> None:
    presence = Presence(HEARTBEATS)
    assert not presence.seen("a", 0)
    assert not presence.seen("a", 89)
    assert presence.standing("a", 179) is Standing.ONLINE
    assert presence.standing("a", 180) is Standing.OFFLINE
    assert presence.last_seen("a") == 89
    assert presence.seen("a", 500), "it is back"
    assert presence.send_at("a", 500) == 500
    assert presence.sent("a", 500)


def test_an_offline_device_is_probed_now_and_then_and_no_try_is_used_up() -> None:
    presence = Presence(HEARTBEATS)
    presence.seen("a", 0)
    assert presence.send_at("a", 100) == 100
    assert not presence.sent("a", 100)
    assert presence.send_at("a", 101) == 160
    assert presence.send_at("a", 160) == 160
    assert not presence.sent("a", 160)
    assert presence.send_at("a", 161) == 220
    assert presence.seen("a", 162)
    assert presence.send_at("a", 162) == 162


def test_without_heartbeats_time_says_nothing_but_unanswered_commands_do() -> None:
    presence = Presence(NONE)
    presence.seen("a", 0)
    assert presence.standing("a", 1e9) is Standing.ONLINE
    presence.silent("a", 10)
    assert presence.standing("a", 10) is Standing.ONLINE
    presence.silent("a", 20)
    assert presence.standing("a", 20) is Standing.OFFLINE
    assert presence.seen("a", 30)
    presence.silent("a", 40)
    assert presence.standing("a", 40) is Standing.ONLINE, "only those in a row count"


def test_with_heartbeats_a_device_that_only_does_not_answer_is_there() -> None:
    presence = Presence(HEARTBEATS)
    presence.seen("a", 0)
    for _ in range(9):
        presence.silent("a", 1)
    assert presence.standing("a", 1) is Standing.ONLINE


@pytest.mark.parametrize("rules", [HEARTBEATS, NONE])
def test_a_device_that_nobody_listens_for_is_offline_at_once(rules: PresenceRules) -> None:
    presence = Presence(rules)
    presence.seen("a", 0)
    presence.nobody("a", 1)
    assert presence.standing("a", 1) is Standing.OFFLINE
    assert presence.seen("a", 2)
    assert presence.standing("a", 2) is Standing.ONLINE


def test_what_an_earlier_dispatcher_knew_counts_until_there_is_news() -> None:
    presence = Presence(HEARTBEATS)
    presence.remember("a", 100)
    presence.seen("b", 100)
    presence.remember("b", 50)
    assert presence.last_seen("a") == presence.last_seen("b") == 100
    assert presence.standing("a", 191) is Standing.OFFLINE
    presence.forget("a")
    assert presence.standing("a", 191) is Standing.UNKNOWN
    assert presence.last_seen("a") is None


def test_rules_that_make_no_sense_are_refused() -> None:
    for setting in ({"offline_after_s": 0.0}, {"probe_every_s": -1.0}, {"silent_tries": -1}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            PresenceRules(**setting)
