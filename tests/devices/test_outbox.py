"""What a back office adds: checked where it is added, with the reason."""

import math
from typing import Any

import msgspec
import pytest
import structlog

from holdfast.core.device_queue import Patience
from holdfast.core.dialect import JsonDialect, PlainDialect
from holdfast.devices.outbox import Outbox
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.ports.outbox import NewCommand, Writer

NOW = 1_700_000_000.0


class Notes(Writer):
    """Keeps what is added."""

    def __init__(self) -> None:
        self.added: list[NewCommand] = []
        self.jobs: list[tuple[Any, ...]] = []

    def add(self, commands: Any) -> list[int]:
        self.added += commands
        return [*range(len(self.added) - len(commands) + 1, len(self.added) + 1)]

    def add_job(self, *job: Any) -> int:
        self.jobs.append(job)
        return 77


@pytest.fixture
def db() -> Notes:
    return Notes()


def made(**settings: Any) -> Outbox:
    settings.setdefault("dialect", PlainDialect())
    outbox = Outbox("doors", **settings)
    outbox.wall = lambda: NOW
    return outbox


def test_commands_are_bytes_text_or_json(db: Notes) -> None:
    outbox = made()
    for command in (b"\x00\xff", "Öffne", {"person": 951}, msgspec.Raw(b"[1]")):
        outbox.add(db, device="d1", command=command)
    assert [new.body for new in db.added] == [b"\x00\xff", "Öffne".encode(), b'{"person":951}', b"[1]"]
    with pytest.raises(InvalidMessage, match="JSON"):
        outbox.add(db, device="d1", command=object())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_lacks_does_not_become_null(db: Notes, number: float) -> None:
    with pytest.raises(InvalidMessage, match="it holds NaN or an infinity"):
        made().add(db, device="d1", command={"open_s": number})
    assert db.added == []


@pytest.mark.parametrize("command", [b"", b"open", "[]", 7, b'{"open":'])
def test_a_command_that_has_no_place_for_its_id_is_refused(db: Notes, command: Any) -> None:
    with pytest.raises(InvalidMessage, match="must be a JSON object"):
        made(dialect=JsonDialect()).add(db, device="d1", command=command)
    assert db.added == []


def test_its_id_counts_where_its_size_does(db: Notes) -> None:
    outbox = made(dialect=JsonDialect(), max_body=100)
    outbox.add(db, device="d1", command={"text": "x" * 20})
    with pytest.raises(TooLarge, match="max_body"):
        outbox.add(db, device="d1", command={"text": "x" * 60})
    assert db.added[0].body == b'{"text":"%s"}' % (b"x" * 20), "it is stored as it was given"


@pytest.mark.parametrize("device", ["", "a/b", "+", "a#", "a\0b", "$SYS", "x" * 200, "ü"])
def test_a_device_that_makes_no_topic_is_refused(db: Notes, device: str) -> None:
    with pytest.raises(InvalidMessage, match="device"):
        made().add(db, device=device, command=b"")
    assert db.added == []


def test_limits_are_named(db: Notes) -> None:
    with pytest.raises(TooLarge, match="max_body"):
        made(max_body=10).add(db, device="d1", command=b"x" * 11)
    for key in ("dedupe_key", "supersede_key"):
        with pytest.raises(InvalidMessage, match=key):
            made().add(db, device="d1", command=b"", **{key: "k" * 300})


def test_times_count_from_now(db: Notes) -> None:
    outbox = made(expires_in_s=60.0)
    outbox.add(db, device="d1", command=b"")
    outbox.add(db, device="d1", command=b"", delay_s=10.0)
    outbox.add(db, device="d1", command=b"", expires_in_s=None)
    outbox.add(db, device="d1", command=b"", expires_in_s=5.0)
    times = [(new.not_before, new.expires_at) for new in db.added]
    assert times == [(0.0, NOW + 60), (NOW + 10, NOW + 70), (0.0, None), (0.0, NOW + 5)]


def test_the_trace_id_is_the_one_that_is_bound(db: Notes) -> None:
    with structlog.contextvars.bound_contextvars(trace_id="t-1"):
        made().add(db, device="d1", command=b"")
    made().add(db, device="d1", command=b"", trace_id="t-2")
    made().add(db, device="d1", command=b"")
    assert [new.trace_id for new in db.added] == ["t-1", "t-2", ""]


def test_lanes_keep_what_belongs_together(db: Notes) -> None:
    outbox = made(lanes=3)
    for person in (1, 2, 3, 4) * 2:
        outbox.add(db, device="d1", command=b"", supersede_key=f"person {person}")
    lanes = [new.lane for new in db.added]
    assert lanes[:4] == lanes[4:]
    assert set(lanes) <= {0, 1, 2}
    db.added.clear()
    outbox.add_many(db, [{"device": "d1", "command": b""}] * 6)
    assert sorted(new.lane for new in db.added) == [0, 0, 1, 1, 2, 2]


def test_a_job_rolls_out_at_its_rate(db: Notes) -> None:
    devices = [f"d{n}" for n in range(4)]
    assert made().add_job(db, "firmware", devices, {"v": 2}, rate=2.0, abort_share=0.05) == 77
    assert db.jobs == [("doors", "firmware", 4, 2.0, 0.05, NOW)]
    assert [(new.device, new.job) for new in db.added] == [(device, 77) for device in devices]
    assert [new.not_before for new in db.added] == [0.0, NOW + 0.5, NOW + 1.0, NOW + 1.5]
    with pytest.raises(ConfigError, match="rate"):
        made().add_job(db, "firmware", devices, b"", rate=0.0)
    with pytest.raises(ConfigError, match="abort_share"):
        made().add_job(db, "firmware", devices, b"", abort_share=5.0)
    with pytest.raises(ConfigError, match="dedupe_key"):
        made().add_job(db, "firmware", devices, b"", dedupe_key="2.1")


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
        ({"colour": "red"}, "colour"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        made(**settings)


@pytest.mark.parametrize("name", ["", "a b", "1a", "a/b", "x" * 40])
def test_a_name_is_one_word(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        Outbox(name)


def test_declared_once() -> None:
    outbox = made()
    outbox.on_result(lambda db, command: None)
    with pytest.raises(ConfigError, match="on_result"):
        outbox.on_result(lambda db, command: None)
    with pytest.raises(ConfigError, match="low"):
        outbox.source("api", low=10, high=5)
