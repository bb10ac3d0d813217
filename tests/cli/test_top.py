"""``holdfast top`` beside a real node."""

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Client, Context, Job
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.services.sqlite.state import SqliteState
from tests.cli.test_node import Process

APP = """
import threading
from pathlib import Path

from holdfast import App, Context, Job

app = App("busy")

@app.stream("count", key="key", seq="n", first_seq=0)
def count(message: dict, context: Context) -> int:
    threading.Event().wait(message["takes_s"])
    return message["n"]

@app.task("write", timeout_s=60, group="customer")
def write(body: dict, job: Job) -> None:
    job.progress(0.5, "half of it")
    while not Path("go").exists():
        threading.Event().wait(0.05)
"""

busy = App("busy")


@busy.stream("count", key="key", seq="n", first_seq=0)
def count(message: dict[str, Any], context: Context) -> None:
    """Only sent to from here."""


@busy.task("write", timeout_s=60, group="customer")
def write(body: dict[str, Any], job: Job) -> None:
    """Only sent from here."""


@pytest.mark.slow
def test_the_busiest_streams_and_running_tasks_are_shown_without_asking_the_stores(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "busy.py").write_text(APP)
    node = Process("busy:app", "--set", "slots=2", "--name", "lab", as_users_do=True)
    enough = threading.Event()

    def feed() -> None:
        with Client(busy) as client:
            stream = client.stream("count")
            n = 0
            while not enough.wait(0.1):
                stream.send_many(
                    {"key": key, "n": n, "takes_s": s} for key, s in {"a": 0.05, "b": 0.005}.items()
                )
                n += 1

    feeder = threading.Thread(target=feed)
    try:
        node.wait_for("node runs")
        feeder.start()
        with Client(busy) as client:
            client.send("write", {"customer": "acme"})

        def asked(*arguments: object) -> None:
            raise AssertionError("top asked a store")

        monkeypatch.setattr(SqliteQueue, "depth", asked)
        monkeypatch.setattr(SqliteState, "checkpoints", asked)
        monkeypatch.setattr("holdfast.cli.top.REFRESH_S", 0.2)
        found: dict[str, Any] = {"streams": [], "tasks": []}
        while not (found["tasks"] and len([each for each in found["streams"] if each["load"]]) == 2):
            (found,) = holdfast("top", "--times", "1", "--json").lines
        first, second = found["streams"]
        assert (first["key"], second["key"]) == ("count/a", "count/b")
        assert first["time_s"] > second["time_s"] > 0
        assert first["rate"] > 0
        assert first["node"] == "lab"
        (task,) = found["tasks"]
        assert (task["type"], task["group"], task["node"]) == ("write", "acme", "lab")
        assert (task["progress"], task["note"]) == (0.5, "half of it")
        assert found["troubles"] == []
        shown = holdfast("top", "-n", "2", "--by", "time").out
        assert shown.count("Busiest streams") == shown.count("Running tasks") == 2
        assert shown.index("count/a") < shown.index("count/b")
        (found,) = holdfast("top", "-n", "1", "--json", "--stream", "other").lines
        assert found["streams"] == found["tasks"] == []
        (place / "go").touch()
    finally:
        enough.set()
        feeder.join()
        assert node.end() == 0
        node.child.kill()


def test_nodes_that_do_not_answer_are_named(holdfast: Any, arrange: Any) -> None:
    from tests.cli.test_watching import LONG, cluster

    arrange(cluster)
    shown = holdfast("top", "--times", "1").out
    assert f"! {LONG}-a does not answer: " in shown
    assert "Nodes: 2" in shown
