"""Find phrases that a reader has to read twice: ``python tools/prose [FILE...]``.

Without files, it reads all of ``src`` and the docs, except the pending folders of ``phrases.toml``. In Python
files it reads docstrings, docstrings of attributes, comments, log events and error texts.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DATA = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text())
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
EXCUSE = re.compile(r"(?:#|<!--) prose: \S")
FENCE = re.compile(r"^ *(```|~~~)")
WHOLE = ("README.md", "CONTRIBUTING.md")


class Text(NamedTuple):
    """A text with the numbers of its first and its last line."""

    value: str
    first: int
    last: int
    docstring: bool = False


class Finding(NamedTuple):
    """A phrase to replace, in a text that ends at the line ``last``."""

    line: int
    phrase: str
    write: str
    last: int


def main(arguments: list[str]) -> int:
    """Print the findings, and return the exit status."""
    pending = tuple(DATA["pending"])
    chosen = [Path(argument).resolve() for argument in arguments]
    found = 0
    clean = dict.fromkeys(pending, True)
    for path in chosen or everything():
        name = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
        folder = next((each for each in pending if name == each or name.startswith(f"{each}/")), None)
        for finding in findings(path):
            if folder and not chosen:
                clean[folder] = False
                break
            print(f"{name}:{finding.line}: “{finding.phrase}”. {finding.write}")
            found += 1
    if not chosen:
        for folder in (folder for folder in pending if clean[folder]):
            print(f"{folder} is clean: delete it from the pending folders in tools/prose/phrases.toml")
    return bool(found)


def everything() -> Iterator[Path]:
    """Return every file that the check reads."""
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in WHOLE)


def findings(path: Path) -> list[Finding]:
    """Return what is wrong in a file."""
    source = path.read_text()
    lines = source.splitlines()
    read = markdown(lines) if path.suffix == ".md" else python(source)
    found = set()
    for text in read:
        for pattern, write in PATTERNS:
            for match in pattern.finditer(text.value):
                line = text.first + text.value.count("\n", 0, match.start())
                found.add(Finding(line, " ".join(match[0].split()), write, text.last))
        if text.docstring and (match := FIRST.match(text.value)):
            found.add(Finding(text.first, match[0], DATA["first_words"]["write"], text.last))
    return sorted(each for each in found if not excused(each, lines))


def excused(finding: Finding, lines: list[str]) -> bool:
    """Return whether the phrase's line, or the last line of its text, carries a reason."""
    return any(EXCUSE.search(lines[number - 1]) for number in (finding.line, finding.last))


def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern whose spaces also match the end of a line and a comment's mark."""
    return re.compile(text.replace(" ", r"\s+(?:#\s*)?"), re.IGNORECASE)


PATTERNS = [(pattern_of(each["pattern"]), each["write"]) for each in DATA["phrases"]]
FIRST = re.compile(DATA["first_words"]["pattern"])


def markdown(lines: list[str]) -> Iterator[Text]:
    """Return the paragraphs of a page, without code and the targets of links."""
    fenced = False
    paragraph: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        mark = FENCE.match(line)
        fenced ^= bool(mark)
        if mark or fenced or not line.strip() or line.lstrip().startswith(("|", "- ", "#")):
            if paragraph:
                yield Text("\n".join(paragraph), number - len(paragraph), number - 1)
            paragraph = []
        if not (mark or fenced) and line.strip():
            paragraph.append(re.sub(r"`[^`]*`|\]\([^)]*\)", "", line))


def python(source: str) -> Iterator[Text]:
    """Return the texts of a module that a person reads."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(value))):
                yield Text(value, node.lineno, node.end_lineno or node.lineno, docstring=True)
            case ast.Call(func=ast.Attribute(attr=level), args=[event, *_]) if level in LEVELS:
                yield from strings([event])
            case ast.Raise(exc=ast.Call(args=args, keywords=keywords)):
                yield from strings([*args, *(keyword.value for keyword in keywords)])
    yield from comments(source)


def strings(nodes: Iterable[ast.expr]) -> Iterator[Text]:
    """Return the constant texts in expressions."""
    for node in nodes:
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield Text(each.value, each.lineno, each.end_lineno or each.lineno)


def comments(source: str) -> Iterator[Text]:
    """Return the comments of a module; comments on lines that follow each other are one text."""
    run: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if run and token.start[0] != last + 1:
            yield Text("\n".join(run), last - len(run) + 1, last)
            run = []
        run.append(token.string)
        last = token.start[0]
    if run:
        yield Text("\n".join(run), last - len(run) + 1, last)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
