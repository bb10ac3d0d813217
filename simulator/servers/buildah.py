"""Builds images of Containerfiles with buildah, as ``podman build`` does, but without namespaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.image import own_wheel
from simulator.servers import programs


class Buildah:
    """Images in a store of their own below ``folder``. It needs the rights of root."""

    def __init__(self, folder: Path) -> None:
        policy = folder / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._program = [str(programs.find("buildah")), *store, "--storage-driver", "overlay"]
        self._trusting = ["--signature-policy", str(policy)]

    def build(self, context: Path, containerfile: Path, tag: str, *, wheels: Path, **arguments: str) -> None:
        """Build an image, which finds ``wheels`` at ``/wheels``. What was built before is used again."""
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        self._run(
            "build", "--isolation", "chroot", *self._trusting, "--layers", "--format", "docker", *given,
            "--volume", f"{wheels}:/wheels:ro", "--file", str(containerfile), "--tag", tag, str(context),
        )  # fmt: skip

    def push(self, tag: str, to: str, *, compress: bool = True) -> None:
        """Push an image to a place such as ``docker://127.0.0.1:5000/name:tag`` or ``oci:folder:tag``."""
        plain = [] if compress else ["--disable-compression"]
        self._run("push", *self._trusting, *plain, "--tls-verify=false", tag, to)

    def close(self) -> None:
        """Remove all images."""
        self._run("rmi", "--all", "--force")

    def _run(self, *command: str) -> None:
        done = subprocess.run([*self._program, *command], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"buildah {command[0]}: {done.stderr[-2000:]}")


def write_wheels(folder: Path, *packages: str) -> Path:
    """Write the wheels of this Holdfast, of what it needs and of some packages."""
    folder.mkdir()
    wheel = own_wheel.write(own_wheel.files(), folder)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", folder, wheel, *packages], check=True)  # noqa: S603
    return folder
