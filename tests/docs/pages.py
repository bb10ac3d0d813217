"""Reads the project's pages: README, changelog and docs."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])


class Block(msgspec.Struct, frozen=True):
    """A fenced block. ``line`` is that of its first line of text."""

    language: str
    text: str
    line: int


def name(page: Path) -> str:
    """A page's path in the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[Block]:
    """The fenced blocks of one language, in order."""
    found: list[Block] = []
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        if fence := re.fullmatch(r"```(\w*).*", line):
            text = []
            for _, inside in lines:
                if inside == "```":
                    break
                text.append(inside)
            found.append(Block(fence[1], "\n".join(text) + "\n", number + 1))
    return [block for block in found if block.language == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under ``heading``, without its head."""
    _, found, rest = page.read_text().partition(f"\n{heading}\n")
    assert found, f"{name(page)} has no heading {heading!r}"
    lines = iter(rest.splitlines())
    table = list(_first_table(lines))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[2:]]


def _first_table(lines: Iterator[str]) -> Iterator[str]:
    begun = False
    for line in lines:
        if line.startswith("|"):
            begun = True
            yield line
        elif begun or line.startswith("#"):
            return


def module_of(page: Path) -> types.ModuleType:
    """A module made of a page's Python blocks, which follow on each other."""
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    for block in blocks(page, "python"):
        code = "\n" * (block.line - 1) + block.text
        exec(compile(code, str(page), "exec", dont_inherit=True), module.__dict__)
    return module
