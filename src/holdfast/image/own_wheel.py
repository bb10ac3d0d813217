"""The running Holdfast as a wheel: images get the same one."""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution
from pathlib import Path

import holdfast
from holdfast.errors import ConfigError
from holdfast.image import packages
from holdfast.image.layer import ImageFile
from holdfast.registration.entry_points import DISTRIBUTION

RELEASE = f"{DISTRIBUTION.replace('-', '_')}-{holdfast.__version__}"
ABOUT = f"{RELEASE}.dist-info"

WHEEL = "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def files() -> dict[str, bytes]:
    """Return the files of the installed Holdfast, by their path in its wheel. Raises ConfigError."""
    installed = distribution(DISTRIBUTION)
    metadata, entry_points = installed.read_text("METADATA"), installed.read_text("entry_points.txt")
    if metadata is None or entry_points is None:
        raise ConfigError("this Holdfast was not installed as a package, so an image can't hold it")
    root = Path(holdfast.__file__).parent
    found = {
        f"holdfast/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    return found | {
        f"{ABOUT}/METADATA": metadata.encode(),
        f"{ABOUT}/WHEEL": WHEEL.encode(),
        f"{ABOUT}/entry_points.txt": entry_points.encode(),
    }


def write(contents: dict[str, bytes], folder: Path) -> Path:
    """Write the wheel into a folder, for uv to read its dependencies."""
    path = folder / f"{RELEASE}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in (contents | {f"{ABOUT}/RECORD": _record(contents)}).items():
            wheel.writestr(zipfile.ZipInfo(name), data)
    return path


def entries(contents: dict[str, bytes], python_minor: int) -> list[ImageFile]:
    """Return the same files, with their paths in an image."""
    place = packages.site_packages(python_minor)
    recorded = contents | {f"{ABOUT}/RECORD": _record(contents)}
    return [ImageFile(f"{place}/{name}", data) for name, data in recorded.items()]


def package(contents: dict[str, bytes]) -> packages.Package:
    """Return Holdfast's entry of the bill of materials."""
    return packages.of_metadata(contents[f"{ABOUT}/METADATA"].decode())


def _record(contents: dict[str, bytes]) -> bytes:
    names = (*contents, f"{ABOUT}/RECORD")
    return "".join(f"{name},,\n" for name in names).encode()
