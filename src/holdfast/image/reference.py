"""Names of images in registries."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import ConfigError

DOCKER_HUB = "registry-1.docker.io"
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """An image in a registry, by its digest, or else by its tag."""

    registry: str
    repository: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.shown_registry}/{self.repository}{end}"

    @property
    def shown_registry(self) -> str:
        """The registry's usual name, as in files of credentials."""
        return "docker.io" if self.registry == DOCKER_HUB else self.registry


def parse(text: str) -> Reference:
    """Return the image of a name, with Docker's defaults: ``python:3.13-slim`` is on Docker Hub. Raises
    ConfigError."""
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, path = first, rest
    else:
        registry, path = "docker.io", name
    repository, _, tag = path.partition(":")
    if registry in ("docker.io", "index.docker.io"):
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    tag = tag or "latest"
    patterns = [(_NAME, repository), (_TAG, tag), *([(_DIGEST, digest)] if digest else [])]
    if not all(pattern.fullmatch(part) for pattern, part in patterns):
        raise ConfigError(f"image {text!r} must be REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…")
    return Reference(registry, repository, tag, digest)
