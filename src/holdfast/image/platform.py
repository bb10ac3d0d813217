"""The machine of an image, by its names in OCI, uv and ELF."""

from __future__ import annotations

import platform as machine
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError

UV_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
ELF_MACHINES = {"amd64": 62, "arm64": 183}
OF_MACHINES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
DEFAULT_VARIANTS = {"arm64": "v8"}

GLIBCS = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
"""The minor versions of glibc 2 for which uv chooses wheels."""


@dataclass(frozen=True)
class Libc:
    """The C library of a base: ``glibc`` or ``musl``, and for glibc its minor version."""

    name: str
    minor: int = 0

    def __str__(self) -> str:
        return f"{self.name} 2.{self.minor}" if self.name == "glibc" else self.name


@dataclass(frozen=True)
class Platform:
    """An architecture of Linux."""

    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in ("linux", self.architecture, self.variant) if part)

    @property
    def elf_machine(self) -> int:
        """The machine field of the platform's shared objects."""
        return ELF_MACHINES[self.architecture]

    def document(self) -> dict[str, Any]:
        """Return the platform's entry in an index."""
        found = {"architecture": self.architecture, "os": "linux"}
        return found | ({"variant": self.variant} if self.variant else {})

    def fits(self, entry: dict[str, Any]) -> bool:
        """Return whether an index's entry means this platform."""
        if (entry.get("os"), entry.get("architecture")) != ("linux", self.architecture):
            return False
        default = DEFAULT_VARIANTS.get(self.architecture, "")
        return (entry.get("variant") or default) == (self.variant or default)

    def for_uv(self, libc: Libc) -> str:
        """Return the name by which uv chooses wheels that run with this C library. Raises ConfigError."""
        name = UV_ARCHITECTURES[self.architecture]
        if libc.name == "musl":
            return f"{name}-unknown-linux-musl"
        known = [minor for minor in GLIBCS if minor <= libc.minor]
        if not known:
            raise ConfigError(f"the base has {libc}; wheels need 2.{GLIBCS[0]} or newer: take a newer base")
        return f"{name}-manylinux_2_{known[-1]}"


def parse(text: str) -> Platform:
    """Return the platform of a text such as ``linux/arm64``. Raises ConfigError."""
    system, _, rest = text.partition("/")
    architecture, _, variant = rest.partition("/")
    if system != "linux" or architecture not in ELF_MACHINES:
        known = ", ".join(f"linux/{name}" for name in ELF_MACHINES)
        raise ConfigError(f"--platform {text!r} isn't supported; it must be one of {known}")
    return Platform(architecture, variant)


def own() -> Platform:
    name = OF_MACHINES.get(machine.machine())
    if name is None:
        raise ConfigError(f"images can't be built for {machine.machine()!r}: use --platform linux/amd64")
    return Platform(name)
