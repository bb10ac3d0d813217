"""The facts about a base that a build needs: its Python and its C library."""

from __future__ import annotations

import posixpath
import re
import tarfile
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.image import base as bases
from holdfast.image.base import Base
from holdfast.image.blobs import Blobs
from holdfast.image.platform import Libc

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OLDEST_MINOR = 11

_PYTHON = re.compile(r"(?:.*/)?python3(?:\.\d+)?")
_GLIBC = re.compile(r"(?:.*/)?libc(?:\.so\.6|-2\.\d+\.so)")
_MUSL = re.compile(r"(?:.*/)?ld-musl-[^/]+\.so\.1")
_RELEASE = re.compile(rb"stable release version 2\.(\d+)")


class Facts(msgspec.Struct, frozen=True):
    """The Python of a base, its minor version, and the C library."""

    python: str
    python_minor: int
    libc: Libc


async def facts(base: Base, blobs: Blobs) -> Facts:
    """Return the facts about a base. Raises ConfigError if it can't be built on."""
    note = blobs.note("base-facts", base.digest.encode())
    if (noted := blobs.noted(note)) is not None:
        return msgspec.json.decode(noted, type=Facts)
    for layer in base.layers:
        await base.bring(layer.descriptor)
    found = _look(base, blobs)
    blobs.keep_note(note, found)
    return found


def _look(base: Base, blobs: Blobs) -> Facts:
    files: dict[str, int] = {}
    links: dict[str, str] = {}
    for layer in base.layers:
        path, kind = blobs.path(layer.descriptor.digest), layer.descriptor.media_type
        try:
            _read_layer(bases.entries(path, kind), files, links)
        except bases.UNREADABLE as error:
            raise ConfigError(
                f"a layer of {base.name}, {layer.descriptor.digest}, can't be read: {error}; name another"
            ) from None
    libc = _libc(base, files)
    for folder in _search_path(base.config):
        found = _follow(f"{folder.strip('/')}/python3", links)
        if found in files and (minor := re.search(r"python3\.(\d+)$", found)):
            if int(minor[1]) < OLDEST_MINOR:
                raise ConfigError(
                    f"{base.name} has Python 3.{minor[1]}; Holdfast needs 3.{OLDEST_MINOR} or newer"
                )
            return Facts(f"/{found}", int(minor[1]), libc)
    raise ConfigError(
        f"{base.name} has no python3 on its PATH; give a base that has one, such as an image of Python or a"
        " Debian with python3"
    )


def _read_layer(entries: Any, files: dict[str, int], links: dict[str, str]) -> None:
    """Add a layer to the files that matter, by path, and to all links."""
    for archive, member in entries:
        path = posixpath.normpath(member.name).lstrip("/")
        folder, name = posixpath.split(path)
        if name == ".wh..wh..opq":
            _drop(f"{folder}/", files, links)
        elif name.startswith(".wh."):
            gone = posixpath.join(folder, name.removeprefix(".wh."))
            _drop(f"{gone}/", files, links)
            files.pop(gone, None)
            links.pop(gone, None)
        elif member.issym():
            files.pop(path, None)
            links[path] = member.linkname
        elif member.isreg() or member.islnk():
            links.pop(path, None)
            _keep(archive, member, path, files)


def _keep(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, files: dict[str, int]) -> None:
    """Keep a file that matters, with the minor version of a C library, else 0."""
    if _PYTHON.fullmatch(path) or _MUSL.fullmatch(path):
        files[path] = 0
    elif _GLIBC.fullmatch(path) and member.isreg():
        file = archive.extractfile(member)
        release = _RELEASE.search(file.read()) if file else None
        if release:
            files[path] = int(release[1])


def _drop(folder: str, files: dict[str, int], links: dict[str, str]) -> None:
    for known in (files, links):
        for path in [path for path in known if path.startswith(folder)]:
            del known[path]


def _libc(base: Base, files: dict[str, int]) -> Libc:
    if minors := [minor for path, minor in files.items() if _GLIBC.fullmatch(path)]:
        return Libc("glibc", min(minors))
    if any(_MUSL.fullmatch(path) for path in files):
        return Libc("musl")
    raise ConfigError(f"{base.name} has neither glibc nor musl, so the right wheels are unknown")


def _search_path(config: dict[str, Any]) -> list[str]:
    variables = dict(each.partition("=")[::2] for each in (config.get("config") or {}).get("Env") or [])
    return (variables.get("PATH") or PATH).split(":")


def _follow(path: str, links: dict[str, str]) -> str:
    """Return the target of a path after links, also links of its folders."""
    for _ in range(bases.LINKS_MAX):
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            head = "/".join(parts[:end])
            if head in links:
                joined = posixpath.join("/", posixpath.dirname(head), links[head], *parts[end:])
                path = posixpath.normpath(joined).lstrip("/")
                break
        else:
            break
    return path
