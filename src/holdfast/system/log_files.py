"""The logs of a host's nodes as files: each node writes its own, as JSON lines, and readers merge them."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import time
from collections.abc import Iterable, Iterator
from logging import LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from holdfast.system.files import Access, make_file, make_folder

SUFFIX = ".jsonl"
FULL_SUFFIX = f"{SUFFIX}.1"
"""The suffix of a full, rotated file. A node keeps one beside the file that it writes."""

Event = dict[str, Any]


class NodeLogFile(RotatingFileHandler):
    """The log of the process ``name`` in a file in ``folder``, rotated at ``max_bytes``. Files without writes
    for ``keep_s`` are removed. Raises OSError if it can't be written."""

    def __init__(self, folder: Path, name: str, access: Access, *, max_bytes: int, keep_s: float) -> None:
        self._access = access
        make_folder(folder, access)
        oldest = time.time() - keep_s
        for path in _files(folder):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
        path = folder / f"{quote(name, safe='')}{SUFFIX}"
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8")

    def _open(self) -> Any:
        make_file(Path(self.baseFilename), self._access)
        return super()._open()

    def shouldRollover(self, record: LogRecord) -> bool:  # noqa: N802 - the library's name
        """Reopen the file if it was removed."""
        if self.stream is not None and not Path(self.baseFilename).exists():
            self.stream.close()
            self.stream = None
        return bool(super().shouldRollover(record))


class LogReader:
    """The logs of a host's processes in ``folder``, and then their additions. Each event has the name of its
    ``node``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[Path, GrowingLog] = {}

    def all(self) -> Iterator[Event]:
        """Yield every event so far, by time."""
        self._look()
        growing = {log.inode for log in self._logs.values()}
        full = [path for path in _files(self._folder) if path.name.endswith(FULL_SUFFIX)]
        with contextlib.ExitStack() as opened:
            older: list[GrowingLog] = []
            for path in full:
                with contextlib.suppress(FileNotFoundError):  # another was moved over it meanwhile
                    older.append(opened.enter_context(contextlib.closing(GrowingLog(path))))
            logs = [*(log for log in older if log.inode not in growing), *self._logs.values()]
            yield from heapq.merge(*(log.rest() for log in logs), key=_at)

    def more(self) -> list[Event]:
        """Return the events that were added since the last reading, by time."""
        self._look()
        # Checked before the reading: a rotated or removed file doesn't grow, so this reading is its last.
        moved = [path for path, log in self._logs.items() if not log.is_at(path)]
        found = [event for log in self._logs.values() for event in log.rest()]
        for path in moved:
            self._logs.pop(path).close()
        return sorted(found, key=_at)

    def close(self) -> None:
        """Close the files."""
        for log in self._logs.values():
            log.close()

    def _look(self) -> None:
        for path in _files(self._folder):
            if path.name.endswith(SUFFIX) and path not in self._logs:
                with contextlib.suppress(FileNotFoundError):
                    self._logs[path] = GrowingLog(path)


class GrowingLog:
    """One open log file. Reading goes on after its rotation."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._begun = b""
        self._node = unquote(path.name.partition(SUFFIX)[0])
        self.inode = os.fstat(self._file.fileno()).st_ino

    def rest(self) -> Iterator[Event]:
        """Yield the unread events. Other lines are skipped, and an unfinished line is left for later."""
        for part in self._file:
            line, self._begun = self._begun + part, b""
            if not line.endswith(b"\n"):
                self._begun = line
                return
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield {"node": self._node} | event

    def is_at(self, path: Path) -> bool:
        """Return whether this is still the file of that name."""
        try:
            return path.stat().st_ino == self.inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _files(folder: Path) -> Iterable[Path]:
    """Return the log files of nodes, rotated ones too. Raises OSError if the folder can't be read."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((SUFFIX, FULL_SUFFIX)))


def _at(event: Event) -> str:
    return str(event.get("timestamp", ""))
