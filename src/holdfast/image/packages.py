"""Installed packages, as files of an image."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError
from holdfast.image.layer import ImageFile
from holdfast.image.platform import Platform

ROOT = "opt/holdfast"
LARGE_BYTES = 8 << 20

_NOT_KEPT = {"direct_url.json", "uv_cache.json", "uv_build.json", "REQUESTED", "RECORD"}
"""Files of a package's metadata that depend on the machine. RECORD is written again."""

_ELF = b"\x7fELF"
_ELF_MACHINE = slice(18, 20)


class Package(msgspec.Struct, frozen=True):
    """A package of an image, for its bill of materials."""

    name: str
    version: str
    license: str


def site_packages(python_minor: int) -> str:
    return f"{ROOT}/lib/python3.{python_minor}/site-packages"


def read(folder: Path, python_minor: int, platform: Platform) -> dict[Package, list[ImageFile]]:
    """Return the files of each package in a folder. Raises ConfigError for shared objects of another
    machine."""
    found = {}
    for metadata in sorted(folder.glob("*.dist-info")):
        package = of_metadata((metadata / "METADATA").read_text(encoding="utf-8"))
        record = csv.reader(io.StringIO((metadata / "RECORD").read_text(encoding="utf-8")))
        paths = sorted({posixpath.normpath(row[0]) for row in record if row})
        rows, entries = [], []
        for path in paths:
            if posixpath.basename(path) in _NOT_KEPT and path.startswith(metadata.name):
                continue
            entry = _entry(folder, path, python_minor, package, platform)
            if entry is not None:
                entries.append(entry)
                rows.append(f"{_recorded(entry.path, python_minor)},,\n")
        record_path = f"{site_packages(python_minor)}/{metadata.name}/RECORD"
        rows.append(f"{_recorded(record_path, python_minor)},,\n")
        entries.append(ImageFile(record_path, "".join(rows).encode()))
        found[package] = entries
    return found


def of_metadata(text: str) -> Package:
    fields = HeaderParser().parsestr(text)
    classifiers = [
        value.rpartition(" :: ")[2]
        for value in fields.get_all("Classifier", [])
        if value.startswith("License :: ")
    ]
    first_line = (fields["License"] or "").partition("\n")[0]
    found = fields["License-Expression"] or " / ".join(classifiers) or first_line
    return Package(fields["Name"], fields["Version"], str(found))


def normal(name: str) -> str:
    """Return a package's name in the form that indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def size(entries: Iterable[ImageFile]) -> int:
    return sum(
        entry.content.stat().st_size if isinstance(entry.content, Path) else len(entry.content)
        for entry in entries
    )


def _entry(
    folder: Path, path: str, python_minor: int, package: Package, platform: Platform
) -> ImageFile | None:
    """Return a package's file in the image, or None. Scripts that name this machine's Python stay out:
    `python -m` runs the same."""
    source = folder / path
    if path.startswith("..") or path.endswith(".pyc") or not source.is_file():
        return None
    with source.open("rb") as file:
        head = file.read(1024)
    if head.startswith(_ELF) and len(head) >= _ELF_MACHINE.stop:
        machine = int.from_bytes(head[_ELF_MACHINE], "little" if head[5] == 1 else "big")
        if machine != platform.elf_machine:
            raise ConfigError(
                f"{package.name} {package.version}: {path} isn't for {platform}, though its wheel says so"
            )
    if path.startswith("bin/"):
        # A path of Python that is too long for the first line is in the second, and a shell runs it.
        if head.startswith(b"#!") and any(b"python" in line for line in head.split(b"\n", 2)[:2]):
            return None
        return ImageFile(f"{ROOT}/{path}", source, executable=True)
    if (
        path.startswith(("share/", "etc/", "include/"))
        and not (folder / path.split("/", maxsplit=1)[0] / "__init__.py").exists()
    ):
        return ImageFile(f"{ROOT}/{path}", source)
    executable = bool(source.stat().st_mode & 0o100) and head.startswith((_ELF, b"#!"))
    return ImageFile(f"{site_packages(python_minor)}/{path}", source, executable=executable)


def _recorded(path: str, python_minor: int) -> str:
    return posixpath.relpath(path, site_packages(python_minor))
