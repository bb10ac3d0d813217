"""A database that was made before the code moved is opened without loss, and gone on with."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from holdfast import App, Context, Job, StreamHandler
from holdfast.rules.tasks.task import State
from holdfast.testing import node_for_tests

MADE_BEFORE = Path(__file__).parent / "data" / "holdfast-0.1.0a.db.gz"
"""Made by the app below, on the tree as it was: stream ``counted`` had handled the messages 0 to 3 of a and b
(of which b's 2 was set aside), 4 and 5 of a waited. Of three tasks one had succeeded, one had failed, one
waited."""


def shop() -> App:
    app = App("shop")

    @app.stream("counted", seq="seq", first_seq=0, max_tries=1)
    class Counted(StreamHandler[dict[str, Any]]):
        def open(self, context: Context, state: bytes | None) -> None:
            self.count = int(state or 0)

        def process(self, message: dict[str, Any], context: Context) -> dict[str, int]:
            if message.get("bad"):
                raise ValueError("bad")
            self.count += 1
            return {"count": self.count, "seq": message["seq"]}

        def snapshot(self) -> bytes:
            return str(self.count).encode()

    @app.task("mailed", tries=1)
    def mailed(body: dict[str, Any], job: Job) -> dict[str, str]:
        return {"to": body["to"]}

    return app


def test_streams_tasks_and_dead_letters_of_an_old_database_go_on(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").write_bytes(gzip.decompress(MADE_BEFORE.read_bytes()))
    with node_for_tests(shop(), folder=tmp_path) as node:
        found = node.results("counted", 9)
        counts = {(each.key, each.seq): each.value["count"] for each in found}
        assert counts == {("a", seq): seq + 1 for seq in range(6)} | {("b", 0): 1, ("b", 1): 2, ("b", 3): 3}
        outcomes = {trace: node.outcome(trace) for trace in ("done-1", "failed-1", "waiting-1")}
        assert [outcome.state for outcome in outcomes.values()] == [
            State.SUCCEEDED,
            State.FAILED,
            State.SUCCEEDED,
        ]
        assert outcomes["waiting-1"].value == {"to": "bob"}
        [aside] = node.dead_letters("counted")
        assert (aside.key, aside.reason) == ("b", "ValueError: bad")
        [failed] = node.dead_letters("mailed")
        assert "no such address" in failed.reason
        node.stream("counted").send({"key": "b", "seq": 4})
        assert node.results("counted", 10)[-1].value == {"count": 4, "seq": 4}
