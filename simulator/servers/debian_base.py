"""A Debian with Python, as an image to build on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec

from holdfast.image import platform
from simulator.servers import programs

TAR = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


def write(folder: Path) -> str:
    """Write what ``tools/servers/install debian-python`` made as a folder of OCI's layout; returns its name
    for ``--base``."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    system = programs.find_file("debian-python", "debian-python.tar")
    with system.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    shutil.copyfile(system, blobs / digest)
    layer = {"mediaType": TAR, "digest": f"sha256:{digest}", "size": system.stat().st_size}
    config = platform.own().document() | {
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        "history": [{"comment": "Debian"}],  # optional, but not where buildah builds on it
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _put(blobs, config, CONFIG),
        "layers": [layer],
    }
    index = {"schemaVersion": 2, "manifests": [_put(blobs, manifest, MANIFEST)]}
    (folder / "index.json").write_bytes(msgspec.json.encode(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return f"oci:{folder}"


def _put(blobs: Path, document: object, kind: str) -> dict[str, object]:
    data = msgspec.json.encode(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}
