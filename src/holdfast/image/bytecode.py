"""Byte code of Python files: equal sources give equal bytes."""

from __future__ import annotations

import importlib.util
import marshal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath

from holdfast.image.layer import ImageFile

FORMAT = 2 if sys.version_info < (3, 12) else marshal.version
"""Before 3.12 the newer formats depend on which objects are shared, and so on what else the process had
read."""

UNCHECKED_HASH = (1).to_bytes(4, "little")
"""With this flag Python doesn't compare the byte code with the source's time or content (PEP 552)."""


def made_here(python_minor: int) -> bool:
    """Return whether an image's Python can read the byte code of this Python."""
    return sys.version_info[1] == python_minor and sys.implementation.name == "cpython"


def key() -> str:
    """Return the facts beside the source that byte code depends on."""
    return f"{importlib.util.MAGIC_NUMBER.hex()} {FORMAT}"


def compile_all(sources: Iterable[ImageFile]) -> Iterator[ImageFile]:
    """Yield the byte code of the valid Python files."""
    todo = [entry for entry in sources if entry.path.endswith(".py") and not isinstance(entry.content, str)]
    works = [(entry.path, entry.content) for entry in todo]
    if len(works) < 200:
        made = map(_compile, works)
        yield from _named(todo, made)
        return
    with ProcessPoolExecutor() as pool:
        yield from _named(todo, pool.map(_compile, works, chunksize=50))


def _named(todo: list[ImageFile], made: Iterable[bytes | None]) -> Iterator[ImageFile]:
    for entry, code in zip(todo, made, strict=True):
        if code is not None:
            path = PurePosixPath(entry.path)
            name = f"{path.stem}.{sys.implementation.cache_tag}.pyc"
            yield ImageFile(str(path.parent / "__pycache__" / name), code)


def _compile(work: tuple[str, bytes | Path | str]) -> bytes | None:
    path, content = work
    assert not isinstance(content, str), "no link"
    data = content.read_bytes() if isinstance(content, Path) else content
    try:
        code = compile(data, f"/{path}", "exec", dont_inherit=True, optimize=0)
        packed = marshal.dumps(code, FORMAT)
    except (SyntaxError, ValueError, RecursionError):
        return None  # such as a template of code: its import raises
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(data) + packed
