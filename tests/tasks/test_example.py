"""The example of tasks does what it says."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.tasks import app, nightly
from holdfast import AsyncClient
from holdfast.rules.tasks.task import State
from holdfast.testing import TaskTest
from tests.nodes.cluster import Process

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 120.0


@pytest.mark.slow
async def test_the_example_of_tasks_runs_on_a_node(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    node = Process("a", tmp_path, ("node", "examples.tasks:app"), {"HOLDFAST_URL": url}, path=ROOT)
    try:
        async with AsyncClient("statements", url=url) as client:
            fine = await client.send("write", {"customer": "acme", "pages": 3})
            bad = await client.send("write", {"customer": ""})
            outcome = await client.wait(fine, PATIENCE_S)
            assert (outcome.state, outcome.value) == (State.SUCCEEDED, "acme.txt")
            assert (node.place / "acme.txt").read_text().splitlines()[-1] == "acme, page 3"
            outcome = await client.wait(bad, PATIENCE_S)
            assert (outcome.state, outcome.attempts) == (State.FAILED, 1)
    finally:
        node.child.terminate()
        await node.ended()


def test_what_it_sends_at_night_is_what_its_handler_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for order in nightly(datetime(2026, 1, 1, tzinfo=UTC)):
        assert TaskTest(app, order.task_type).run(order.body) == f"{order.body.customer}.txt"
