"""What the docs name exists, and what they list is complete."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from cyclopts import App as CommandLine

from docs import generate
from holdfast import App, Context, cli
from holdfast.cluster.stats import MEANINGS, Stats
from holdfast.config import contradictions
from holdfast.config.settings import Config
from holdfast.devices import metrics
from holdfast.devices.spec import OutboxSpec
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.streams.spec import StreamSpec
from holdfast.tasks.periodic import Periodic
from holdfast.tasks.spec import TaskSpec
from simulator.mutations import RULES
from simulator.scenario import KINDS, MORE_KINDS
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, name, prose, rows
from tests.simulator.protections import IN_GATE

PACKAGE = ROOT / "src/holdfast"
FOLDERS = "|".join(sorted(each.name for each in PACKAGE.iterdir() if each.is_dir()))
LISTED = [
    "app",
    "assembly",
    "client",
    "cluster",
    "common",
    "config",
    "gateway",
    "ports",
    "registration",
    "streams",
    "tasks",
    "wiring",
]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=name)
GUARANTEES = DOCS / "guarantees.md"


def code(cell: str) -> str:
    """What a cell says in backticks."""
    return cell.strip("`")


# --- taken from the code


@EACH_PAGE
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert generate.refreshed(text) == text, "run: make docs"


def test_every_generated_part_has_its_place() -> None:
    used = {part for page in PAGES for part in re.findall(r"<!-- generated: (\w+) -->", page.read_text())}
    assert used == set(generate.PARTS)


def test_every_phase_of_an_owner_is_told() -> None:
    listed = [code(row[0]) for row in rows(DOCS / "architecture.md", "## The owner of one key")]
    assert listed == [phase.name for phase in OwnerPhase]


@pytest.mark.slow
def test_the_docs_list_every_metric() -> None:
    """The tables are made from what collectors show; no collector may be left out of them."""
    listed = set(
        re.findall(r"^\| `(holdfast_\w+)` \|", "".join(page.read_text() for page in PAGES), re.MULTILINE)
    )
    assert {f"holdfast_{counter}_total" for counter in Stats.__struct_fields__} <= listed
    assert set(Stats.__struct_fields__) == MEANINGS.keys()
    written = {
        f"{name}_total" if kind == "Counter" else name
        for path in (ROOT / "src" / "holdfast").rglob("*.py")
        for kind, name in re.findall(r'(\w+?)MetricFamily\(\s*"(\w+)"', path.read_text())
    }
    assert len(written) > 10
    assert written <= listed


def test_the_docs_list_every_metric_of_outboxes() -> None:
    listed = {code(row[0]) for row in rows(DOCS / "outbox.md", "## Metrics")}
    counters = {f"holdfast_outbox_{name}_total" for name in (*metrics.COUNTERS, "closed")}
    assert listed == counters | {f"holdfast_outbox_{name}" for name in metrics.GAUGES}


def test_the_docs_list_every_setting_of_an_outbox() -> None:
    listed = {code(row[0]): code(row[1]) for row in rows(DOCS / "outbox.md", "## Settings")}
    fields = {field.name: field for field in msgspec.structs.fields(OutboxSpec)}
    assert set(listed) == set(fields) - {"name"}
    for setting, shown in listed.items():
        default = fields[setting].default
        if isinstance(default, str | bool | int | float | None):
            assert ast.literal_eval(shown) == default, setting


def test_the_docs_list_every_fault_of_the_simulator() -> None:
    listed = [code(row[0]) for row in rows(DOCS / "simulation.md", "## What goes wrong")]
    assert sorted(listed) == sorted({*KINDS, *MORE_KINDS, "model"}), "models fail in seeds of their own"


class Noted:
    """A thing that notes which of its attributes are read."""

    def __init__(self, thing: object, names: set[str]) -> None:
        self._thing = thing
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._thing, name)


def test_the_docs_list_every_setting_that_is_checked_against_others() -> None:
    """The page names every setting that the check of the config looks at."""
    _, _, section = (DOCS / "configuration.md").read_text().partition("## Settings that must agree\n")
    read: set[str] = set()
    app = App("site")

    @app.stream("frames", seq="n")
    def handle(message: dict[str, Any], context: Context) -> None: ...

    contradictions.check(Noted(Config(), read), [Noted(app.streams["frames"], read)])  # type: ignore[arg-type]
    checked = read - {"name", "seq_kind", "settings"}
    assert len(checked) > 10
    assert checked - set(re.findall(r"\w+", section)) == set()


def test_every_limit_in_the_docs_is_a_setting() -> None:
    declared = (StreamSpec, TaskSpec, Periodic)
    known = set(Config.model_fields).union(*(kind.__struct_fields__ for kind in declared))
    for limit, *_ in rows(DOCS / "operations.md", "## Limits"):
        assert set(re.findall(r"`(\w+)`", limit)) <= known


def test_the_tree_in_the_docs_shows_every_module() -> None:
    [tree] = blocks(DOCS / "architecture.md", "text")
    words = set(re.findall(r"\w+", tree.text))
    package = ROOT / "src/holdfast"
    modules = {path.stem for path in package.glob("*.py")}
    for folder in LISTED:
        modules |= {path.stem for path in (package / folder).glob("*.py")}
    for rules in (package / "rules" / kind for kind in ("cluster", "streams", "tasks")):
        modules |= {path.stem for path in rules.glob("*.py")}
    folders = {path.name for path in (*package.iterdir(), *(package / "services").iterdir()) if path.is_dir()}
    hidden = {"__init__", "__main__", "__pycache__"}
    assert (modules | folders) - hidden - words == set()


# --- names


@EACH_PAGE
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = unquote(target).partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{name(page)} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.slow
def test_every_promise_names_tests_that_exist_and_the_gate_runs_some() -> None:
    named = 0
    items = re.compile(r"^- \[([^\]]+\.py)\]\([^)]+\)(.*(?:\n  .*)*)", re.MULTILINE)
    for heading, section in promises():
        in_gate = 0
        for path, text in items.findall(section):
            defined = tiers(ROOT / path)
            tests = set(re.findall(r"`(\w+)`", text))
            assert tests, f"name the tests of {path}"
            assert tests <= defined.keys(), f"{path} has no {sorted(tests - defined.keys())}"
            in_gate += sum(not defined[test] for test in tests)
            named += len(tests)
        assert in_gate, f"only the night shows: {heading}"
    assert named > 50


def promises() -> list[tuple[str, str]]:
    """The heading of each promise, and what is written below it."""
    _, *sections = re.split(r"^## (?=\d)", GUARANTEES.read_text(), flags=re.MULTILINE)
    return [(heading, text) for heading, _, text in (section.partition("\n") for section in sections)]


def tiers(path: Path) -> dict[str, bool]:
    """The names of what a module defines, and whether only the night runs it."""
    return {
        node.name: any("mark.nightly" in ast.unparse(each) for each in node.decorator_list)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def test_the_gate_switches_off_a_protection_of_each_promise() -> None:
    for heading, section in promises():
        listed = re.findall(r"^- mutations: (.+)$", section, flags=re.MULTILINE)
        rules = {code(rule) for line in listed for rule in line.split(", ")}
        assert not rules or rules & IN_GATE, heading


def test_every_mutation_is_named_by_a_promise() -> None:
    listed = re.findall(r"^- mutations: (.+)$", GUARANTEES.read_text(), flags=re.MULTILINE)
    assert {code(rule) for line in listed for rule in line.split(", ")} == set(RULES)


def test_the_docs_have_a_section_for_every_rule() -> None:
    headings = re.findall(r"^## (\d+)\. ", GUARANTEES.read_text(), flags=re.MULTILINE)
    assert headings == [str(number) for number in range(1, 20)]


@EACH_PAGE
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|tests|docs|examples|deploy|tools)/[\w./-]*)`", prose(page)):
        assert (ROOT / path).exists(), f"{name(page)} names {path}"
    media_types = {"image/jpeg", "image/png"}
    for path in {*re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", prose(page))} - media_types:
        assert (PACKAGE / path).exists(), f"{name(page)} names {path}"


@EACH_PAGE
def test_the_commands_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for line in re.findall(r"(?:`|^\$ |^ExecStart=\S*/)holdfast ([^`\n]*)", text, flags=re.MULTILINE):
        check_command(shlex.split(line.partition("  #")[0]), name(page))


def check_command(words: list[str], where: str) -> None:
    """Commands and options are those of the command line."""
    command: CommandLine = cli.command_line(words)
    said = f"{where}: holdfast {' '.join(words)}"
    for word in words:
        if word.startswith("-"):
            known = {option for names in options_of(command) for option in names}
            assert word in known | {"--help", "--version"}, f"{said}: {word}"
        elif word in command:
            command = command[word]
        else:
            assert command.default_command or word.isupper(), f"{said}: there is no {word}"


def options_of(command: CommandLine) -> list[tuple[str, ...]]:
    """The names of a command's options."""
    if not command.default_command:
        return []
    return [argument.names for argument in command.assemble_argument_collection()]


@EACH_PAGE
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|^\$ )make ([a-z]+)", page.read_text(), flags=re.MULTILINE))
    assert named <= targets


# --- deployment


def test_the_unit_runs_commands_that_exist() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy/holdfast.service")
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "holdfast"
    check_command(words, "deploy/holdfast.service")
    # The supervisor itself must have killed what doesn't drain before systemd does.
    from holdfast.cli.node import ENDING_S

    assert float(unit["Service"]["TimeoutStopSec"]) > Config().drain_timeout_s + ENDING_S


def test_the_config_of_the_unit_is_sound() -> None:
    settings = tomllib.loads((ROOT / "deploy/holdfast.toml").read_text())
    contradictions.check(Config(**settings))


def test_every_picture_of_the_docs_is_small() -> None:
    assert blocks(ROOT / "README.md", "python")
    for picture in (DOCS / "images").iterdir():
        assert picture.stat().st_size < 300_000
