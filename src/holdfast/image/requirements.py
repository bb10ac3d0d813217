"""The packages that a project needs, resolved for the platform of its image by uv."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.registration.entry_points import DISTRIBUTION

LOCKS = ("uv.lock", "pylock.toml", "requirements.txt", "pyproject.toml")
"""Files with a project's requirements; the first existing one counts."""

_NESTED = re.compile(rb"^\s*(-r|-c|--requirement|--constraint|\.)", re.MULTILINE)

_FOREIGN = re.compile(r"^holdfast( @|==)", re.MULTILINE)
"""A pin of another project's package, whose name was Holdfast's before 0.3.0."""


@dataclass(frozen=True)
class WheelTarget:
    """The target of wheels: uv's name of the platform, and the minor version of Python."""

    platform: str
    python_minor: int

    def arguments(self) -> list[str]:
        """Return uv's options. With them uv builds no packages."""
        version = ["--python-version", f"3.{self.python_minor}", "--python", sys.executable]
        return ["--python-platform", self.platform, *version, "--only-binary", ":all:"]


def find(project: Path, given: Path | None) -> Path | None:
    """Return the file of a project's requirements, or None."""
    if given is not None:
        if not given.is_file():
            raise ConfigError(f"--requirements {str(given)!r}: no such file")
        return given
    return next((project / name for name in LOCKS if (project / name).is_file()), None)


def resolve(
    source: Path | None, extras: Sequence[str], holdfast: Path, target: WheelTarget, scratch: Path
) -> str:
    """Return the packages to install beside Holdfast, with versions and digests, as lines for uv or pip.
    ``holdfast`` is the wheel in the image. Raises ConfigError."""
    constraint, wanted = scratch / "constraints.txt", scratch / "wanted.in"
    constraint.write_text(f"{DISTRIBUTION} @ {holdfast.as_uri()}\n")
    wanted.write_text(f"{DISTRIBUTION}\n")
    options = [option for extra in extras for option in ("--extra", extra)]
    given: list[str] = []
    if source is not None and source.name == "uv.lock":
        exported = scratch / "exported.txt"
        uv("export", "--frozen", "--quiet", "--no-dev", "--no-emit-project",
           "--no-emit-package", DISTRIBUTION, "--no-header", "--no-annotate",
           "--format", "requirements-txt", "--project", str(source.parent),
           "--output-file", str(exported), *options, folder=source.parent)  # fmt: skip
        given, options = [str(exported)], []
    elif source is not None:
        given = [str(source)]
        if options and source.name != "pyproject.toml":
            raise ConfigError(f"--extra goes with a uv.lock or pyproject.toml, and {source.name} was found")
    pins = scratch / "pins.txt"
    uv("pip", "compile", *given, str(wanted), *options, "--constraint", str(constraint), "--quiet",
       "--generate-hashes", "--no-annotate", "--no-header", "--no-emit-package", DISTRIBUTION,
       "--output-file", str(pins), *target.arguments(), folder=(source or scratch).parent)  # fmt: skip
    text = pins.read_text()
    if _FOREIGN.search(text):
        raise ConfigError(
            "the project needs the package 'holdfast', which is another project's: write"
            f" {DISTRIBUTION!r} in its place"
        )
    for line in text.splitlines():
        if re.match(r"(?!#)\S+ @ |-e |\./|/", line) and not line.endswith("\\"):  # no digest follows
            raise ConfigError(
                f"{line.strip()!r} isn't a wheel with a digest: build a wheel, and serve it from an index"
                " or from a folder in uv's configuration"
            )
    return text


def fixed(source: Path | None) -> bytes:
    """Return the content of the file of requirements; empty if further files belong to it."""
    if source is None:
        return b"-"
    data = source.read_bytes()
    elsewhere = (source.suffix == ".txt" and _NESTED.search(data)) or (
        source.suffix == ".toml" and _is_dynamic(data)
    )
    return b"" if elsewhere else source.name.encode() + b"\n" + data


def _is_dynamic(data: bytes) -> bool:
    """Return whether a project has its requirements in other files, or in an unreadable one."""
    try:
        dynamic = tomllib.loads(data.decode()).get("project", {}).get("dynamic", [])
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return True
    return "dependencies" in dynamic or "optional-dependencies" in dynamic


def install(pins: str, target: WheelTarget, folder: Path, scratch: Path, project: Path) -> None:
    """Unpack the packages into a folder. Raises ConfigError."""
    file = scratch / "pins.txt"
    file.write_text(pins)
    uv("pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirements", str(file),
       "--target", str(folder), "--link-mode", "hardlink", *target.arguments(), folder=project)  # fmt: skip


def uv(*arguments: str, folder: Path) -> None:
    """Run uv. Raises ConfigError with its output."""
    result = subprocess.run(  # noqa: S603
        [_program(), *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"},
    )  # fmt: skip
    if result.returncode:
        raise ConfigError(f"uv {' '.join(arguments[:2])} failed:\n{result.stderr.strip()}")


def _program() -> str:
    try:
        from uv import find_uv_bin  # noqa: PLC0415

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        pass
    if (found := shutil.which("uv")) is None:
        raise ConfigError("holdfast image needs uv: pip install 'holdfast-streams[image]'")
    return found
