"""What a back office adds: checked where it is added, with the reason."""

import math
from typing import Any

import msgspec
import pytest
import structlog
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from holdfast import App
from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.outbox import NewCommand, Writer
from holdfast.devices.rules.device_queue import Patience
from holdfast.devices.rules.dialect import JsonDialect, PlainDialect, Reading, read_answer
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.rules.topics import Topics
from holdfast.errors import ConfigError, InvalidMessage, TooLarge

NOW = 1_700_000_000.0


class Notes(Writer):
    """Keeps what is added."""

    def __init__(self) -> None:
        self.added: list[NewCommand] = []
        self.rollouts: list[tuple[Any, ...]] = []

    def add(self, commands: Any) -> list[int]:
        self.added += commands
        return [*range(len(self.added) - len(commands) + 1, len(self.added) + 1)]

    def add_rollout(self, *rollout: Any) -> int:
        self.rollouts.append(rollout)
        return 77

    def cancel(self, *_: Any, **__: Any) -> int:
        return 0

    def pause(self, *_: Any) -> None:
        pass

    def resume(self, *_: Any) -> bool:
        return False


@pytest.fixture
def db() -> Notes:
    return Notes()


def made(**settings: Any) -> Outbox:
    settings.setdefault("dialect", PlainDialect())
    outbox = App("office").outbox("doors", **settings)
    outbox.wall = lambda: NOW
    return outbox


def test_commands_are_bytes_text_or_json(db: Notes) -> None:
    outbox = made()
    for command in (b"\x00\xff", "Öffne", {"person": 951}, msgspec.Raw(b"[1]")):
        outbox.add(db, device="d1", command=command)
    assert [new.body for new in db.added] == [b"\x00\xff", "Öffne".encode(), b'{"person":951}', b"[1]"]
    with pytest.raises(InvalidMessage, match="JSON"):
        outbox.add(db, device="d1", command=object())


def test_its_id_counts_where_its_size_does(db: Notes) -> None:
    outbox = made(dialect=JsonDialect(), max_body=100)
    outbox.add(db, device="d1", command={"text": "x" * 20})
    with pytest.raises(TooLarge, match="max_body"):
        outbox.add(db, device="d1", command={"text": "x" * 60})
    assert db.added[0].body == b'{"text":"%s"}' % (b"x" * 20), "it is stored as it was given"


def test_a_body_or_key_over_its_limit_is_refused_by_name(db: Notes) -> None:
    with pytest.raises(TooLarge, match="max_body"):
        made(max_body=10).add(db, device="d1", command=b"x" * 11)
    for key in ("dedupe_key", "supersede_key"):
        too_long: dict[str, Any] = {key: "k" * 300}
        with pytest.raises(InvalidMessage, match=key):
            made().add(db, device="d1", command=b"", **too_long)


def test_delays_and_expiries_count_from_now(db: Notes) -> None:
    outbox = made(expires_in_s=60.0)
    outbox.add(db, device="d1", command=b"")
    outbox.add(db, device="d1", command=b"", delay_s=10.0)
    outbox.add(db, device="d1", command=b"", expires_in_s=None)
    outbox.add(db, device="d1", command=b"", expires_in_s=5.0)
    times = [(new.not_before, new.expires_at) for new in db.added]
    assert times == [(0.0, NOW + 60), (NOW + 10, NOW + 70), (0.0, None), (0.0, NOW + 5)]


def test_a_command_stands_in_the_trace_of_the_current_span(db: Notes) -> None:
    trace_id, own = "4bf92f3577b34da6a3ce929d0e0e4736", f"00-{'1' * 32}-{'2' * 16}-00"
    current = SpanContext(int(trace_id, 16), 0xF067AA0BA902B7, False, TraceFlags(TraceFlags.SAMPLED))
    outbox = made()
    with use_span(NonRecordingSpan(current)):
        outbox.add(db, device="d1", command=b"")
        outbox.add_many(db, [{"device": "d2", "command": b"", "traceparent": own}])
        outbox.add_rollout(db, "all", ["d3"], b"")
    outbox.add(db, device="d4", command=b"")
    outbox.add(db, device="d5", command=b"", traceparent=f"{own}x")
    outbox.add(db, device="d6", command=b"", traceparent="01" + own[2:] + "-later")
    place = f"00-{trace_id}-00f067aa0ba902b7-01"
    assert [new.traceparent for new in db.added] == [place, own, place, "", "", "01" + own[2:]]


def test_the_trace_id_is_the_one_that_is_bound(db: Notes) -> None:
    with structlog.contextvars.bound_contextvars(trace_id="t-1"):
        made().add(db, device="d1", command=b"")
    made().add(db, device="d1", command=b"", trace_id="t-2")
    made().add(db, device="d1", command=b"")
    assert [new.trace_id for new in db.added] == ["t-1", "t-2", ""]


def test_commands_with_one_supersede_key_share_a_lane(db: Notes) -> None:
    outbox = made(lanes=3)
    for person in (1, 2, 3, 4) * 2:
        outbox.add(db, device="d1", command=b"", supersede_key=f"person {person}")
    lanes = [new.lane for new in db.added]
    assert lanes[:4] == lanes[4:]
    assert set(lanes) <= {0, 1, 2}
    db.added.clear()
    outbox.add_many(db, [{"device": "d1", "command": b""}] * 6)
    assert sorted(new.lane for new in db.added) == [0, 0, 1, 1, 2, 2]


def test_a_rollout_goes_out_at_its_rate(db: Notes) -> None:
    devices = [f"d{n}" for n in range(4)]
    assert made().add_rollout(db, "firmware", devices, {"v": 2}, rate=2.0, abort_share=0.05) == 77
    assert db.rollouts == [("doors", "firmware", 4, 2.0, 0.05, NOW)]
    assert [(new.device, new.rollout) for new in db.added] == [(device, 77) for device in devices]
    assert [new.not_before for new in db.added] == [0.0, NOW + 0.5, NOW + 1.0, NOW + 1.5]
    with pytest.raises(ConfigError, match="rate"):
        made().add_rollout(db, "firmware", devices, b"", rate=0.0)
    with pytest.raises(ConfigError, match="abort_share"):
        made().add_rollout(db, "firmware", devices, b"", abort_share=5.0)
    with pytest.raises(ConfigError, match="dedupe_key"):
        made().add_rollout(db, "firmware", devices, b"", dedupe_key="2.1")


@pytest.mark.parametrize(
    "settings,named",
    [
        ({"shards": 0}, "shards"),
        ({"lanes": 0}, "lanes"),
        ({"rate": 0.0}, "rate"),
        ({"keep_s": -1.0}, "keep_s"),
        ({"patience": Patience(retry_s=0.0)}, "retry_s"),
        ({"patience": Patience(retry_s=10.0, retry_max_s=5.0)}, "retry_max_s"),
        ({"patience": Patience(max_tries=0)}, "max_tries"),
        ({"briefs": "a/b"}, "briefs"),
        ({"group_rates": {"a": 1.0}}, "group"),
        ({"group": len, "group_rates": {"a": 0.0}}, "group_rates"),
        ({"shards": 1.5}, "shards"),
        ({"shards": True}, "shards"),
        ({"shards": 10**6}, "shards"),
        ({"lanes": "2"}, "lanes"),
        ({"expires_in_s": float("inf")}, "expires_in_s"),
        ({"expires_in_s": float("nan")}, "expires_in_s"),
        ({"keep_s": None}, "keep_s"),
        ({"max_body": 2**40}, "max_body"),
        ({"in_flight_max": 0.5}, "in_flight_max"),
        ({"rate": float("inf")}, "rate"),
        ({"group": "all"}, "group"),
        ({"group": len, "group_rates": {"a": "fast"}}, "group_rates"),
        ({"group": len, "group_rates": [1]}, "group_rates"),
        ({"archive": "no"}, "archive"),
        ({"briefs": None}, "briefs"),
        ({"patience": 5}, "patience"),
        ({"patience": Patience(retry_s="10")}, "patience.retry_s"),  # type: ignore[arg-type]
        ({"patience": Patience(retry_max_s=float("inf"))}, "patience.retry_max_s"),
        ({"patience": Patience(max_tries=1.5)}, "patience.max_tries"),  # type: ignore[arg-type]
        ({"patience": Patience(probe_s=float("nan"))}, "patience.probe_s"),
        ({"presence": "always"}, "presence"),
        ({"topics": "dev/{device}"}, "topics"),
        ({"dialect": "json"}, "dialect"),
    ],
)
def test_an_impossible_setting_of_an_outbox_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        made(**settings)


@pytest.mark.parametrize(
    "make,named",
    [
        (lambda: Topics(command=5), "topics: command"),  # type: ignore[arg-type]
        (lambda: PresenceRules(offline_after_s="90"), "presence: offline_after_s"),  # type: ignore[arg-type]
        (lambda: PresenceRules(offline_after_s=float("inf")), "presence: offline_after_s"),
        (lambda: PresenceRules(heartbeats="yes"), "presence: heartbeats"),  # type: ignore[arg-type]
        (lambda: JsonDialect(field=""), "JsonDialect: field"),
        (lambda: JsonDialect(success=200), "JsonDialect: success"),  # type: ignore[arg-type]
        (lambda: made().source("x" * 65), "name"),
        (lambda: made().source("erp", pause_s=float("inf")), "pause_s"),
        (lambda: made().source("erp", low=1.5), "low"),  # type: ignore[arg-type]
        (lambda: made().source("erp", refused=5), "refused"),  # type: ignore[arg-type]
    ],
)
def test_invalid_parts_of_an_outbox_are_refused_at_their_declaration(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.mark.parametrize(
    "options,named",
    [
        ({"device": 2042253}, "device"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"delay_s": float("inf")}, "delay_s"),
        ({"delay_s": None}, "delay_s"),
        ({"expires_in_s": float("nan")}, "expires_in_s"),
        ({"trace_id": 7}, "trace_id"),
        ({"traceparent": 7}, "traceparent"),
        ({"trace_id": "a\0b"}, "trace_id"),
        ({"dedupe_key": 951}, "dedupe_key"),
        ({"dedupe_key": "a\0b"}, "dedupe_key"),
        ({"supersede_key": "\ud800"}, "supersede_key"),
        ({"rollout": "firmware"}, "rollout"),
        ({"command": "\ud800"}, "command"),
        ({"command": {"open_s": math.nan}}, "it holds NaN or an infinity"),
        ({"command": {"open_s": math.inf}}, "it holds NaN or an infinity"),
        *(({"device": device}, "device") for device in ("", "a/b", "+", "a\0b", "$SYS", "x" * 200, "ü")),
        *(
            ({"command": command, "dialect": JsonDialect()}, "must be a JSON object")
            for command in (b"", b"open", "[]", 7, b'{"open":')
        ),
    ],
)
def test_values_that_no_database_keeps_are_refused_when_added(
    db: Notes, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidMessage, match=named):
        made(dialect=options.pop("dialect", PlainDialect())).add(
            db, **{"device": "d1", "command": b"", **options}
        )
    assert db.added == []


@pytest.mark.parametrize(
    "options,named",
    [
        ({"rate": float("nan")}, "rate"),
        ({"rate": "50"}, "rate"),
        ({"abort_share": 1.5}, "abort_share"),
        ({"abort_share": None}, "abort_share"),
        ({"name": "x" * 256}, "name"),
        ({"name": None}, "name"),
    ],
)
def test_rollouts_that_make_no_sense_are_refused(db: Notes, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        made().add_rollout(db, **{"name": "firmware", "devices": ["d1"], "command": b"", **options})
    assert db.added == []


class Failing:
    """A dialect of somebody's own, with a mistake in it."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        raise SystemExit(id)

    def read(self, payload: bytes) -> Reading:
        raise ZeroDivisionError


def test_a_dialect_that_fails_fails_where_a_command_is_added(db: Notes) -> None:
    with pytest.raises(InvalidMessage, match=r"Failing\.write failed with SystemExit"):
        made(dialect=Failing()).add(db, device="d1", command=b"")
    with pytest.raises(InvalidMessage, match=r"Failing\.read failed with ZeroDivisionError"):
        read_answer(Failing(), b"\xff")


def test_cancel_needs_to_know_which_commands(db: Notes) -> None:
    outbox = made()
    for which in ({}, {"command": 1, "device": "d1"}, {"command": "7"}, {"command": 2**63}):
        with pytest.raises(ConfigError, match="command"):
            outbox.cancel(db, **which)
    with pytest.raises(InvalidMessage, match="wildcard"):
        outbox.cancel(db, device="+")
    with pytest.raises(InvalidMessage, match="supersede_key"):
        outbox.cancel(db, supersede_key="")
    with pytest.raises(InvalidMessage, match="wildcard"):
        outbox.pause(db, "#")


@pytest.mark.parametrize("name", ["", "a b", "1a", "a/b", "x" * 40, 7, None])
def test_names_with_odd_characters_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        App("office").outbox(name)


def test_callbacks_and_sources_are_declared_once() -> None:
    outbox = made()
    outbox.on_result(lambda db, command: None)
    with pytest.raises(ConfigError, match="on_result"):
        outbox.on_result(lambda db, command: None)
    with pytest.raises(ConfigError, match="low"):
        outbox.source("api", low=10, high=5)
