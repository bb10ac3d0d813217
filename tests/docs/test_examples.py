"""The examples in the docs do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import StreamTest
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, module_of, name

RUN_ELSEWHERE = {ROOT / "README.md", DOCS / "extending.md"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in RUN_ELSEWHERE and blocks(p, "python")], ids=name
)
def test_the_python_blocks_of_each_page_run(page: Path) -> None:
    module = module_of(page)
    for test in [value for key, value in vars(module).items() if key.startswith("test_")]:
        test()


def test_handlers_are_tested_on_their_page() -> None:
    assert sum(key.startswith("test_") for key in vars(module_of(DOCS / "handlers.md"))) >= 5


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_toml_and_json_can_be_read(page: Path) -> None:
    import tomllib

    from holdfast.config.settings import Config

    for block in blocks(page, "toml"):
        assert set(tomllib.loads(block.text)) <= set(Config.model_fields)
    for block in blocks(page, "json"):
        json.loads(block.text)


def test_the_fridge_of_the_readme_warns_and_is_missed() -> None:
    [text] = [b.text for b in blocks(ROOT / "README.md", "python") if b.text.startswith("# fridges.py")]
    names: dict[str, Any] = {"__name__": "fridges"}
    exec(text, names)
    test = StreamTest(names["app"], "temperatures")
    for number, celsius in enumerate([4, 9]):
        test.send({"fridge": "f1", "number": number, "celsius": celsius})
    assert [(sent.target, sent.body) for sent in test.sent] == [("alert", "f1 is too warm")]
    test.advance(300)
    assert test.sent[-1].body == "f1 has been silent for five minutes"


@pytest.mark.slow
def test_the_readme_from_handler_to_results(tmp_path: Path) -> None:
    """The README's files and commands, as a reader would type them."""
    readme = ROOT / "README.md"
    place = tmp_path / "meters"
    subprocess.run([sys.executable, "-m", "holdfast", "new", "meters"], cwd=tmp_path, check=True, timeout=60)
    written = {file.name: file.read_text() for file in place.iterdir()}
    for block in blocks(readme, "python"):
        title = re.match(r"# (\w+\.py)\n", block.text)
        assert title, "say in a comment which file it is"
        assert written.get(title[1], block.text) == block.text, "`holdfast new` writes another text"
        (place / title[1]).write_text(block.text)
    commands = [
        line.removeprefix("$ ").partition("  #")[0].strip()
        for block in blocks(readme, "console")
        for line in block.text.splitlines()
        if line.startswith(("$ holdfast", "$ python"))
    ]
    node, feed, follow, *others = commands
    environment = {**os.environ, "HOLDFAST_SLOTS": "1", "HOLDFAST_LOG_FORMAT": "json"}

    def command(line: str) -> list[str]:
        program, *arguments = shlex.split(line)
        return [sys.executable, *(["-m", "holdfast"] if program == "holdfast" else []), *arguments]

    def run(line: str) -> str:
        return subprocess.run(
            command(line),
            cwd=place,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    with subprocess.Popen(
        command(node), cwd=place, env=environment, stderr=subprocess.PIPE, text=True
    ) as child:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(child.stderr or ()))
        reader.start()
        try:
            run(feed)
            run(feed)  # twice, as the README says that one may
            assert follow == "holdfast results --follow"
            results = [json.loads(line) for line in run(f"{follow} --limit 30").splitlines()]
            totals = [line["result"] for line in results if line["key"] == "m0"]
            assert totals == [0.5 * (n + 1) for n in range(10)]
            for line in others:
                run(line)
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0, lines
            assert len(run("holdfast results").splitlines()) == 30
        finally:
            child.kill()
            reader.join(60)
            sys.stderr.writelines(lines)  # shown if this fails
