"""The linter's contracts name all that they are about."""

from __future__ import annotations

import ast
import configparser
import graphlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/holdfast"
PRODUCTS = {"devices", "reports", "vision"}
PUBLIC = {"errors", "extend", "testing"}

EACH_OTHERS_TYPES = {
    ("cluster.host", "cluster.membership"),
    ("reports.names", "reports.order"),
    ("reports.sinks.s3.upload", "reports.sinks.s3.sink"),
}
"""Imports for types alone, between two files of one thing."""


def contract(name: str) -> configparser.SectionProxy:
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter")
    return settings[f"importlinter:contract:{name}"]


def test_products_are_kept_from_every_part_of_the_engine_that_is_not_public() -> None:
    parts = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    engine = parts - PRODUCTS - PUBLIC - {"__init__"}
    told = contract("products-on-the-public-api")
    assert set(told["source_modules"].split()) == {f"holdfast.{name}" for name in PRODUCTS}
    assert set(told["forbidden_modules"].split()) == {f"holdfast.{name}" for name in engine}


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, line, broken",
    [
        ("reports/faults.py", "from holdfast.common.rate import Rate", "Products import the public API only"),
        (
            "vision/boxes.py",
            "from holdfast.reports.order import Csv",
            "Each layer imports only those below it",
        ),
        ("cli/exits.py", "from holdfast.devices import Outbox", "Each layer imports only those below it"),
        (
            "services/file/service.py",
            "from holdfast.extend.products import Services",
            "What products get is not for what stands below",
        ),
    ],
)
def test_an_import_that_is_not_allowed_is_told(tmp_path: Path, module: str, line: str, broken: str) -> None:
    copy = tmp_path / "holdfast"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / module).open("a") as file:
        file.write(f"\n{line}\n")
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; from importlinter.cli import *; "
    )
    program += f"sys.exit(lint_imports(config_filename={str(ROOT / '.importlinter')!r}, cache_dir=None))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"{broken} BROKEN" in ran.stdout


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Names that a package exports lazily count as imports of the modules that have them."""
    trees = {_module(path): ast.parse(path.read_bytes()) for path in PACKAGE.rglob("*.py")}
    exported = {
        name: {known_as: module for _, known_as, module in _names(tree)}
        for name, tree in trees.items()
        if _is_lazy(tree)
    }

    def imported(tree: ast.Module) -> Iterator[str]:
        for name, _, module in _names(tree):
            found = exported[module].get(name, module) if module in exported else module
            yield f"{found}.{name}" if f"{found}.{name}" in trees else found

    graph = {
        name: {each for each in imported(tree) if each != name and each in trees}
        for name, tree in trees.items()
        if name not in exported
    }
    for module, other in EACH_OTHERS_TYPES:
        graph[f"holdfast.{module}"].remove(f"holdfast.{other}")
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names a circle


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _is_lazy(tree: ast.Module) -> bool:
    """Return whether a module imports its public names at their first use."""
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == "exports" for node in ast.walk(tree))


def _names(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield each name that is imported outside of functions, for types too: its own, what it is imported as,
    and its module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield from ((each.name, each.asname or each.name, child.module or "") for each in child.names)
        elif isinstance(child, ast.Import):
            yield from (("", each.asname or each.name, each.name) for each in child.names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _names(child)
