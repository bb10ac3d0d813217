"""From URLs to adapters, and from a place to an app."""

import datetime as dt
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from holdfast import services as adapters
from holdfast.app.app import App
from holdfast.assembly.checks import check_app
from holdfast.assembly.loading import load_app
from holdfast.assembly.node import make_node
from holdfast.cluster.limits import Limits
from holdfast.common.protocol import Done, Probe, Reply, Request
from holdfast.config.settings import Config
from holdfast.config.sources import load
from holdfast.errors import ConfigError
from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.ports.slots import Attempt
from holdfast.registration.services import service_of
from holdfast.reports.assembly import open_sink
from holdfast.reports.deliver_credentials import Credential
from holdfast.system.clock import SystemClock
from holdfast.tasks import discovery
from holdfast.tasks.discovery import Announcer, Directory, Listing
from holdfast.tasks.names import task_queue
from holdfast.tasks.opening import backup_at, dead_letter_backups, discovered, make_producer, producing
from holdfast.tasks.order import Order
from holdfast.testing.conformance.slots import RecordingListener
from holdfast.wiring.services import Services
from simulator.servers import RedisServer


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def names(place: Path, pattern: str) -> set[str]:
    return {path.name for path in place.rglob(pattern)}


async def test_services_are_opened_once_and_shared(place: Path) -> None:
    async with Services(load({"max_message_bytes": 5, "max_state_bytes": 7})) as services:
        queue = services.queue("detect")
        assert services.queue("detect") is queue
        assert services.queue("track") is not queue
        assert services.coordinator() is services.coordinator()
        assert services.state() is services.state()
        assert services.objects() is services.objects()
        assert (queue.max_bytes, services.state().max_state_bytes) == (5, 7)
        await queue.send([Outgoing(b"12345")])
        assert (await services.queue("track").depth()).ready == 0
    assert (place / "holdfast.db").is_file()


async def test_each_service_may_have_its_own_url(place: Path) -> None:
    urls = {"queue_url": "sqlite:///q.db", "state_url": f"sqlite:///{place}/deep/s%20.db"}
    async with Services(load(urls)) as services:
        await services.queue("detect").send([Outgoing(b"1")])
        assert await services.state().peek("detect/cam-1") is None
    assert names(place, "*.db") == {"q.db", "s .db"}


async def test_nothing_is_opened_that_is_not_asked_for(place: Path) -> None:
    async with Services(load()):
        pass
    assert names(place, "*") == set()


async def test_peers_use_the_settings_of_the_config() -> None:
    secret = "correct-horse-battery"

    async def answer(request: Request) -> Reply:
        return Done()

    async with Services(load({"peer_secret": secret, "advertise": "localhost"})) as services:
        address = await services.peer().serve(answer)
        assert address.startswith("http://localhost:")
        assert await services.peer().call(address, Probe("m"), 5) == Done()


async def objects_round_trip(objects: Objects) -> None:
    url = await objects.put("cam-1/1.jpg", b"frame")
    assert await objects.get(url) == b"frame"


@pytest.mark.parametrize("url", ["file:./frames", "file:frames", "file:///{here}/frames"])
@pytest.mark.parametrize("in_slot", [False, True])
async def test_objects_are_stored_at_their_url(place: Path, url: str, in_slot: bool) -> None:
    url = url.replace("/{here}", str(place))
    async with Services(load({"objects_url": url})) as services:
        objects = services.objects()
        await objects_round_trip(service_of(url).slot_objects(url, Meter()) if in_slot else objects)
    assert (place / "frames").is_dir()


@pytest.mark.parametrize(
    "setting, url",
    [
        ("queue_url", "kafka://q"),
        ("queue_url", "sqs://eu-west-1/a/b"),
        ("coordinator_url", "redis://:hunter2@host:port"),
        ("coordinator_url", "holdfast.db"),
        ("state_url", "sqlite:"),
        ("state_url", "sqlite://host/holdfast.db"),
        ("state_url", "sqlite:///a.db?mode=ro"),
        ("tasks_url", "zookeeper://localhost"),
        ("registry_url", "sqs://eu-west-1/"),
        ("objects_url", "gopher://bucket"),
        ("objects_url", "file:"),
        ("values_url", "redis://localhost"),
    ],
)
async def test_a_url_that_nothing_serves_is_a_config_error(setting: str, url: str) -> None:
    async with Services(load({setting: url})) as services:
        opening = {
            "queue_url": lambda: services.queue("detect"),
            "coordinator_url": services.coordinator,
            "state_url": services.state,
            "tasks_url": lambda: services.task_store("app"),
            "registry_url": services.registry,
            "objects_url": services.objects,
            "values_url": services.value_objects,
        }
        with pytest.raises(ConfigError, match=rf"^{setting} is '.*(use|write) "):
            opening[setting]()


async def test_a_seq_of_the_queue_needs_a_queue_that_numbers_messages() -> None:
    app = App("jobs")
    app.stream("jobs", seq="queue", key="k")(lambda message, context: None)
    for url in ("sqlite:///holdfast.db", "sqs:///{stream}.fifo"):
        async with Services(load({"queue_url": url})) as services:
            check_app(services, app)
    async with Services(load({"queue_url": "sqs:///"})) as services:
        with pytest.raises(ConfigError, match=r"stream 'jobs' has seq='queue', and queue_url is 'sqs:///'"):
            check_app(services, app)


@pytest.mark.parametrize(
    "stream, problem",
    [
        ("frame", "which the app doesn't declare; it declares frames, outbox gates"),
        ("frames", "but the app also declares outbox gates"),
    ],
)
async def test_bare_ids_in_zookeeper_are_of_the_one_stream_that_the_app_declares(
    stream: str, problem: str
) -> None:
    app = App("town")
    app.stream("frames", message=bytes, key="key")(lambda message, context: None)
    app.outbox("gates")
    url = f"zookeeper://127.0.0.1:1/town?stream={stream}"
    async with Services(load({"coordinator_url": url})) as services:
        with pytest.raises(ConfigError, match=problem):
            check_app(services, app)


async def test_a_model_must_fit_into_a_slot() -> None:
    app = App("jobs")
    app.model("people", list, memory_mb=900)
    app.stream("jobs", models="people")(lambda message, context: None)
    async with Services(load({"model_memory_mb": 900, "slot_memory_mb": 1000})) as services:
        check_app(services, app)
    for settings in ({"model_memory_mb": 800}, {"slot_memory_mb": 800}):
        async with Services(load(settings)) as services:
            with pytest.raises(ConfigError, match=f"memory_mb = 900, and {next(iter(settings))} is 800"):
                check_app(services, app)


def test_the_limits_of_a_node_follow_its_config() -> None:
    config = load({"ttl_s": 9, "slots": 2, "streams_per_slot_max": 10})
    found = Limits.of(config)
    assert (found.ttl_s, found.renew_s, found.streams_max) == (9, config.renew_s, 20)


# --- apps

APP = """
from holdfast import App
cameras = App("cameras")
empty = App("empty")
other = 3
@cameras.stream("detect")
def detect(message, context):
    return None
"""


def test_an_app_is_found_from_the_working_directory(place: Path) -> None:
    (place / "found_here.py").write_text(APP)
    assert list(load_app("found_here:cameras").streams) == ["detect"]


@pytest.mark.parametrize(
    "place_of_app, said",
    [
        ("wired", "must be 'module:name'"),
        (":app", "must be 'module:name'"),
        ("nowhere_at_all:app", "there is no module 'nowhere_at_all'"),
        ("nowhere_at_all.deep:app", "there is no module 'nowhere_at_all'"),
        ("wired:app", "did you mean 'wired:cameras'"),
        ("wired:other", "is int, not a holdfast.App"),
        ("wired:empty", "declares no stream"),
        ("wired_apart:app", "wired_apart.py:1: ModuleNotFoundError"),
        ("wired_broken:app", "wired_broken.py:1: ZeroDivisionError"),
        ("wired_bare:app", "it has no App"),
    ],
)
def test_an_app_that_can_t_be_loaded_is_a_config_error(place: Path, place_of_app: str, said: str) -> None:
    (place / "wired.py").write_text(APP)
    (place / "wired_broken.py").write_text("1 / 0")
    (place / "wired_bare.py").write_text("")
    (place / "wired_apart.py").write_text("import nowhere_at_all_either")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_app(place_of_app)


@pytest.mark.parametrize(
    "setting, url, kind",
    [
        ("queue_url", "sqs://eu-west-1/", "SqsQueue"),
        ("queue_url", "http://127.0.0.1:1/000000000000/frames", "SqsQueue"),
        ("coordinator_url", "redis://127.0.0.1:1", "RedisCoordinator"),
        ("coordinator_url", "redis+sentinel://127.0.0.1:1/main", "RedisCoordinator"),
        ("coordinator_url", "zookeeper://127.0.0.1:1/holdfast", "ZooKeeperCoordinator"),
        ("state_url", "rediss+cluster://127.0.0.1:1", "RedisState"),
        ("tasks_url", "redis://127.0.0.1:1", "RedisTasks"),
        ("tasks_url", "sqlite:///tasks.db", "SqliteTasks"),
        ("registry_url", "redis+cluster://127.0.0.1:1", "RedisRegistry"),
        ("registry_url", "sqlite:///registry.db", "SqliteRegistry"),
    ],
)
async def test_each_service_by_its_own_url(setting: str, url: str, kind: str) -> None:
    async with Services(load({setting: url})) as services:
        opened = {
            "queue_url": lambda: services.queue("frames"),
            "coordinator_url": services.coordinator,
            "state_url": services.state,
            "tasks_url": lambda: services.task_store("app"),
            "registry_url": services.registry,
        }
        service = opened[setting]()
        assert type(service).__name__ == kind
        assert opened[setting]() is service


async def test_a_node_may_ask_the_registry_where_its_queues_are() -> None:
    registry = {"registry_url": "sqlite:///registry.db"}
    told = {"queue_url": "sqs://eu-west-1/", "coordinator_url": "redis://localhost"}
    async with Services(load(registry)) as services:
        directory = Directory(services.registry(), "reports", services.clock)
        await directory.change(lambda _: Listing(told))
    asked = []

    def app() -> str:
        asked.append("reports")
        return "reports"

    found = await discovered(load(registry | {"coordinator_url": "zookeeper://localhost"}), app)
    assert (found.queue_url, found.coordinator_url) == ("sqs://eu-west-1/", "zookeeper://localhost")
    assert found.tasks_url == found.url
    assert (await discovered(load(registry), app)).coordinator_url == "redis://localhost"
    assert len(asked) == 2
    for settings in ({}, registry | {"url": "sqlite:///other.db"}):
        config = load(settings)
        assert await discovered(config, app) is config
    assert len(asked) == 2


async def test_a_producer_needs_what_nodes_have_told(redis_server: RedisServer) -> None:
    config = load({"registry_url": redis_server.url})
    with pytest.raises(
        ConfigError, match="written queue_url and tasks_url of app 'reports' there: start a node"
    ):
        async with producing(config, "reports"):
            pass
    async with Services(config) as services:
        directory = Directory(services.registry(), "reports", services.clock)
        await directory.change(lambda _: Listing({"queue_url": "sqs:///", "tasks_url": "redis://other"}))
    async with producing(config, "reports") as services:
        assert (services.config.queue_url, services.config.tasks_url) == ("sqs:///", "redis://other")


async def test_dead_letters_are_backed_up_by_the_clock(place: Path) -> None:
    config = load({"dlq_backup_url": "sqlite:///letters.db", "dlq_backup_cron": "30 2 * * *"})
    async with Services(config) as services:
        await make_producer(services, "reports").send([Order(task_type="publish", task_id="t-1")])
        letter = DeadLetter("publish/t-1", b"{}", "failed", key="t-1")
        await services.queue(task_queue("reports", "publish")).bury([letter])
        ((times, back_up),) = dead_letter_backups(services, "reports")
        assert times.next_at(0.0) == 2.5 * 3600
        await back_up(dt.datetime.now(dt.UTC))
        await back_up(dt.datetime.now(dt.UTC))
    async with backup_at(config.dlq_backup_url) as backup:
        assert [kept.dead_letter.key async for kept in backup.dead_letters("reports")] == ["t-1"]
    async with Services(load({})) as services:
        assert list(dead_letter_backups(services, "reports")) == []


@pytest.mark.parametrize(
    "settings, deeds", [({}, ["nightly"]), ({"dlq_backup_url": "file:l"}, ["nightly", "dlq-backup"])]
)
async def test_a_node_tells_which_deeds_of_the_clock_it_can_do(
    place: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], deeds: list[str]
) -> None:
    """Or the clock would be held by one that can't, and nobody would do them."""
    told = list[dict[str, Any]]()

    class Telling(Announcer):
        def __init__(self, *given: Any, **named: Any) -> None:
            told.append(named)
            super().__init__(*given, **named)

    monkeypatch.setattr(discovery, "Announcer", Telling)
    async with Services(load(settings)) as services:
        make_node(services, "examples.tasks:app")
    assert [named["periodics"] for named in told] == [[*deeds, "(schedule)"]]
    assert [sorted(named["times"]) for named in told] == [sorted(deeds)]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"dlq_backup_url": "letters.jsonl"}, "dlq_backup_url is 'letters.jsonl': nothing serves that"),
        ({"dlq_backup_url": "file:l", "dlq_backup_cron": "hourly"}, "dlq_backup_cron is 'hourly'"),
    ],
)
async def test_a_back_up_that_can_t_be_is_refused(settings: dict[str, str], said: str) -> None:
    async with Services(load(settings)) as services:
        with pytest.raises(ConfigError, match=said):
            list(dead_letter_backups(services, "reports"))


async def test_streams_never_share_a_queue_of_sqs() -> None:
    async with Services(load({"queue_url": "sqs://eu-west-1/frames"})) as services:
        services.queue("detect")
        with pytest.raises(ConfigError, match=r"'detect' and 'track' would share .* put '\{stream\}'"):
            services.queue("track")


@pytest.mark.parametrize(
    "setting, url, library, extra",
    [
        ("queue_url", "sqs://eu-west-1/", "botocore", "sqs"),
        ("coordinator_url", "redis://localhost", "redis", "redis"),
        ("state_url", "redis://localhost", "redis", "redis"),
        ("coordinator_url", "zookeeper://localhost", "kazoo", "zookeeper"),
    ],
)
async def test_a_missing_library_is_named_with_its_extra(
    setting: str, url: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, package in [*vars(adapters).items()]:
        if isinstance(package, ModuleType):
            monkeypatch.setattr(adapters, name, package)  # so that it is put back afterwards
    for name in [name for name in sys.modules if name.startswith(("holdfast.services.", library))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    async with Services(load({setting: url})) as services:
        opened = {"queue_url": lambda: services.queue("frames"), "state_url": services.state}
        with pytest.raises(ConfigError, match=rf"^{setting} needs .*'holdfast-streams\[{extra}\]'"):
            opened.get(setting, services.coordinator)()


@pytest.mark.parametrize(
    "url, kind",
    [
        ("file:/srv/reports", "FileSink"),
        ("ftp://host/reports", "FtpSink"),
        ("ftpes://host/reports?mode=active", "FtpSink"),
        ("ftps://host", "FtpSink"),
        ("sftp://host/reports", "SftpSink"),
        ("s3://bucket/reports?encryption=AES256", "S3Sink"),
        ("https://host/reports", "HttpSink"),
    ],
)
async def test_destinations_are_opened_by_their_url(url: str, kind: str) -> None:
    credential = Credential(user="ann", password="secret", access_key_id="id", secret_access_key="secret")
    sink = open_sink(url, credential, SystemClock())
    assert type(sink).__name__ == kind
    await sink.close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://ann:pa55@host/x",
        "sftp://ann:pa55@host/x",
        "https://ann:pa55@host/x",
        "gopher://h/pa55",
        "ftp:x",
    ],
)
def test_destinations_that_cannot_be_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ConfigError, match="destination") as caught:
        open_sink(url, Credential(), SystemClock())
    assert "ann:pa55" not in str(caught.value)


async def test_a_node_of_tasks_alone_is_given_no_streams(tmp_path: Path) -> None:
    async with Services(Config(url=f"sqlite:///{tmp_path}/holdfast.db")) as services:
        told = make_node(services, "examples.tasks:app").load()
        assert (told.room, told.serves) == (0, ())
        assert make_node(services, "examples.cameras:app").load().room > 0


SLOT_APP = """
from holdfast import App
from holdfast.config.sources import load

app = App("sees")

@app.task("ttl", body=str)
def ttl(body, job):
    return load().ttl_s
"""


@pytest.mark.slow
async def test_slots_have_the_settings_of_their_node(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "sees.py").write_text(SLOT_APP)
    monkeypatch.syspath_prepend(str(place))
    listener = RecordingListener()
    async with Services(load({"ttl_s": 77.0})) as services:
        slot = await services.task_slots("sees:app").spawn(listener)
        slot.offer(0, Attempt("t", "ttl", b""))
        assert (await listener.outcome(0)).result == b"77.0"


@pytest.mark.slow
async def test_the_connections_of_a_node_are_counted_and_bounded_as_configured(place: Path) -> None:
    async with Services(load({"max_connections": 50})) as services, aiohttp.ClientSession() as client:
        node = make_node(services, "examples.tasks:app")
        await node.start()
        try:
            (member,) = await services.coordinator().members()
            async with client.get(member.load.metrics) as answer:
                said = await answer.text()
        finally:
            await node.stop()
    (count,) = re.findall(r"^holdfast_connections (\S+)$", said, re.MULTILINE)
    assert float(count) > 0


async def test_a_policy_allows_what_stores_values() -> None:
    config = load({"queue_url": "sqlite:///a.db", "values_url": "s3://b/values"})
    async with Services(config) as services:
        policy = await services.iam_policy(["s"])
    assert [each["Resource"] for each in policy["Statement"][:1]] == ["arn:aws:s3:::b/values/*"]


async def test_a_policy_allows_each_archive_once_under_ids_of_their_own() -> None:
    config = load({"queue_url": "sqlite:///a.db", "objects_url": "s3://b/frames"})
    async with Services(config) as services:
        archives = ["s3://b/frames", "s3://c", "s3://c", "file:here"]
        policy = await services.iam_policy(["s"], archives)
    assert [(each["Sid"], each["Resource"]) for each in policy["Statement"]] == [
        ("HoldfastObjects", "arn:aws:s3:::b/frames/*"),
        ("HoldfastBucket", "arn:aws:s3:::b"),
        ("HoldfastObjects2", "arn:aws:s3:::c/*"),
        ("HoldfastBucket2", "arn:aws:s3:::c"),
    ]


async def test_a_missing_step_between_versions_of_state_is_found_before_a_node_runs() -> None:
    app = App("town")

    @app.stream("counts", version=3)
    def count(message: dict[str, Any], state: dict[str, int]) -> None: ...

    count.migrate(from_version=1)(lambda state: state)
    async with Services(load({})) as services:
        with pytest.raises(ConfigError, match=r"stream 'counts': migrate\(from_version=2\) is missing"):
            check_app(services, app)
        count.migrate(from_version=2)(lambda state: state)
        check_app(services, app)
