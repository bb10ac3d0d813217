"""What can't be declared is refused where it is declared, by name."""

import math
from typing import Any

import pytest

from holdfast import App, StreamHandler
from holdfast.common.effects import EffectLimits
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError
from holdfast.streams.owners import rules_of
from simulator.limits import limits_with


class Handler(StreamHandler[dict[str, Any]]):
    pass


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"on_gap": "bogus"}, ["on_gap is 'bogus'", "one of dead-letter, hold, skip"]),
        ({"on_late": ""}, ["on_late is ''", "one of dead-letter, discard"]),
        ({"on_failure": "stop"}, ["on_failure is 'stop'", "one of park, skip"]),
        ({"seq": "n", "seq_kind": "sparse"}, ["seq_kind is 'sparse'", "one of absent, dense, increasing"]),
        (
            {"seq": "n", "first_seq": "lowst"},
            ["first_seq is 'lowst'", "a whole number at least 0", "or one of first, lowest"],
        ),
        ({"seq": "queue", "first_seq": 0}, ["first_seq = 0", "increasing"]),
        ({"seq": "n", "first_seq": -1}, ["first_seq is -1", "a whole number at least 0"]),
        ({"seq_kind": "dense"}, ["needs seq="]),
        ({"max_tries": 0}, ["max_tries is 0", "a whole number at least 1"]),
        ({"max_pending_effects": 0}, ["max_pending_effects is 0", "a whole number", "1"]),
        ({"max_pending_effects": 10**6}, ["max_pending_effects is 1000000", "100,000"]),
        ({"max_pending_bytes": 1 << 30}, ["max_pending_bytes is", "67,108,864"]),
        ({"effect_timeout_s": 1e8}, ["effect_timeout_s is 100000000.0", "2,592,000"]),
        ({"max_timers": 1001}, ["max_timers is 1001", "1,000"]),
        ({"timeout_s": 0}, ["timeout_s is 0", "a number above 0"]),
        ({"start_timeout_s": 50}, ["start_timeout_s is 50", "gap_timeout_s is 45.0"]),
        ({"idle_timeout_s": 0}, ["idle_timeout_s is 0", "a number above 0"]),
        ({"key": None}, ["key is None", "a text or a tuple (each item a text)"]),
        ({"key": ()}, ["key is ()", "or a tuple of names"]),
        ({"key": ("a", None)}, ["key is ('a', None)", "a text or a tuple (each item a text)"]),
        ({"seq": ("n", "")}, ["seq is ('n', '')", "or a tuple of names"]),
        ({"run": 3}, ["run is 3", "a text or a tuple (each item a text or None)"]),
        ({"timeout_s": math.inf}, ["timeout_s is inf", "at most 1,000,000,000"]),
        ({"gap_timeout_s": math.nan}, ["gap_timeout_s is nan", "a number above 0"]),
        ({"timeout_s": None}, ["timeout_s is None", "a number"]),
        ({"timeout_s": True}, ["timeout_s is True", "a number"]),
        ({"checkpoint_after_ms": "20"}, ["checkpoint_after_ms is '20'", "a number"]),
        ({"max_tries": 1.5}, ["max_tries is 1.5", "a whole number"]),
        ({"inbox_limit": True}, ["inbox_limit is True", "a whole number"]),
        ({"backoff": 5}, ["backoff is 5", "a Backoff"]),
        ({"backoff": Backoff(math.inf)}, ["backoff.first_s is inf", "a number above 0"]),
        ({"prefer_latency": "no"}, ["prefer_latency is 'no'", "True or False"]),
        ({"seq": "n", "first_seq": True}, ["first_seq is True", "a whole number"]),
        ({"seq_prefix": 5}, ["seq_prefix is 5", "a text"]),
        ({"body_field": None}, ["body_field is None", "a text"]),
        ({"models": 5}, ["models is (5,)", "a tuple (each item a text)"]),
        ({"key": ["a", "b"]}, ["key is ['a', 'b']", "a text or a tuple"]),
        ({"seq": "n", "max_jump": 0}, ["max_jump is 0", "a whole number at least 1"]),
        ({"max_jump": 5}, ["max_jump needs numbers of the producer's"]),
        ({"seq": "queue", "restart_after_s": 99.0}, ["restart_after_s needs numbers of the producer's"]),
        (
            {"seq": "n", "run": "r", "restart_after_s": 99.0},
            ["messages have a run ('r')", "leave restart_after_s"],
        ),
        ({"seq": "n", "restart_after_s": 9.0}, ["restart_after_s is 9.0", "gap_timeout_s is 45.0"]),
    ],
)
def test_an_impossible_setting_of_a_stream_is_named(settings: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        App("app").stream("s", **settings)(Handler)
    for part in ["stream 's'", *named]:
        assert part in str(refusal.value)


@pytest.mark.parametrize("name", ["", "a/b", "a\nb"])
def test_an_impossible_name_of_a_stream_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="stream name"):
        App("app").stream(name)(Handler)


def test_a_stream_that_is_declared_twice_is_refused() -> None:
    app = App("app")
    app.stream("s")(Handler)
    with pytest.raises(ConfigError, match="declared twice"):
        app.stream("s")(Handler)


@pytest.mark.parametrize("seq, kind", [(None, "absent"), ("n", "dense"), ("queue", "increasing")])
def test_the_kind_follows_from_the_seq(seq: str | None, kind: str) -> None:
    app = App("app")
    app.stream("s", seq=seq)(Handler)
    assert app.streams["s"].seq_kind == kind
    assert app.streams["s"].full_key("a/b") == "s/a/b"


@pytest.mark.parametrize(
    "run, names, optional",
    [
        (None, (), True),
        ("run", ("run",), False),
        (("a", "b"), ("a", "b"), False),
        (("a", None), ("a",), True),
    ],
)
def test_a_run_with_none_among_its_fields_is_optional(
    run: Any, names: tuple[str, ...], optional: bool
) -> None:
    app = App("app")
    app.stream("s", run=run)(Handler)
    assert (app.streams["s"].run_names, app.streams["s"].run_optional) == (names, optional)


def test_the_limits_of_what_a_stream_sends_and_sets_reach_its_owner() -> None:
    app = App("t")
    limits = {"max_pending_effects": 2, "max_pending_bytes": 3, "effect_timeout_s": 4.0, "max_timers": 5}
    app.stream("s", **limits)(Handler)  # type: ignore[arg-type]
    rules = rules_of(app.streams["s"], limits_with())
    assert rules.effects == EffectLimits(2, 3, 4.0)
    assert rules.max_timers == 5
    app.stream("default")(Handler)
    assert rules_of(app.streams["default"], limits_with()).effects == EffectLimits()
