"""Where user code raised, as its traceback tells."""

from __future__ import annotations

import re

FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in ')

LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python\d)|^<frozen ")
"""In the path of what is no user's code: libraries, and the standard one."""

OURS = __file__.removesuffix("trace.py").removesuffix("common/")
"""What the paths of Holdfast's own code begin with, wherever it is installed."""


def raised_at(traceback: str) -> str:
    """``file:line`` of the last frame of user code in a traceback, or of its last one; empty without any."""
    frames = [(frame["file"], frame["line"]) for frame in FRAME.finditer(traceback)]
    own = [frame for frame in frames if not (LIBRARY.search(frame[0]) or frame[0].startswith(OURS))]
    return ":".join((own or frames)[-1]) if frames else ""
