"""The modules that decide and do no I/O, each with the test file that bears its name."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "holdfast"
TESTS = ROOT / "tests"

SHARED = {"codec", "lazy", "protocol", "redaction", "user_code"}
"""What several parts share and no decision hangs on: tested where it is used."""

FOLDERS = [SOURCE / "common", *sorted(SOURCE.glob("*/rules"))]
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path
    for folder in FOLDERS
    for path in sorted(folder.glob("[!_]*.py"))
    if folder.name == "rules" or path.stem not in SHARED
}


def own_tests(path: Path) -> Path:
    """The test file of a module."""
    return TESTS / path.relative_to(SOURCE).with_name(f"test_{path.name}")
