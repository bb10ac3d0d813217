"""The modules that decide and do no I/O, each with its test files: one bears its name."""

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


TOGETHER = {"owner": "acting", "effects": "acting", "timers": "acting"}
"""The test file that some modules have in common, besides their own: an owner acts by what they decide."""


def own_tests(path: Path) -> list[Path]:
    """The test files of a module."""
    names = [path.stem, *([TOGETHER[path.stem]] if path.stem in TOGETHER else [])]
    return [TESTS / path.relative_to(SOURCE).with_name(f"test_{name}.py") for name in names]
