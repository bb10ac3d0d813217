"""Which devices are away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.devices.rules.presence import Presence, PresenceRules
from holdfast.errors import ConfigError

HEARTBEATS = PresenceRules(offline_after_s=90)
NONE = PresenceRules(heartbeats=False, silent_tries=2)


def test_silence_makes_it_away_and_a_sign_of_life_ends_that_at_once() -> None:
    presence = Presence(HEARTBEATS)
    assert not presence.seen("a", 0)
    assert not presence.seen("a", 89)
    presence.settle(179)
    assert not presence.away
    presence.settle(180)
    assert presence.away == {"a"}
    assert presence.last_seen("a") == 89
    assert presence.seen("a", 500), "it is back"
    assert not presence.away


def test_a_device_that_was_never_seen_counts_as_there_for_a_while() -> None:
    presence = Presence(HEARTBEATS)
    presence.expect("a", 0)
    presence.expect("a", 80)
    presence.settle(90)
    assert not presence.away
    presence.settle(91)
    assert presence.away == {"a"}
    assert presence.last_seen("a") is None
    presence.expect("a", 92)
    assert presence.away == {"a"}, "wanting something of it doesn't bring it back"


def test_without_heartbeats_time_says_nothing_but_unanswered_commands_do() -> None:
    presence = Presence(NONE)
    presence.seen("a", 0)
    presence.settle(1e9)
    presence.silent("a")
    assert not presence.away
    presence.silent("a")
    assert presence.away == {"a"}
    assert presence.seen("a", 30)
    presence.silent("a")
    assert not presence.away, "only those in a row count"


def test_with_heartbeats_a_device_that_only_does_not_answer_is_there() -> None:
    presence = Presence(HEARTBEATS)
    presence.seen("a", 0)
    for _ in range(9):
        presence.silent("a")
    assert not presence.away


def test_silent_tries_can_be_switched_off() -> None:
    presence = Presence(PresenceRules(heartbeats=False, silent_tries=0))
    for _ in range(9):
        presence.silent("a")
    assert not presence.away


@pytest.mark.parametrize("rules", [HEARTBEATS, NONE])
def test_a_device_without_a_receiver_is_away_at_once(rules: PresenceRules) -> None:
    presence = Presence(rules)
    presence.seen("a", 0)
    presence.mark_away("a")
    assert presence.away == {"a"}
    assert presence.seen("a", 2)
    assert not presence.away


def test_stored_presence_counts_until_there_is_news() -> None:
    presence = Presence(HEARTBEATS)
    presence.seen("b", 100)
    presence.restore_away("a", 7)
    presence.restore_away("b", 7)
    presence.restore_away("c", None)
    assert presence.away == {"a", "c"}
    assert presence.last_seen("a") == 7
    assert presence.last_seen("b") == 100
    assert presence.known() == {"a", "b", "c"}
    assert presence.news() == {"b": 100}
    assert presence.seen("a", 300)
    presence.forget("b")
    assert presence.last_seen("b") is None


def test_a_device_that_goes_away_is_news_once() -> None:
    presence = Presence(HEARTBEATS)
    presence.seen("a", 0)
    presence.expect("never seen", 0)
    assert presence.news() == {"a": 0}
    for _ in range(2):
        presence.settle(100)
        presence.mark_away("a")
    news = presence.news()
    assert news == {"a": 0, "never seen": None}
    assert presence.news() == {}
    presence.forget("a")
    presence.put_back(news)
    assert presence.news() == {"never seen": None}, "it couldn't be stored"


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="offline_after_s"):
        PresenceRules(offline_after_s=0)
    with pytest.raises(ConfigError, match="silent_tries"):
        PresenceRules(silent_tries=-1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["seen", "expect", "nobody", "wait"]))))
def test_a_device_is_away_if_silent_for_too_long_or_without_receiver(steps: list[tuple[str, str]]) -> None:
    presence, now = Presence(HEARTBEATS), 0.0
    since: dict[str, float] = {}
    for device, step in steps:
        now += 30
        if step == "seen":
            since[device] = now
            presence.seen(device, now)
        elif step == "expect":
            since.setdefault(device, now)
            presence.expect(device, now)
        elif step == "nobody":
            since[device] = float("-inf")
            presence.mark_away(device)
        presence.settle(now)
        assert presence.away == {name for name, at in since.items() if now - at > 90}


def test_a_command_that_the_broker_did_not_take_says_nothing_of_its_device() -> None:
    presence = Presence(NONE)
    presence.silent("a")
    presence.mark_refused("a")
    presence.silent("a")
    assert not presence.away
    presence.silent("a")
    assert presence.away == {"a"}, "the next one was taken"


def test_a_sign_of_life_ends_that_a_device_was_not_asked() -> None:
    presence = Presence(NONE)
    presence.mark_refused("a")
    presence.seen("a", 0)
    presence.silent("a")
    presence.silent("a")
    assert presence.away == {"a"}
