"""The files of a project that go into its image, and those that never do."""

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
"""A file of this size is a layer of its own: it is a model, or changes as rarely as one."""

NEVER_FOLDERS = ("holdfast-objects", OWN_FOLDER, "*.egg-info")
NEVER_AT_TOP = ("build", "dist")
"""Deeper down they may be packages of the app."""

NEVER_FILES = (
    "credentials", "*credentials*.json", "*.db", "*.db-*", "*.env", "*.gpg", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "id_rsa*", "*.jks", "*.kdbx", "*.key", "*.keystore", "*.keytab", "kubeconfig",
    "*.kubeconfig", "kubeconfig.y*ml", "*.log", "netrc", "_netrc", "*.ovpn", "*.p12", "*.p8", "*.pem",
    "*.pfx", "*.pgp", "*.ppk", "*.pyc", "secrets.json", "secrets.toml", "secrets.y*ml",
    "service-account*.json", "*.sqlite", "*.sqlite-*", "*.sqlite3", "*.sqlite3-*", "*.tfstate", "*.tfstate.*",
    "*.tfvars", "*.tfvars.json", "holdfast.toml", "*.backup", "*.keys", "*.tokens",
)  # fmt: skip
"""Besides all whose name begins with a dot, such as ``.env`` and ``.git``. The last four are ours."""

NEVER_PATHS = ("docker/config.json", "*/docker/config.json")


def _forms(text: bytes) -> Iterator[bytes]:
    """Yield a text of a file as other files hold it: in UTF-16, and in Base64 wherever that begins."""
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
"""A file that each image in OCI's form has. Its name is among the first in an archive."""
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Project:
    """The project of an app: its folder, and where below it imports begin."""

    folder: Path
    imports: str

    @property
    def search_path(self) -> str:
        """The folder in the image where Python looks for the app's modules."""
        return f"/{APP}/{self.imports}".rstrip("/.")


@dataclass(frozen=True)
class Files:
    """The files of the app's own layer, and for each model those of its layer."""

    app: list[ImageFile]
    models: dict[str, list[ImageFile]]


def find(place: str, folder: Path) -> Project:
    """Return the project that has the app at ``module:name``. Nothing of it is imported. Raises
    ConfigError."""
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"app {place!r} must be 'module:name', such as 'myproject.streams:app'")
    path = module.replace(".", "/")
    for imports in (".", "src"):
        if any((folder / imports / each).is_file() for each in (f"{path}.py", f"{path}/__init__.py")):
            return Project(folder, imports)
    raise ConfigError(
        f"app {place!r}: there is no {path}.py in {folder}, nor in its src; run this in the project's folder"
    )


def files(project: Project, models: Sequence[str], excluded: Sequence[str]) -> Files:
    """Return what goes into the image. ``models`` are paths in the project whose files make a layer each,
    ``excluded`` patterns of paths that stay out. Raises ConfigError."""
    told = {posixpath.normpath(model): model for model in models}
    try:
        found = _sorted(project.folder, told, excluded)
    except OSError as error:
        raise ConfigError(f"{error}: let it be read, or leave it out by --exclude") from None
    for path, model in told.items():
        if path not in found.models:
            raise ConfigError(
                f"--model {model!r}: no file of this name, or in a folder of it, goes into the image from"
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
    """A file of the project, or a link to a folder of it. Raises ConfigError for a private key."""
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
    # Code is read but once, so that its byte code, which Python takes unchecked, is of the same content.
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
    """Return whether a file or folder itself stays out, whatever becomes of the folders that it is in. Of a
    link only the name counts."""
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
    """Raise ConfigError unless what a link leads to may itself be in the image."""
    target, root = (folder / path).resolve(), folder.resolve()
    if root not in (target, *target.parents):
        raise ConfigError(f"{path} is a link to {target}, outside the project")
    parts = target.relative_to(root).parts
    for end in range(1, len(parts) + 1):
        if _stays_out(root, "/".join(parts[:end]), excluded):
            raise ConfigError(
                f"{path} is a link to {'/'.join(parts)}, which stays out of images: put what it leads"
                f" to in its place if that may be there, or leave the link out by --exclude {path}"
            )


def _is_image(source: Path) -> bool:
    """Return whether an archive is an image, such as one that an earlier build has written."""
    with source.open("rb") as file:
        return _LAYOUT_MARK.encode() in file.read(_HEAD_BYTES)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern.rstrip("/")) for pattern in patterns)


def _is_script(source: Path) -> bool:
    with source.open("rb") as file:
        return file.read(2) == b"#!"
