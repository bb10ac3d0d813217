"""Bases and packages that are made here, and a Holdfast that needs few of them."""

import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.image import own_wheel
from holdfast.image.blobs import Blobs
from holdfast.image.oci import CONFIG, INDEX, LAYER_GZIP, MANIFEST, REF_NAME
from tests.command_line import holdfast, place

__all__ = ["holdfast", "place"]

MACHINES = {"x86_64": 62, "aarch64": 183}


class BaseFolder:
    """A folder of OCI's layout with an image for each of some platforms."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def put(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def image(
        self, layers: list[bytes], platform: dict[str, str], *, kind: str = LAYER_GZIP, **config: Any
    ) -> dict[str, Any]:
        """The descriptor of an image of these archives."""
        import gzip

        packed = [self.put(gzip.compress(layer, mtime=0), kind) for layer in layers]
        diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        return self.of_layers(packed, diff_ids, platform, **config)

    def of_layers(
        self, packed: list[dict[str, Any]], diff_ids: list[str], platform: dict[str, str], **config: Any
    ) -> dict[str, Any]:
        """The descriptor of an image of layers that are there."""
        document = {**platform, "config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
        configured = self.put(msgspec.json.encode(document), CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": configured, "layers": packed}
        return self.put(msgspec.json.encode(manifest), MANIFEST)

    def index(self, *manifests: dict[str, Any]) -> dict[str, Any]:
        return self.put(msgspec.json.encode({"schemaVersion": 2, "manifests": manifests}), INDEX)

    def top(self, descriptor: dict[str, Any], tag: str = "latest") -> str:
        """Make this the image of the tag; returns its name for ``--base``."""
        named = descriptor | {"annotations": {REF_NAME: tag}}
        (self.folder / "index.json").write_bytes(
            msgspec.json.encode({"schemaVersion": 2, "manifests": [named]})
        )
        return f"oci:{self.folder}"


def archive(files: dict[str, bytes | str]) -> bytes:
    """An archive of files; text is where a link points to."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, content in files.items():
            header = tarfile.TarInfo(path)
            if isinstance(content, str):
                header.type, header.linkname = tarfile.SYMTYPE, content
                tar.addfile(header)
            else:
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
    return made.getvalue()


def debian(minor: int = 11, glibc: int = 36) -> bytes:
    """As much of a Debian as a build looks at, with its merged folders."""
    return archive(
        {
            "lib": "usr/lib",
            "bin": "usr/bin",
            f"usr/bin/python3.{minor}": b"ELF",
            "usr/bin/python3": f"python3.{minor}",
            "usr/lib/x86_64-linux-gnu/libc.so.6": f"GNU libc stable release version 2.{glibc}.".encode(),
        }
    )


AMD64 = {"os": "linux", "architecture": "amd64"}
ARM64 = {"os": "linux", "architecture": "arm64", "variant": "v8"}


@pytest.fixture
def bases(tmp_path_factory: pytest.TempPathFactory) -> BaseFolder:
    return BaseFolder(tmp_path_factory.mktemp("base") / "layout")


@pytest.fixture
def base(bases: BaseFolder) -> str:
    """The name of a base for two platforms."""
    system = debian()
    images = [
        bases.image(
            [system], platform, Env=["PATH=/usr/bin", "LANG=C.UTF-8"], Cmd=["bash"], Entrypoint=["/init"]
        )
        | {"platform": platform}
        for platform in (AMD64, ARM64)
    ]
    return bases.top(bases.index(*images))


@pytest.fixture
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Blobs:
    return Blobs(tmp_path_factory.mktemp("cache"))


def wheel(
    folder: Path, name: str, version: str, tag: str, files: dict[str, bytes], requires: str = ""
) -> None:
    """Write a wheel."""
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    held = files | {
        f"{about}/METADATA": metadata.encode(),
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{about}/entry_points.txt": f"[console_scripts]\n{name}-tool = {name}:main\n".encode(),
    }
    record = "".join(f"{path},,\n" for path in (*held, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as made:
        for path, data in (held | {f"{about}/RECORD": record.encode()}).items():
            made.writestr(path, data)


def shared_object(machine: str) -> bytes:
    """The head of a shared object for a machine."""
    return b"\x7fELF\x02\x01\x01" + bytes(11) + MACHINES[machine].to_bytes(2, "little") + bytes(44)


@pytest.fixture
def wheels(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, from which uv takes all that it installs."""
    folder = tmp_path_factory.mktemp("wheels")
    for machine in MACHINES:
        code = {"native.py": b"", "native/_core.so": shared_object(machine)}
        wheel(folder, "native", "1.0", f"cp311-cp311-manylinux_2_28_{machine}", code)
        wheel(folder, "native", "2.0", f"cp311-cp311-manylinux_2_39_{machine}", code)
    wheel(folder, "plain", "1.0", "py3-none-any", {"plain.py": b"GREETING = 'hello'\n"})
    wheel(folder, "onarm", "1.0", "py3-none-any", {"onarm.py": b""})
    wheel(
        folder, "chooser", "1.0", "py3-none-any", {"chooser.py": b""}, "onarm; platform_machine == 'aarch64'"
    )
    wheel(folder, "large", "1.0", "py3-none-any", {"large.bin": os.urandom(1 << 18) * 36})
    settings = folder / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    return folder


@pytest.fixture
def small_holdfast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Holdfast of one module that needs one package."""
    files = own_wheel.files()
    about, version = own_wheel.ABOUT, own_wheel.RELEASE.rpartition("-")[2]
    metadata = f"Metadata-Version: 2.1\nName: holdfast-streams\nVersion: {version}\nRequires-Dist: plain\n"
    small = {
        "holdfast/__init__.py": b"",
        f"{about}/METADATA": metadata.encode(),
        f"{about}/WHEEL": files[f"{about}/WHEEL"],
        f"{about}/entry_points.txt": b"",
    }
    monkeypatch.setattr(own_wheel, "files", lambda: small)
