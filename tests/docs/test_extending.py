"""The package of the page on extending Holdfast, installed as another's would be."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, reports
from holdfast.assembly.checks import check_app, queues_of
from holdfast.assembly.loading import load_app
from holdfast.assembly.products import operator_parts
from holdfast.cli.doctor import examine
from holdfast.cli.options import Options
from holdfast.cli.products import OperatorPart
from holdfast.config.sources import load
from holdfast.devices.adapters import open_devices
from holdfast.errors import ConfigError
from holdfast.extend import Member, Service, SystemClock, lookup
from holdfast.operate.survey import survey
from holdfast.registration.targets import check_target, target_service
from holdfast.reports.sinks.file.sink import FileSink
from holdfast.reports.sinks.memory import MemorySink
from holdfast.testing import node_for_tests
from holdfast.wiring.services import Services
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "extending.md"


def install(folder: Path, entry_points: str, package: str = "crates") -> None:
    """As pip would: metadata beside the code."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


@pytest.mark.slow
def test_streams_run_on_the_backend_of_another_package(tmp_path: Path) -> None:
    """And it passes the suite of its port."""
    files = []
    for block in blocks(PAGE, "python"):
        title = re.match(r"# (\w+\.py)\n", block.text)
        assert title, "say in a comment which file it is"
        (tmp_path / title[1]).write_text(block.text)
        files.append(title[1])
    declared = blocks(PAGE, "ini")[0]
    name, value = re.findall(r'^(\w+) = "(.+)"$', declared.text, re.MULTILINE)[0]
    install(tmp_path, f"[holdfast.services]\n{name} = {value}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files[1:]],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stdout


class OfAnother(Service):
    """A service that offers nothing."""


not_a_service = object()


@pytest.mark.parametrize(
    "registered, said",
    [
        (f"{__name__}:OfAnother", "isn't a holdfast.extend.Service"),
        (f"{__name__}:not_a_service", "isn't a holdfast.extend.Service"),
        ("no_such_module:service", "registered as 'other' in holdfast.services, can't be imported"),
        (f"{__name__}:missing", "can't be imported"),
    ],
)
async def test_what_is_registered_wrongly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: str, said: str
) -> None:
    install(tmp_path, f"[holdfast.services]\nother = {registered}\n", "other")
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"state_url": "other://here"})) as services:
        with pytest.raises(ConfigError, match=re.escape(said)):
            services.state()


async def test_two_packages_for_one_scheme_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("one", "two"):
        install(tmp_path, f"[holdfast.services]\nother = {package}:service\n", package)
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"state_url": "other://here"})) as services:
        with pytest.raises(ConfigError, match="one:service and two:service are both registered as 'other'"):
            services.state()


async def test_our_own_schemes_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "[holdfast.services]\nsqlite = no_such_module:service\n", "other")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    async with Services(load()) as services:
        assert type(services.state()).__name__ == "SqliteState"


async def test_a_service_without_the_port_serves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offers_nothing.py").write_text("from holdfast.extend import Service\nservice = Service()\n")
    install(tmp_path, "[holdfast.services]\nother = offers_nothing:service\n", "other")
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"state_url": "other://here", "queue_url": "other://"})) as services:
        with pytest.raises(ConfigError, match="state_url is 'other://here': nothing serves that"):
            services.state()
        assert await services.filled_queues() == []
        assert services.queue_setup() is None


async def test_an_error_names_what_other_packages_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelves.py").write_text(
        "from holdfast.extend import Service\n"
        "class Shelf(Service):\n"
        "    example = 'shelf://hall'\n"
        "    def registry(self, opening): ...\n"
        "service = Shelf()\n"
    )
    install(tmp_path, "[holdfast.services]\nshelf = shelves:service\nlost = no_such_module:it\n", "shelves")
    monkeypatch.syspath_prepend(tmp_path)
    async with Services(load({"registry_url": "other://", "state_url": "other://"})) as services:
        ours = "'redis://localhost' or "
        with pytest.raises(ConfigError, match=f"{ours}'shelf://hall' or 'sqlite:///holdfast.db'$"):
            services.registry()
        with pytest.raises(ConfigError, match=f"{ours}'sqlite:///holdfast.db'$"):
            services.state()


async def test_a_destination_of_another_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attics.py").write_text(
        "from holdfast import reports\n"
        "from holdfast.reports.sinks.memory import MemorySink\n"
        "class Attic(reports.SinkService):\n"
        "    example = 'attic://box'\n"
        "    preloaded = False\n"
        "    def sink(self, opening): return MemorySink({opening.url: bytearray()})\n"
        "    def preload(self): self.preloaded = True\n"
        "service = Attic()\n"
    )
    install(tmp_path, "[holdfast.sinks]\nattic = attics:service\nfile = attics:service\n", "attics")
    monkeypatch.syspath_prepend(tmp_path)
    sink = reports.open_sink("attic://box", reports.Credential(), SystemClock())
    assert isinstance(sink, MemorySink)
    assert sink.files == {"attic://box": b""}
    ours = reports.open_sink(f"file:{tmp_path}", reports.Credential(), SystemClock())
    assert isinstance(ours, FileSink), "our own schemes are not replaced"
    with pytest.raises(ConfigError, match=r"destination is 'cellar://box': nothing serves.*'attic://box'"):
        reports.open_sink("cellar://box", reports.Credential(), SystemClock())
    reports.publish_reports(App("office"), preload=["attic"])
    assert lookup("holdfast.sinks", "destination", "attic://", reports.SinkService).preloaded  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match="preload: 'cellar' isn't a scheme of destinations, which are attic"
    ):
        reports.publish_reports(App("office"), preload=["cellar"])


def test_devices_of_another_package_are_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pigeons.py").write_text(
        "from holdfast import devices\n"
        "class Loft(devices.BrokerService):\n"
        "    example = 'loft://roof'\n"
        "    def devices(self, url, spec, clock): return lambda identity, still_ours: (url, identity)\n"
        "service = Loft()\n"
    )
    install(tmp_path, "[holdfast.devices]\nloft = pigeons:service\n", "pigeons")
    monkeypatch.syspath_prepend(tmp_path)
    spec = App("office").outbox("faces").spec
    connect: Any = open_devices(Services(load({"devices_url": "loft://roof"})), spec)
    assert connect("a", None) == ("loft://roof", "a")
    with pytest.raises(
        ConfigError, match=r"devices_url is 'nest://': .*'loft://roof' or 'mqtt://localhost'$"
    ):
        open_devices(Services(load({"devices_url": "nest://"})), spec)


PAGERS = """
from holdfast.errors import ConfigError, EffectRefused
from holdfast.extend import TargetService

TAKEN = []


class Pager:
    max_batch = 10
    ordered = False

    def __init__(self, opening): self.opening = opening

    async def take(self, effects):
        for effect in effects:
            if effect.body == b"0":
                raise EffectRefused("nobody is paged for nothing")
            TAKEN.append((self.opening.url, self.opening.secret, effect.body))


class Pagers(TargetService):
    example = "pager://duty"
    def check(self, url):
        if url == "pager://": raise ConfigError("a pager has a name")
    def target(self, opening): return Pager(opening)


service = Pagers()
"""


@pytest.fixture
def pagers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Targets of another package."""
    (tmp_path / "pagers.py").write_text(PAGERS)
    install(tmp_path, "[holdfast.targets]\npager = pagers:service\nhttps = pagers:service\n", "pagers")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("pagers")
    del sys.modules["pagers"]


@pytest.mark.slow
def test_a_target_of_another_package_takes_effects(pagers: Any) -> None:
    app = App("toys")

    @app.stream("bells", max_tries=1)
    def ring(message: dict[str, Any], context: Context) -> None:
        context.send(message["to"], message["times"])

    with node_for_tests(app, settings={"target_secrets": {"pager://duty": "pin"}}) as node:
        for times, to in [(0, "pager://duty"), (3, "pager://duty"), (1, "pager://")]:
            node.stream("bells").send({"to": to, "times": times}, key="door")
        node.results("bells")
        deadline = time.monotonic() + 20.0
        while not (pagers.TAKEN and len(node.dead_letters("bells")) == 2):
            assert time.monotonic() < deadline, (pagers.TAKEN, node.dead_letters("bells"))
        assert pagers.TAKEN == [("pager://duty", "pin", b"3")]
        reasons = sorted(letter.reason for letter in node.dead_letters("bells"))
        assert "a pager has a name" in reasons[0]
        assert reasons[1] == "nobody is paged for nothing"
    with pytest.raises(ConfigError, match=r"hooks\.example\.com/alerts' or 'pager://duty' or 'postgresql:"):
        check_target("nowhere://")
    assert type(target_service("https://host/")).__name__ == "WebhookService", "our own are not replaced"


GADGETS = """
from collections import Counter

from holdfast import ConfigError
from holdfast.extend import Load
from holdfast.extend.products import Finding, NodePart, OperatorPart, Product, StatusTable

DECLARED = {}
HAPPENED = Counter()


def gadget(app, name):
    DECLARED.setdefault(app.name, []).append(name)
    app.add_target("gadget", name)


class Turner:
    max_batch = 10
    ordered = False
    async def take(self, effects): HAPPENED["turned"] += len(effects)


class Turning:
    def __init__(self, host): self.host = host
    async def prepare(self): HAPPENED["prepared"] += 1
    def begin(self, address): HAPPENED["begun"] += 1
    async def drain(self): HAPPENED["drained"] += 1
    async def close(self): HAPPENED["closed"] += 1
    def load(self): return Load(room=0, draining=self.host.draining, queues=("gadgets",))
    async def maintain(self): pass


class Gadgets(Product):
    claim_label = "gadget:"
    operator = "gadgets:operator"

    def declared(self, app): return [f"gadget {name}" for name in DECLARED.get(app.name, ())]

    def check(self, services, app):
        if "broken" in DECLARED.get(app.name, ()):
            raise ConfigError("gadget broken: mend it")

    def queues(self, app): return {"gadgets": 5.0} if app.name in DECLARED else {}

    def node_part(self, services, app, host):
        return NodePart([Turning(host)]) if app.name in DECLARED else None

    def targets(self, services, app, host):
        return {("gadget", name): Turner() for name in DECLARED.get(app.name, ())}


class GadgetsSeen(OperatorPart):
    async def examine(self, services, app): return [Finding("gadgets", "ok", "they turn")]

    async def status(self, services, members, claims):
        return StatusTable("gadgets", [claim.key for claim in claims], ["gadget"], [[c.key] for c in claims])


product = Gadgets()
operator = GadgetsSeen()
"""


@pytest.fixture
def gadgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A product of another package."""
    (tmp_path / "gadgets.py").write_text(GADGETS)
    install(tmp_path, "[holdfast.products]\ngadgets = gadgets:product\n", "gadgets")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("gadgets")
    del sys.modules["gadgets"]


def test_handlers_send_effects_to_what_a_product_of_another_package_has(gadgets: Any) -> None:
    app = App("toys")
    gadgets.gadget(app, "top")

    @app.stream("hands")
    def turn(message: dict[str, Any], context: Context) -> None:
        context.send("top", message)

    with node_for_tests(app) as node:
        node.stream("hands").send({"turns": 3}, key="left")
        deadline = time.monotonic() + 20.0
        while not gadgets.HAPPENED["turned"]:
            assert time.monotonic() < deadline
    assert gadgets.HAPPENED["turned"] == 1


def test_a_product_of_another_package_is_part_of_a_node(gadgets: Any) -> None:
    app = App("toys")
    gadgets.gadget(app, "top")
    with node_for_tests(app):
        assert gadgets.HAPPENED == {"prepared": 1, "begun": 1}
    assert gadgets.HAPPENED == {"prepared": 1, "begun": 1, "drained": 1, "closed": 1}


async def test_a_product_of_another_package_says_what_an_app_needs_of_it(
    gadgets: Any, tmp_path: Path
) -> None:
    (tmp_path / "toys.py").write_text(
        "from holdfast import App\nimport gadgets\napp = App('toys')\ngadgets.gadget(app, 'top')\n"
    )
    app = load_app("toys:app")
    assert queues_of(app) == {"gadgets": 5.0}
    async with Services(load()) as services:
        check_app(services, app)
        gadgets.gadget(app, "broken")
        with pytest.raises(ConfigError, match="gadget broken: mend it"):
            check_app(services, app)


async def test_a_product_of_another_package_is_in_status_and_doctor(gadgets: Any) -> None:
    async with Services(load()) as services:
        await services.coordinator().join(Member("m", "n", "http://a"), 60)
        for key in ("frames/cam-1", "gadget:top/1"):
            await services.coordinator().claim(key, "m")
        found = (await survey(services)).plain()
        assert found["gadgets"] == ["gadget:top/1"]
        assert [stream.stream for stream in found["streams"]] == ["frames"]
    findings = await examine(None, Options())
    assert ("gadgets", "they turn") in [(finding.check, finding.text) for finding in findings]


@pytest.mark.parametrize("place", ["nowhere:operator", "gadgets:missing", "gadgets:product"])
def test_an_operator_part_that_is_none_is_refused_by_its_place(
    gadgets: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(gadgets.product, "operator", place)
    with pytest.raises(ConfigError, match=place):
        operator_parts(OperatorPart)


@pytest.mark.slow
def test_a_command_of_another_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "greets.py").write_text('def greet(name: str) -> None:\n    print("hello", name)\n')
    install(tmp_path, "[holdfast.commands]\ngreet = greets:greet\n", "greets")
    said = subprocess.run(
        [sys.executable, "-m", "holdfast", "greet", "world"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "hello world\n"
