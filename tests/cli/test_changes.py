"""Which files of a project have changed."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.cli.changes import ProjectFiles
from holdfast.system.clock import SystemClock


class Saves(SystemClock):
    """A clock at each of whose sleeps the next thing happens, and then nothing any more."""

    def __init__(self, *saves: Callable[[], object]) -> None:
        self._saves = [*saves]
        self.slept = 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self._saves:
            self._saves.pop(0)()


def changes(clock: Saves, folders: Sequence[Path] = (Path(),)) -> list[str]:
    return asyncio.run(ProjectFiles(folders, [Path("holdfast.toml"), Path(".env")], clock).changed())


def test_files_that_are_written_made_and_removed_are_told_once_no_more_change(place: Path) -> None:
    (place / "deep").mkdir()
    for name in ("kept.py", "written.py", "removed.py"):
        (place / "deep" / name).write_text("1")
    clock = Saves(
        lambda: None,
        lambda: (place / "deep/written.py").write_text("11"),
        (place / "deep/removed.py").unlink,
        lambda: (place / "made.py").write_text("1"),
    )
    assert changes(clock) == ["deep/removed.py", "deep/written.py", "made.py"]
    assert clock.slept == 5


def test_a_file_put_in_the_place_of_another_has_changed(place: Path) -> None:
    (place / "app.py").write_text("1")
    (place / "saved").write_text("2")
    assert changes(Saves(lambda: (place / "saved").replace(place / "app.py"))) == ["app.py"]


def test_settings_count_and_what_is_no_code_of_the_project_does_not(place: Path) -> None:
    for folder in (".git", "__pycache__", "node_modules", "venv/lib", "held.py"):
        (place / folder).mkdir(parents=True)
    (place / "venv/pyvenv.cfg").touch()
    (place / "around").symlink_to(place)
    ignored = [
        ".git/hook.py",
        "__pycache__/a.py",
        "node_modules/b.py",
        "venv/lib/c.py",
        "holdfast.db",
        ".#app.py",
    ]
    assert changes(
        Saves(
            *((place / name).touch for name in ignored),
            (place / "holdfast.toml").touch,
            (place / ".env").touch,
        )
    ) == [".env", "holdfast.toml"]


def test_further_folders_count_where_they_are_named(place: Path) -> None:
    shared = place.parent / f"{place.name}-shared"
    shared.mkdir()
    assert changes(Saves((shared / "a.py").touch), [Path(), shared]) == [f"{shared}/a.py"]
