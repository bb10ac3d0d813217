"""``holdfast query``, of a node of its own with real slots."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_node import Process

APP = """
from holdfast import App, StreamHandler

app = App("sites")

@app.stream("sites")
class Site(StreamHandler[dict]):
    def open(self, context, state):
        self.count = int(state or 0)
    def process(self, message, context):
        self.count += 1
        return self.count
    def query(self, request, context):
        if request == "bytes":
            return b"\\xff\\x00"
        if request == "die":
            import os
            os._exit(3)
        return {"count": self.count, "asked": request}
    def snapshot(self):
        return b"%d" % self.count

@app.stream("silent")
def silent(message, context): ...
"""


@pytest.fixture
def node(place: Path) -> Iterator[dict[str, Any]]:
    """What a node says as it joins."""
    (place / "sites.py").write_text(APP)
    process = Process("sites:app", "--slots", "1", as_users_do=True)
    joined = process.wait_for("joined")
    process.wait_for("node runs")
    yield joined
    process.child.kill()
    process.join()


@pytest.mark.slow
def test_a_query_tells_the_state_that_the_stream_has(holdfast: Any, node: dict[str, Any]) -> None:
    assert holdfast("query", "sites/gate").lines == [{"count": 0, "asked": None}]
    holdfast("send", "sites", '{"key": "gate"}')
    assert holdfast("results", "--follow", "--limit", "1").lines[0]["result"] == 1
    assert holdfast("query", "sites/gate", '{"a": 1}').lines == [{"count": 1, "asked": {"a": 1}}]
    (told,) = holdfast("query", "sites/gate", '"bytes"', "--json").lines
    assert told["answer_base64"] == "/wA="
    assert told["epoch"] > 0
    assert told["number"] > 0
    died = holdfast("query", "sites/gate", '"die"')
    assert (died.code, "the query ended its slot" in died.err) == (1, True)
    assert holdfast("query", "sites/gate").lines == [{"count": 1, "asked": None}]


@pytest.mark.slow
def test_a_query_that_cannot_be_answered_says_why(holdfast: Any, node: dict[str, Any]) -> None:
    silent, other, bad = (
        holdfast("query", *asked) for asked in (["silent/a"], ["other/a"], ["sites/a", "{a"])
    )
    assert (silent.code, "stream 'silent' answers no queries" in silent.err) == (1, True)
    assert (other.code, "no node that lives declares the stream 'other'" in other.err) == (3, True)
    assert (bad.code, "quote it for the shell" in bad.err) == (1, True)


@pytest.mark.slow
def test_a_node_answers_a_query_over_http(node: dict[str, Any]) -> None:
    with urllib.request.urlopen(f"{node['address']}/query/sites/gate?by=you") as answer:
        assert json.load(answer) == {"count": 0, "asked": {"by": "you"}}
        assert answer.headers["X-Commit-Number"] == "0"
