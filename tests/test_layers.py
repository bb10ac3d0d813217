"""The linter's contracts name all that they are about."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/holdfast"
PRODUCTS = {"devices", "reports", "vision"}
PUBLIC = {"errors", "extend", "testing"}

LAYERS = "Each layer imports only those below it"
LINT = """
import sys
sys.path[:0] = sys.argv[1:]
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename=f"{sys.argv[2]}/.importlinter", cache_dir=None))
"""


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
