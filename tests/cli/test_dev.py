"""``holdfast dev`` as real processes."""

import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast import App, Client, Context
from tests.cli.test_node import PATIENCE_S, Process

APP = """
from holdfast import App, StreamHandler

app = App("counting")
VERSION = {version}

@app.stream("count", seq="n", first_seq=0)
class Count(StreamHandler[dict]):
    def open(self, context, state):
        self.count = int(state or b"0")

    def process(self, message, context):
        self.count += 1
        password = total = "{version}-of-locals"
        if message.get("fails"):
            raise ValueError("as it was told")
        return {{"count": self.count, "version": VERSION}}

    def snapshot(self):
        return str(self.count).encode()
"""
IN_USE = "code in use"
KEPT = "The settings and code before stay in use."

counting = App("counting")


@counting.stream("count", seq="n", first_seq=0)
def count(message: dict[str, Any], context: Context) -> None:
    """Only sent to from here."""


@pytest.fixture
def write(place: Path) -> Callable[..., None]:
    """Save the app, as an editor does."""

    def run(version: object, end: str = "") -> None:
        (place / "saved").write_text(APP.format(version=version) + end)
        (place / "saved").replace(place / "counting.py")

    run(1)
    return run


@pytest.fixture
def start(write: Any) -> Iterator[Callable[..., Process]]:
    """Start `holdfast dev` for the app."""
    started: list[Process] = []

    def run(*arguments: str, console: bool = False) -> Process:
        more = ["--set", "slots=1", "--set", "log_format=json", *([] if console else ["--no-console"])]
        started.append(Process("counting:app", *more, *arguments, as_users_do=True, program="dev"))
        return started[-1]

    yield run
    for process in started:
        process.child.kill()
        process.join()


def send(first: int, last: int, **more: object) -> None:
    with Client(counting) as client:
        client.stream("count").send_many({"key": "a", "n": n, **more} for n in range(first, last))


def results(holdfast: Any, count: int) -> list[dict[str, int]]:
    return [line["result"] for line in holdfast("results", "--follow", "--limit", str(count)).lines]


def said(process: Process, text: str) -> str:
    """The line that has the text, once it is there."""

    def found() -> list[str]:
        return [entry["event"] for entry in process.events if text in entry["event"]]

    with process.more:
        assert process.more.wait_for(lambda: found() or process.ended, PATIENCE_S), process.events
    assert found(), process.events
    return found()[0]


@pytest.mark.slow
def test_saved_code_is_used_and_streams_go_on_from_their_state(
    holdfast: Any, start: Callable[..., Process], write: Any
) -> None:
    process = start()
    first = process.wait_for("node runs")["node"]
    process.wait_for(IN_USE)
    send(0, 3)
    assert results(holdfast, 3)[-1] == {"count": 3, "version": 1}
    write(2)
    assert process.wait_for("files changed")["files"] == ["counting.py"]
    process.wait_for(IN_USE, 1)
    assert process.wait_for("node ended")["node"] == first
    send(3, 5)
    assert results(holdfast, 5)[3:] == [{"count": 4, "version": 2}, {"count": 5, "version": 2}]
    assert process.end(signal.SIGINT) == 0
    (status,) = holdfast("status", "--json").lines
    assert status["nodes"] == []


@pytest.mark.slow
def test_code_that_does_not_load_is_shown_and_the_code_before_stays_in_use(
    holdfast: Any, start: Callable[..., Process], write: Any, place: Path
) -> None:
    process = start()
    process.wait_for(IN_USE)
    write(2, end="x = (\n")
    line = (place / "counting.py").read_text().count("\n")
    shown = said(process, "SyntaxError: '(' was never closed")
    assert f"at {place}/counting.py:{line}: " in shown
    assert process.wait_for("cannot load code")["in_use"] == "the code before"
    send(0, 1)
    assert results(holdfast, 1) == [{"count": 1, "version": 1}]
    # Its slots are forked from what has the code, and so is one that takes the place of another.
    (node,) = psutil.Process(process.child.pid).children()
    (server,) = node.children()
    for slot in server.children():
        slot.kill()
    send(1, 2)
    assert results(holdfast, 2)[1] == {"count": 2, "version": 1}
    (place / "helper.py").write_text("def broken():\n    return {}['k']\n\nbroken()\n")
    write(3, end="import helper\n")
    assert f"at {place}/helper.py:2: KeyError" in said(process, "KeyError")
    (place / "helper.py").write_text("")
    process.wait_for(IN_USE, 1)
    process.wait_for("node ended")  # the one before goes on with its streams until then
    send(2, 3)
    assert results(holdfast, 3)[2] == {"count": 3, "version": 3}


@pytest.mark.nightly
def test_what_the_app_declares_may_change(holdfast: Any, start: Callable[..., Process], write: Any) -> None:
    process = start()
    process.wait_for(IN_USE)
    send(0, 1)
    assert len(results(holdfast, 1)) == 1
    write(
        2,
        end="""
@app.stream("more", key="key", seq="n", first_seq=0)
def more(message, context):
    return {"more": message["n"]}

@app.task("convert")
def convert(body, job):
    return body["value"] + 1
""",
    )
    process.wait_for(IN_USE, 1)
    process.wait_for("node ended")
    assert holdfast("send", "more", '{"key": "a", "n": 0}').code == 0
    assert results(holdfast, 2)[1] == {"more": 0}
    assert "2" in holdfast("tasks", "send", "counting", "convert", '{"value": 1}', "--wait").out
    write(3)
    process.wait_for(IN_USE, 2)
    process.wait_for("node ended", 1)
    send(1, 2)
    assert results(holdfast, 3)[2] == {"count": 2, "version": 3}


@pytest.mark.nightly
def test_a_first_save_that_does_not_load_is_waited_out(start: Callable[..., Process], write: Any) -> None:
    write(1, end="import nowhere_at_all\n")
    process = start()
    assert process.wait_for("cannot load code")["in_use"] == "none"
    write(1)
    process.wait_for(IN_USE)


@pytest.mark.nightly
def test_of_two_saves_in_one_second_the_second_counts(
    holdfast: Any,
    start: Callable[..., Process],
    write: Any,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    process = start()
    process.wait_for(IN_USE)
    write(2)
    saved = (place / "counting.py").stat()
    process.wait_for(IN_USE, 1)
    write(3)
    os.utime(place / "counting.py", ns=(saved.st_mtime_ns + 1, saved.st_mtime_ns + 1))
    process.wait_for(IN_USE, 2)
    process.wait_for("node ended", 1)
    send(0, 1)
    assert results(holdfast, 1) == [{"count": 1, "version": 3}]


@pytest.mark.nightly
def test_ten_reloads_in_mid_traffic_lose_double_and_reorder_nothing(
    holdfast: Any, start: Callable[..., Process], write: Any
) -> None:
    process = start()
    process.wait_for(IN_USE)
    enough = threading.Event()
    sent = 0

    def feed() -> None:
        nonlocal sent
        with Client(counting) as client:
            stream = client.stream("count")
            while not enough.wait(0.02):
                stream.send_many({"key": f"cam-{key}", "n": sent} for key in range(5))
                sent += 1

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        for version in range(2, 12):
            write(version)
            process.wait_for(IN_USE, version - 1)
    finally:
        enough.set()
        feeder.join()
    assert sent > 50
    lines = holdfast("results", "--follow", "--limit", str(5 * sent)).lines
    for key in range(5):
        of_key = [line for line in lines if line["key"] == f"cam-{key}"]
        assert [line["seq"] for line in of_key] == list(range(sent))
        assert [line["result"]["count"] for line in of_key] == list(range(1, sent + 1))
        versions = [line["result"]["version"] for line in of_key]
        assert versions == sorted(versions)
        assert versions[0] < versions[-1]
    assert process.end() == 0
    assert holdfast("dlq", "list", "count", "--json").lines == []


@pytest.mark.slow
def test_settings_that_are_saved_take_effect_and_wrong_ones_are_shown(
    start: Callable[..., Process], place: Path
) -> None:
    process = start()
    process.wait_for(IN_USE)
    (place / "holdfast.toml").write_text("ttl = 5\n")
    assert "ttl" in said(process, "holdfast.toml")
    process.wait_for(KEPT)
    (place / "holdfast.toml").write_text('url = "nonsense://here"\n')
    assert said(process, "nonsense://here")
    (place / "holdfast.toml").write_text('url = "sqlite:///other.db"\n')
    process.wait_for("node ended")
    process.wait_for(IN_USE, 1)
    assert (place / "other.db").exists()


@pytest.mark.nightly
def test_settings_whose_services_can_not_be_used_end_no_node(
    start: Callable[..., Process], write: Any, place: Path
) -> None:
    process = start()
    first = process.wait_for("node runs")["node"]
    process.wait_for(IN_USE)
    (place / "notes.txt").write_text("no database" * 100)
    (place / "holdfast.toml").write_text('url = "sqlite:///notes.txt"\n')
    assert said(process, "notes.txt isn't a sound SQLite database")
    process.wait_for(KEPT)
    write(2, end="x = (\n")  # nobody can tell the registry which app it is
    process.wait_for(KEPT, 1)
    (place / "holdfast.toml").write_text('registry_url = "sqlite:///registry.db"\n')
    process.wait_for(KEPT, 2)
    assert [entry for entry in process.events if entry["event"] == "node ended"] == []
    write(3)
    process.wait_for(IN_USE, 1)
    assert process.wait_for("node ended")["node"] == first
    assert (place / "registry.db").exists()


@pytest.mark.nightly
def test_the_log_is_kept_in_files_after_a_save_too_and_where_saved_settings_say(
    start: Callable[..., Process], write: Any, place: Path
) -> None:
    def uses(folder: str) -> int:
        return sum(path.read_text().count(IN_USE) for path in (place / folder).iterdir())

    (place / "holdfast.toml").write_text('log_dir = "logs"\n')
    process = start()
    process.wait_for(IN_USE)
    write(2)
    process.wait_for(IN_USE, 1)
    (place / "counting.py.bak").write_text("")
    (place / "holdfast.toml").write_text('log_dir = "counting.py.bak/logs"\n')
    assert said(process, "no file can be written there")
    write(3)
    (place / "holdfast.toml").write_text('log_dir = "others"\n')
    process.wait_for(IN_USE, 2)
    process.end()
    assert (uses("logs"), uses("others")) == (2, 1)


@pytest.mark.nightly
def test_a_node_that_dies_is_started_again(holdfast: Any, start: Callable[..., Process]) -> None:
    process = start()
    process.wait_for("node runs")
    process.wait_for(IN_USE)
    psutil.Process(process.child.pid).children()[0].kill()
    process.wait_for("node died")
    process.wait_for("node runs", 1)


@pytest.mark.nightly
def test_tracebacks_of_handlers_are_logged_and_locals_only_when_asked_for(
    start: Callable[..., Process],
) -> None:
    process = start()
    process.wait_for(IN_USE)
    send(0, 1, fails=True)
    failed = process.wait_for("handler failed")
    assert 'raise ValueError("as it was told")' in failed["exception"]
    assert "1-of-locals" not in json.dumps(process.events)
    assert process.end() == 0
    process = start("--show-locals")
    process.wait_for(IN_USE)
    send(1, 2, fails=True)
    failed = process.wait_for("handler failed")
    assert "total = '1-of-locals'" in failed["exception"]
    assert "password = '***'" in failed["exception"]


@pytest.mark.slow
def test_a_console_runs_beside_the_node_for_development(start: Callable[..., Process]) -> None:
    process = start(console=True)
    address = re.search(r"http://[\d.:]+", said(process, "console: "))
    assert address is not None
    process.wait_for(IN_USE)
    with urllib.request.urlopen(address[0], timeout=PATIENCE_S) as page:
        assert "<html" in page.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["port", "metrics_port"])
def test_a_port_of_its_own_is_refused(start: Callable[..., Process], name: str) -> None:
    process = start("--set", f"{name}=8300")
    assert process.join() == 2
    assert f"--set {name}=0" in process.events[0]["event"]
