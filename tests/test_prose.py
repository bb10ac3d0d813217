"""``tools/prose``: the phrases that ``make lint`` finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def found_in(name: str, text: str, folder: Path) -> str:
    """Return what the check prints about one file."""
    (folder / name).write_text(text)
    command = [sys.executable, str(ROOT / "tools/prose"), str(folder / name)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "text",
    [
        '"""It is told."""\n',
        'LIMIT = 3\n"""So many are kept."""\n',
        "# Nobody\nx = 1\n",
        "# of those\n# that wait\nx = 1\n",
        'log.warning("nobody answers", error=error)\n',
        'raise ConfigError(f"{name} is told anew")\n',
        '"""How it is done."""\n',
        '"""It is told.\n\nThe rest has a second line.\n"""\n',
    ],
)
def test_a_phrase_in_python_is_found(text: str, tmp_path: Path) -> None:
    assert found_in("module.py", text, tmp_path).startswith(f"{tmp_path / 'module.py'}:")


@pytest.mark.parametrize(
    "text",
    [
        'state = "told"\n',
        'state = old["nobody"]\n',
        'log.warning("nobody answers")  # prose: the protocol\'s word\n',
        '"""It is told."""  # prose: quotes the article\n',
    ],
)
def test_data_and_excused_lines_pass(text: str, tmp_path: Path) -> None:
    assert found_in("module.py", text, tmp_path) == ""


def test_a_page_is_read_without_its_code(tmp_path: Path) -> None:
    page = "The text\ntells it.\n\n```\nnobody\n```\n\n[`told`](told.md), <!-- prose: quoted --> anew\n"
    assert [line.split(":")[1] for line in found_in("page.md", page, tmp_path).splitlines()] == ["2"]
