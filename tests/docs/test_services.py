"""What the page on services tells is so."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import cli
from holdfast.assembly.loading import load_app
from holdfast.common.message import NO_RUN, Place
from holdfast.config import legacy_names
from holdfast.config.sources import load
from holdfast.ports.coordinator import Member
from holdfast.ports.queue import Outgoing
from holdfast.rules.streams.ledger import Commit, Result, RunLog
from holdfast.streams.addressing import address
from holdfast.wiring.services import Services
from simulator.servers import RedisServer
from tests.docs.pages import DOCS, ROOT, blocks, rows

PAGE = DOCS / "services.md"


def test_the_policy_is_what_doctor_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)
    settings, *_ = blocks(PAGE, "toml")
    (tmp_path / "holdfast.toml").write_text(settings.text)
    assert cli.run(["doctor", "examples.cameras:app", "--iam-policy"]) == 0
    shown, _ = blocks(PAGE, "json")
    assert json.loads(capsys.readouterr().out) == json.loads(shown.text)


async def test_the_user_of_redis_may_do_all_that_is_needed(place: Path) -> None:
    (rule,) = re.findall(r"^ACL SETUSER holdfast (.+)$", PAGE.read_text(), re.MULTILINE)
    key, place_of = "frames/cam-1", Place(0, 0)
    async with RedisServer(users=[f"user holdfast {rule.replace('SECRET', 'secret')}"]) as server:
        url = server.url_as("holdfast", "secret")
        async with Services(load({"url": url})) as services:
            queue = services.queue("frames")
            waiting = asyncio.create_task(queue.receive(1, 60, 60, "m"))
            await asyncio.sleep(0)
            await queue.send([Outgoing(b"x")])
            [delivery] = await waiting
            assert await queue.delete([delivery.receipt]) == []
            assert await services.filled_queues() == []
            coordinator, state = services.coordinator(), services.state()
            member = Member("m", "node", "http://x")
            seen, _ = await coordinator.watch(-1, 0)
            await coordinator.join(member, 60)
            await coordinator.renew(member, 60)
            claim = await coordinator.claim(key, "m")
            assert await coordinator.lookup(key) == claim
            assert (await coordinator.watch(seen, 10))[1]
            epoch = (await state.open(key, 0, "m")).epoch
            await state.start(key, epoch, place_of.name)
            results = (Result(place_of.name, b"{}"),)
            await state.commit(
                Commit(key, epoch, 1, "1", RunLog(0, 0, 0), state=bytes(300_000), results=results, done=1)
            )
            assert len(await state.results(0, 9, 10)) == 1
            assert await state.expire(0, 0) == (0, 0)
            assert any("nothing is kept on disk" in risk.text for _, risk in await services.risks())
            assert await coordinator.release(claim)
            await coordinator.leave("m")


def test_every_name_of_the_legacy_namesironment_is_told() -> None:
    listed: set[str] = set()
    for variable, *_ in rows(PAGE, "## In place of a lock for each video"):
        listed |= set(re.findall(r"`(\w+)`", variable))
    assert listed == set(legacy_names.NAMES)


def test_the_message_is_one_that_the_example_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    spec = load_app("examples.cameras:app").streams["frames"]
    message: dict[str, Any] = json.loads(blocks(PAGE, "json")[1].text)
    for frame_id in (17, "000017", "frame-000017"):
        body = json.dumps(message | {"frame_id": frame_id}).encode()
        assert address(spec, body, {}, "id", None) == ("cam-1", Place(NO_RUN, 17))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
