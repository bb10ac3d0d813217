"""What a process imports before it does anything: imports are most of what it takes to start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import all_commands

HTTP = {"aiohttp", "prometheus_client"}
HEAVY = HTTP | {"google.protobuf.internal", "pydantic", "sqlite3", "structlog", "uvloop"}
"""Each takes as long to import as Python itself takes to start, or longer."""


def imported(program: str, *arguments: str, place: Path | None = None) -> set[str]:
    """The modules of a process of its own, once it has run ``program``."""
    program = f"{program}\nimport sys; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", program, *arguments]
    return set(subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stderr.split())


def test_the_public_names_need_no_event_loop_and_no_service() -> None:
    found = imported("import holdfast; [getattr(holdfast, name) for name in ('App', 'Context', 'Order')]")
    assert "msgspec" in found
    assert not found & (HEAVY | {"asyncio", "cyclopts", "psutil", "rich", "zoneinfo"})


@pytest.mark.slow
def test_the_public_names_need_no_product() -> None:
    found = imported("from holdfast import App; app = App('a'); app.stream('s')(lambda message, context: 1)")
    assert not {name for name in found if re.match(r"holdfast\.(devices|reports|vision)\b", name)}
    assert "holdfast.devices" in imported("from holdfast import App; App('a').outbox('doors')")


def test_an_app_of_streams_needs_no_protobuf_and_no_cron(tmp_path: Path) -> None:
    (tmp_path / "myapp.py").write_text(
        "from holdfast import App\napp = App('a')\n@app.stream('s')\ndef s(message, context): ...\n"
    )
    found = imported("import sys; sys.path.insert(0, '.'); import myapp", place=tmp_path)
    assert not found & (HEAVY | {"asyncio", "cronsim"})


def test_the_page_of_all_commands_imports_none_of_them() -> None:
    found = imported("from holdfast import cli; cli.run(['--help'])")
    assert not {command.place.partition(":")[0] for command in all_commands().values()} & found
    assert not found & {"asyncio", "ssl", "msgspec", "holdfast.common.redaction", "holdfast.wiring.services"}
    assert not found & {"cyclopts", "rich"}, "these take most of the start of a command"


def test_the_version_is_told_without_the_library_of_commands() -> None:
    found = imported("from holdfast import cli; cli.run(['--version'])")
    assert "holdfast.cli" in found
    assert not found & {"cyclopts", "rich", "importlib.metadata"}


@pytest.mark.slow
def test_the_page_of_status_imports_no_node_and_no_markdown() -> None:
    found = imported("from holdfast import cli; cli.run(['status', '--help'])")
    assert "holdfast.cli.status" in found
    assert not found & {"asyncio", "ssl", "holdfast.wiring.services", "markdown_it", "pygments"}


@pytest.mark.parametrize(
    "command, modules_max", [("--version", 140), ("--help", 190), ("status --help", 300)], ids=str
)
def test_a_start_imports_no_more_modules_than_it_did(command: str, modules_max: int) -> None:
    """Seconds change with the machine and with what else it does; the number of modules doesn't. A bound
    is raised where a new Python or library has more modules, and a start takes no longer than before."""
    found = imported("import sys; from holdfast import cli; cli.run(sys.argv[1:])", *command.split())
    assert len(found) <= modules_max


@pytest.mark.slow
def test_what_is_no_table_needs_nothing_that_draws_one(tmp_path: Path) -> None:
    found = imported("from holdfast import cli; cli.run(['config', 'show', '--json'])", place=tmp_path)
    assert "cyclopts" in found
    assert "rich" not in found


@pytest.mark.slow
def test_only_its_own_command_imports_what_builds_images() -> None:
    found = imported(
        "import holdfast.cli.node, holdfast.cli.status, holdfast.assembly.node, holdfast.slots.child"
    )
    assert not {name for name in found if name.startswith("holdfast.image")}
    page = imported("from holdfast import cli; cli.run(['image', 'build', '--help'])")
    assert "holdfast.cli.image" in page
    assert not {name for name in page if name.startswith("holdfast.image")}


@pytest.mark.slow
def test_a_command_of_a_product_imports_no_other() -> None:
    found = imported("from holdfast import cli; cli.run(['reports', '--help'])")
    assert "holdfast.reports.commands.reports" in found
    assert not {name for name in found if re.match(r"holdfast\.(devices|vision)\b", name)}


@pytest.mark.slow
def test_pages_of_help_import_nothing_that_only_work_needs() -> None:
    program = "import sys; from holdfast import cli; [cli.run([*n.split(), '--help']) for n in sys.argv[1:]]"
    found = imported(program, "", *all_commands())
    assert {command.place.partition(":")[0] for command in all_commands().values()} <= found
    assert not found & HEAVY


@pytest.mark.slow
def test_showing_the_settings_needs_no_log(tmp_path: Path) -> None:
    found = imported("from holdfast import cli; cli.run(['config', 'show'])", place=tmp_path)
    assert "pydantic" in found
    assert not found & {"asyncio", "argparse", "structlog"}


@pytest.mark.slow
def test_reading_a_store_needs_no_http_server(tmp_path: Path) -> None:
    found = imported("from holdfast import cli; cli.run(['results'])", place=tmp_path)
    assert "sqlite3" in found
    assert not found & HTTP


@pytest.mark.slow
def test_what_forks_slots_for_streams_imports_none_of_the_node() -> None:
    found = imported("import holdfast.slots.server, holdfast.streams.worker, holdfast.services.file.service")
    others = {"cronsim", "holdfast.wiring.services", "holdfast.config.settings", "importlib.metadata"}
    others |= {"psutil", "holdfast.slots.launcher", "holdfast.slots.nursery"}
    assert not found & (HEAVY | others)


@pytest.mark.slow
def test_what_forks_slots_for_tasks_has_protobuf_before_it_forks() -> None:
    found = imported("import holdfast.slots.server, holdfast.tasks.worker")
    assert "google.protobuf.json_format" in found, "or each slot would import it anew"
    assert not found & (HEAVY - {"google.protobuf.internal"} | {"cronsim", "holdfast.wiring.services"})


NODE = """
import asyncio
from holdfast.config.sources import load
from holdfast.wiring.services import Services
from holdfast.assembly.node import make_node
async def main():
    async with Services(load()) as services:
        make_node(services, "myapp:app")
asyncio.run(main())
"""


@pytest.mark.slow
def test_a_node_of_streams_imports_no_other_kind_of_work(tmp_path: Path) -> None:
    (tmp_path / "myapp.py").write_text(
        "from holdfast import App\napp = App('a')\n@app.stream('s')\ndef s(message, context): ...\n"
    )
    found = imported(NODE, place=tmp_path)
    assert {"aiohttp", "holdfast.streams.work"} <= found
    others = {"gateway.service", "gateway.haproxy.plane", "devices.work", "tasks.work", "tasks.api"}
    assert not found & {f"holdfast.{name}" for name in others}
    reports = {name for name in found if name.startswith("holdfast.reports.")}
    assert reports <= {"holdfast.reports.product"}, "every node looks what products there are"
