"""What README, docs and examples import of Holdfast is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name

PRODUCTS = ("devices", "reports", "vision")
"""Packages of Holdfast that users import whole: ``from holdfast import devices``."""

EXTEND = ("", ".commands", ".products", ".s3", ".tools")
PUBLIC = (
    "holdfast",
    *(f"holdfast.extend{part}" for part in EXTEND),
    "holdfast.testing",
    "holdfast.testing.conformance",
    "holdfast.devices.conformance",
    "holdfast.reports.conformance",
)

DEMO = ROOT / "examples/tracking"
"""The demo measures parts of vision from within: it is no code to copy."""

EXAMPLES = sorted(set((ROOT / "examples").rglob("*.py")) - set(DEMO.rglob("*.py")))
PLACES = [*PAGES, *EXAMPLES]


def codes(place: Path) -> Iterator[ast.Module]:
    """The Python in a page, or a file of Python."""
    if place.suffix == ".py":
        yield ast.parse(place.read_text())
    else:
        for block in blocks(place, "python"):
            yield ast.parse("\n" * (block.line - 1) + block.text)


def not_public(code: ast.Module) -> Iterator[str]:
    """What it imports that isn't public, with the line."""
    public = {module: set(import_module(module).__all__) for module in PUBLIC}
    public["holdfast"] |= {*PRODUCTS}
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names if alias.name.partition(".")[0] == "holdfast"}
            yield from (f"{node.lineno}: import {module}" for module in names - {"holdfast"})
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            said = {alias.name for alias in node.names} - public.get(node.module or "", set())
            yield from (f"{node.lineno}: from {node.module} import {word}" for word in sorted(said))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            product = node.value.id
            if product in PRODUCTS and node.attr not in import_module(f"holdfast.{product}").__all__:
                yield f"{node.lineno}: {product}.{node.attr}"


@pytest.mark.parametrize("place", PLACES, ids=name)
def test_only_what_is_public_is_imported(place: Path) -> None:
    assert [each for code in codes(place) for each in not_public(code)] == []


@pytest.mark.parametrize("package", [*PUBLIC, *(f"holdfast.{name}" for name in PRODUCTS)])
def test_all_that_is_public_is_there(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(getattr(module, word) is not None for word in module.__all__)
