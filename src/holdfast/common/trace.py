"""Finds where user code raised an error, in its traceback."""

from __future__ import annotations

import re

FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in ')

LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python\d)|^<frozen ")
"""Found in paths that aren't user code: libraries, and the standard library."""

OURS = __file__.removesuffix("trace.py").removesuffix("common/")
"""The beginning of the paths of Holdfast's own code, wherever it is installed."""


def raised_at(traceback: str) -> str:
    """Return ``file:line`` of the last frame of user code in a traceback, or of its last frame; empty if it
    has none."""
    frames = [(frame["file"], frame["line"]) for frame in FRAME.finditer(traceback)]
    own = [frame for frame in frames if not (LIBRARY.search(frame[0]) or frame[0].startswith(OURS))]
    return ":".join((own or frames)[-1]) if frames else ""
