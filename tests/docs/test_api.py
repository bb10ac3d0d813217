"""The examples of the page of the JSON API are run as they stand."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Job
from holdfast.config.settings import Config
from holdfast.console.api.routes import operations
from holdfast.console.service import Console, ConsoleSettings
from holdfast.devices.adapters import open_outbox
from holdfast.ports.queue import DeadLetter
from holdfast.testing import node_for_tests
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "api.md"
LETTER = "frames/cam-1:0:000000000000000000000000000000000001502"


def shop() -> App:
    """What the page's examples are about."""
    app = App("shop")

    @app.stream("frames", key="camera", seq="frame", first_seq=0, gap_timeout_s=3600)
    def frames(message: dict[str, Any], context: Any) -> None: ...

    @app.task("mail.send")
    def send(body: dict[str, Any], job: Job) -> None: ...

    return app


async def run(command: str, environment: dict[str, str]) -> str:
    """What a command of the shell prints. ``-f`` has curl fail at errors."""
    process = await asyncio.create_subprocess_shell(
        command.replace("curl -s", "curl -sS --fail-with-body"),
        env={**os.environ, **environment, "NO_PROXY": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, f"{command}\n{printed.decode()}"
    return printed.decode()


@pytest.mark.slow
async def test_the_examples_do_what_the_page_says(tmp_path: Path) -> None:
    examples = [
        command for block in blocks(PAGE, "sh") for command in re.split(r"(?<!\\)\n", block.text.strip())
    ]
    assert len(examples) > 10
    office = f"sqlite:///{tmp_path}/office.db"
    with node_for_tests(shop()) as node:
        node.stream("frames").send({"camera": "cam-1", "frame": 0})
        await asyncio.to_thread(node.results, "frames")
        async with Services(Config(url=node.url, outbox_url=office)) as services:
            store = open_outbox(services)
            await store.prepare("doors", 1)
            await store.close()
            await services.queue("frames").bury(
                [DeadLetter(LETTER, b"{}", "broken", stream="frames", key="cam-1", seq="1502")]
            )
            console = Console(services, ConsoleSettings(port=0), Log())
            await console.start()
            try:
                environment = {"CONSOLE": console.address, "TOKEN": console.own_token}
                said = [json.loads(await run(example, environment)) for example in examples]
            finally:
                await console.stop()
    assert any(answer.get("ids") == [LETTER] for answer in said), "the preview has the letter"
    assert any(answer.get("done") == 1 for answer in said), "the redrive takes it"
    assert any(answer.get("asked_back") == 1 for answer in said), "the command is taken back"


async def test_the_page_names_what_there_is(tmp_path: Path) -> None:
    """Paths on the page are described ones."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with Services(Config(url=url, outbox_url=f"sqlite:///{tmp_path}/office.db")) as services:
        console = Console(services, ConsoleSettings(port=0), Log())
        known = {re.sub(r"{\w+}", "[^/]+", each.path) for each in operations(console.parts)}
    named = re.findall(r"\$CONSOLE/api/v1([^\s\"?]+)", PAGE.read_text())
    assert [path for path in named if not any(re.fullmatch(each, path) for each in known)] == []
