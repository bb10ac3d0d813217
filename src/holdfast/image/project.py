"""The files of a project that go into its image, and the files that never do."""

from __future__ import annotations

import base64
import fnmatch
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.image.blobs import OWN_FOLDER
from holdfast.image.layer import ImageFile
from holdfast.system.projects import ENVIRONMENT, passed_over

APP = "app"
MODEL_BYTES = 4 << 20
"""Size of a file with a layer of its own: it is a model, or changes as rarely."""

NEVER_FOLDERS = ("holdfast-objects", OWN_FOLDER, "*.egg-info")
NEVER_AT_TOP = ("build", "dist")
"""Excluded at the top only: deeper down they may be packages of the app."""

NEVER_FILES = (
    "credentials", "*credentials*.json", "*.db", "*.db-*", "*.env", "*.gpg", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "id_rsa*", "*.jks", "*.kdbx", "*.key", "*.keystore", "*.keytab", "kubeconfig",
    "*.kubeconfig", "kubeconfig.y*ml", "*.log", "netrc", "_netrc", "*.ovpn", "*.p12", "*.p8", "*.pem",
    "*.pfx", "*.pgp", "*.ppk", "*.pyc", "secrets.json", "secrets.toml", "secrets.y*ml",
    "service-account*.json", "*.sqlite", "*.sqlite-*", "*.sqlite3", "*.sqlite3-*", "*.tfstate", "*.tfstate.*",
    "*.tfvars", "*.tfvars.json", "holdfast.toml", "*.backup", "*.keys", "*.tokens",
)  # fmt: skip
"""Excluded beside all names with a dot at the beginning, such as ``.env`` and ``.git``. The last four are
ours."""

NEVER_PATHS = ("docker/config.json", "*/docker/config.json")


def _forms(text: bytes) -> Iterator[bytes]:
    """Yield the forms of a text in other files: in UTF-16, and in Base64 at any offset."""
    yield text
    yield text.decode().encode("utf-16-le")
    for before in range(3):
        coded = base64.b64encode(bytes(before) + text)
        yield coded[-(-before * 4 // 3) : (before + len(text)) * 4 // 3]


_PRIVATE_KEY = re.compile(
    b"|".join(
        re.escape(form)
        for text in (b"PRIVATE KEY-----", b"PGP PRIVATE KEY BLOCK-----")
        for form in _forms(text)
    )
)
_LAYOUT_MARK = "oci-layout"
"""A file of each OCI image. Its name is among the first in an archive."""
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Project:
    """The project of an app: its folder, and the folder of imports below it."""

    folder: Path
    imports: str

    @property
    def search_path(self) -> str:
        """The folder of the app's modules in the image."""
        return f"/{APP}/{self.imports}".rstrip("/.")


@dataclass(frozen=True)
class Files:
    """The files of the app's own layer, and of each model's layer."""

    app: list[ImageFile]
    models: dict[str, list[ImageFile]]


def find(place: str, folder: Path) -> Project:
    """Return the project of the app ``module:name``, without importing it. Raises ConfigError."""
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"app {place!r} must be 'module:name', such as 'myproject.streams:app'")
    path = module.replace(".", "/")
    for imports in (".", "src"):
        if any((folder / imports / each).is_file() for each in (f"{path}.py", f"{path}/__init__.py")):
            return Project(folder, imports)
    raise ConfigError(
        f"app {place!r}: no {path}.py in {folder} or in its src; run this in the project's folder"
    )


def files(project: Project, models: Sequence[str], excluded: Sequence[str]) -> Files:
    """Return the files of the image. ``models`` are paths in the project with a layer each, ``excluded``
    patterns of paths that stay out. Raises ConfigError."""
    named = {posixpath.normpath(model): model for model in models}
    try:
        found = _sorted(project.folder, named, excluded)
    except OSError as error:
        raise ConfigError(f"{error}: make it readable, or leave it out by --exclude") from None
    for path, model in named.items():
        if path not in found.models:
            raise ConfigError(
                f"--model {model!r}: the image gets no file of this name, or in a folder of this name, from"
                f" {project.folder}"
            )
    return found


def _sorted(folder: Path, models: Iterable[str], excluded: Sequence[str]) -> Files:
    found = Files([], {})
    for path in sorted(_walk(folder, "", excluded)):
        entry = _entry(folder, path)
        of = [model for model in models if path == model or path.startswith(f"{model}/")]
        if of or (folder / path).stat().st_size >= MODEL_BYTES:
            found.models.setdefault(max(of, key=len, default=path), []).append(entry)
        else:
            found.app.append(entry)
    return found


def _entry(folder: Path, path: str) -> ImageFile:
    """Return a file of the project, or a link to a folder of it. Raises ConfigError for a private key."""
    source = folder / path
    if source.is_dir():
        root = folder.resolve()
        return ImageFile(f"{APP}/{path}", os.path.relpath(source.resolve(), (root / path).parent))
    executable = os.access(source, os.X_OK) and _is_script(source)
    if source.stat().st_size >= MODEL_BYTES:
        return ImageFile(f"{APP}/{path}", source, executable)
    content = source.read_bytes()
    if _PRIVATE_KEY.search(content):
        raise ConfigError(
            f"{path} holds a private key, which doesn't belong in an image: move it out of the project, or"
            f" leave it out by --exclude {path}"
        )
    # Code is read once: its byte code must have the same content, as Python doesn't check it.
    return ImageFile(f"{APP}/{path}", content if path.endswith(".py") else source, executable)


def _walk(folder: Path, below: str, excluded: Sequence[str]) -> Iterator[str]:
    with os.scandir(folder / below) as found:
        entries = list(found)
    for entry in entries:
        path = f"{below}/{entry.name}".lstrip("/")
        if _stays_out(folder, path, excluded):
            continue
        if entry.is_symlink() and (entry.is_dir() or entry.is_file()):
            _check_link(folder, path, excluded)
            yield path
        elif entry.is_dir():
            yield from _walk(folder, path, excluded)
        elif entry.is_file():
            yield path


def _stays_out(folder: Path, path: str, excluded: Sequence[str]) -> bool:
    """Return whether a file or folder itself stays out. Its parent folders don't count; of a link only the
    name counts."""
    name, place = posixpath.basename(path), folder / path
    if passed_over(name) or _matches(path, excluded) or _is_never(name.lower(), path, place):
        return True
    if place.is_symlink():
        return False
    if place.is_dir():
        return any((place / mark).exists() for mark in (ENVIRONMENT, _LAYOUT_MARK))
    return name.endswith(".tar") and place.is_file() and _is_image(place)


def _is_never(name: str, path: str, place: Path) -> bool:
    if place.is_dir():
        return _matches(name, NEVER_FOLDERS) or path in NEVER_AT_TOP
    return _matches(name, NEVER_FILES) or _matches(path.lower(), NEVER_PATHS)


def _check_link(folder: Path, path: str, excluded: Sequence[str]) -> None:
    """Raise ConfigError unless a link's target may itself be in the image."""
    target, root = (folder / path).resolve(), folder.resolve()
    if root not in (target, *target.parents):
        raise ConfigError(f"{path} is a link to {target}, outside the project")
    parts = target.relative_to(root).parts
    for end in range(1, len(parts) + 1):
        if _stays_out(root, "/".join(parts[:end]), excluded):
            raise ConfigError(
                f"{path} is a link to {'/'.join(parts)}, which stays out of images: copy the target to the"
                f" link's place if an image may hold it, or leave the link out by --exclude {path}"
            )


def _is_image(source: Path) -> bool:
    """Return whether an archive is an image, such as that of an earlier build."""
    with source.open("rb") as file:
        return _LAYOUT_MARK.encode() in file.read(_HEAD_BYTES)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern.rstrip("/")) for pattern in patterns)


def _is_script(source: Path) -> bool:
    with source.open("rb") as file:
        return file.read(2) == b"#!"
