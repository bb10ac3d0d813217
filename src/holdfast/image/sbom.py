"""Bills of materials, in CycloneDX format."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast.image.base import Base
from holdfast.image.blobs import Blobs
from holdfast.image.oci import EMPTY, MANIFEST, Descriptor, described, digest_of, document
from holdfast.image.packages import Package, normal

TYPE = "application/vnd.cyclonedx+json"
SPEC = "1.6"
_NOTHING = b"{}"


@dataclass(frozen=True)
class Artifact:
    """A manifest that refers to an image, and its blobs."""

    manifest: Descriptor
    blobs: Sequence[Descriptor]


def make(app: str, version: str, base: Base, packages: Iterable[Package]) -> bytes:
    """Return the bill of an image: its Python packages, and the base. Equal images have equal bills."""
    components = [
        {
            "type": "library",
            "bom-ref": _purl(package),
            "name": package.name,
            "version": package.version,
            "purl": _purl(package),
            **({"licenses": [{"license": {"name": package.license}}]} if package.license else {}),
        }
        for package in sorted(packages, key=lambda package: normal(package.name))
    ]
    components.append(
        {
            "type": "container",
            "bom-ref": base.digest,
            "name": base.reference or "base",
            "version": base.digest,
            "hashes": [{"alg": "SHA-256", "content": base.digest.partition(":")[2]}],
        }
    )
    tool = {"type": "application", "name": "holdfast", "version": holdfast.__version__}
    bill: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": "app", "name": app, "version": version},
            "tools": {"components": [tool]},
        },
        "components": components,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, digest_of(document(bill)))
    return document(bill | {"serialNumber": f"urn:uuid:{serial}"})


def attach(bill: bytes, subject: Descriptor, blobs: Blobs) -> Artifact:
    """Return the artifact that refers to an image and holds its bill. Its blobs are kept."""
    config = Descriptor(media_type=EMPTY, digest=blobs.add(_NOTHING), size=len(_NOTHING))
    held = Descriptor(media_type=TYPE, digest=blobs.add(bill), size=len(bill))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": TYPE,
        "config": config,
        "layers": [held],
        "subject": Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size),
    }
    descriptor, data = described(manifest, MANIFEST, artifact_type=TYPE)
    blobs.add(data)
    return Artifact(descriptor, (config, held))


def _purl(package: Package) -> str:
    return f"pkg:pypi/{normal(package.name)}@{package.version}"
