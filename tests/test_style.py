"""Rules of taste that no linter knows."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.common.redaction import redact

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def committed() -> list[Path]:
    """The files that git knows and that are here."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    files = [ROOT / file.decode() for file in listing.split(b"\0") if file]
    return [file for file in files if file.is_file()]


def calls(path: Path, functions: set[str]) -> bool:
    """Whether a file calls one of these functions, as written."""
    text = path.read_text()
    if not any(f"{function}(" in text for function in functions):
        return False  # to parse all files takes seconds
    found = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return any(ast.unparse(each) in functions for each in found if isinstance(each, ast.Name | ast.Attribute))


@pytest.mark.slow
def test_no_file_names_a_package_host() -> None:
    hosts = re.compile(
        rb"pypi\.org|pythonhosted|--(extra-)?index-url|--find-links|registry\.npmjs|deb\.debian"
    )
    named = [name(f) for f in committed() if f != Path(__file__) and hosts.search(f.read_bytes())]
    assert named == []


@pytest.mark.slow
def test_no_file_asks_pip_for_the_package_holdfast_of_another_project() -> None:
    asks = re.compile(
        rb"(?<![\w.-])holdfast(\[[a-z]|[=~>]=)|pip3? install [^\n]*(?<![\w./-])holdfast(?![\w./-])"
    )
    about = {Path(__file__), ROOT / "CHANGELOG.md", *(ROOT / "tests/image").iterdir()}
    found = [name(file) for file in committed() if file not in about and asks.search(file.read_bytes())]
    assert found == [], "write holdfast-streams"


def texts(path: Path) -> Iterator[str]:
    """The texts in a file that somebody may read, as written: numbers stand for what they say of values."""
    tree = ast.parse(path.read_bytes())
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in ast.walk(node) if part is not node}
            if id(node) not in passed:
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "80" for part in node.values
                )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


@pytest.mark.slow
def test_the_filter_of_secrets_leaves_our_own_words() -> None:
    eaten = [
        f"{name(path)}: {text}"
        for path in SOURCES
        for text in texts(path)
        if " " in text and redact(text) != text
    ]
    assert eaten == [], "write no colon after the name of a secret"


def test_every_module_has_a_docstring_and_prints_nothing() -> None:
    bare, printing = [], []
    for path in SOURCES:
        if not path.read_text().startswith('"""'):
            bare.append(name(path))
        if calls(path, {"print"}):
            printing.append(name(path))
    assert bare == [], "say in a docstring what the module is for"
    assert printing == [], "write through the CLI's console or the log"


@pytest.mark.slow
def test_no_test_sleeps_instead_of_waiting_on_events() -> None:
    sleeping = [name(path) for path in TESTS if calls(path, {"time.sleep", "sleep"})]
    assert sleeping == [], "wait on an event, not for a time"


def private_names() -> frozenset[str]:
    """The private names that the source defines, but those of the protocol of named tuples."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case (
                    ast.FunctionDef(name=word)
                    | ast.AsyncFunctionDef(name=word)
                    | ast.ClassDef(name=word)
                    | ast.Name(id=word, ctx=ast.Store())
                    | ast.Attribute(attr=word, ctx=ast.Store())
                ) if word.startswith("_") and word != "_" and not word.endswith("__"):
                    found.add(word)
    return frozenset(found - {"_replace", "_asdict", "_fields"})


BY_NAME = frozenset({"setattr", "delattr", "getattr", "hasattr", "patch", "object", "attrgetter"})
"""Functions that touch an attribute by its name, the monkeypatch's and the mock's among them."""


def touched(path: Path) -> Iterator[str]:
    """Yield the attributes that a file reads or sets, of its own objects too, but not by ``self``."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute(attr=word):
                yield word
            case ast.ImportFrom(module=str(module), names=imported) if module.startswith("holdfast"):
                yield from (each.name for each in imported)
            case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=given) if (
                function in BY_NAME
            ):
                for each in given[:2]:
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield from each.value.split(".")


@pytest.mark.slow
def test_no_test_touches_a_private_name_of_the_source() -> None:
    private = private_names()
    reaching = [f"{name(path)}: {word}" for path in TESTS for word in sorted({*touched(path)} & private)]
    assert reaching == [], "speak to public names, or give the object a parameter or an attribute"


PYTHON = b"#!/usr/bin/env python3"
OLDEST_LACKS = {
    **dict.fromkeys(("extract", "extractall", "unpack_archive"), "filter"),
    **dict.fromkeys(("getaddresses", "parseaddr"), "strict"),
    **dict.fromkeys(("data_filter", "tar_filter", "fully_trusted_filter", "FilterError"), ""),
}
"""Functions, with the parameters, that came to the standard library after Python 3.11.0; all of it where no
parameter is named. Strict types know of 3.12 and 3.13 alone. ``getattr`` with a default may ask for them."""


def lacking(path: Path) -> list[str]:
    """The uses of what the oldest promised Python lacks."""
    text = path.read_text()
    if "except*" not in text and not any(function in text for function in OLDEST_LACKS):
        return []
    used = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), keywords=given):
                used += [
                    f"{called}({each.arg}=)" for each in given if (called, each.arg) in OLDEST_LACKS.items()
                ]
            case ast.TryStar(handlers=handlers):  # it made a group of what was raised in it
                inner = (each for handler in handlers for each in ast.walk(handler))
                used += ["raise in except*"] * any(isinstance(each, ast.Raise) for each in inner)
            case ast.Attribute(attr=word) | ast.ImportFrom(names=[ast.alias(name=word)]):
                used += [word] * (OLDEST_LACKS.get(word) == "")
    return [f"{name(path)}: {each}" for each in used]


def test_nothing_is_used_that_the_oldest_promised_python_lacks() -> None:
    code = [path for path in committed() if path.suffix == ".py" or path.read_bytes().startswith(PYTHON)]
    assert [use for path in code for use in lacking(path)] == []


@pytest.mark.slow
def test_docstrings_say_first_what_the_thing_is_or_does() -> None:
    asking = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                said = ast.get_docstring(node) or ""
                if re.match(r"(What|Which|Who|Whose|How|Why|When|Where|Whether)\b", said):
                    asking.append(f"{name(path)}: {said.splitlines()[0]}")
    assert asking == []
