"""The modules that decide and do no I/O, each with its test files: one bears its name."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "holdfast"
TESTS = ROOT / "tests"

SHARED = {"codec", "lazy", "protocol", "redaction", "user_code"}
"""What several parts share and no decision hangs on: tested where it is used."""

PRODUCTS = ("devices", "reports")
FOLDERS = [
    SOURCE / "common",
    *sorted(path for path in (SOURCE / "rules").iterdir() if path.is_dir() and path.name != "__pycache__"),
    *(SOURCE / product / "rules" for product in PRODUCTS),
]
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path
    for folder in FOLDERS
    for path in sorted(folder.glob("[!_]*.py"))
    if folder.name != "common" or path.stem not in SHARED
}


ACTING = {"acts", "effects"}
"""Modules that are tested at an owner whose handler acts, besides their own tests."""

OWNER = {
    *("commands", "commit_plan", "inbox", "options", "owner", "phases", "restarts"),
    *("run_plan", "timers", "wait_reason"),
}
"""The owner and its parts: what they decide together is tested at the owner."""


def own_tests(path: Path) -> list[Path]:
    """The test files of a module."""
    own = TESTS / path.relative_to(SOURCE).with_name(f"test_{path.stem}.py")
    streams = TESTS / "rules/streams"
    if path.parent.name == "streams" and path.stem in OWNER:
        return [own, streams / "test_owner.py", streams / "test_rest.py", streams / "test_acting.py"]
    return [own, streams / "test_acting.py"] if path.stem in ACTING else [own]
