"""Runs an image: unpacked by umoci, and its process started in a root, mounts and process ids of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from simulator.servers import programs

START = """
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount --bind "$2" "$1/data"
root=$1 place=$3 user=$4
shift 4
exec /usr/sbin/chroot $user "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$place" "$@"
"""


class Container:
    """The unpacked image, whose processes see nothing of this machine but one folder, /data."""

    def __init__(self, layout: Path, tag: str, folder: Path) -> None:
        rootless = ["--rootless"] if os.geteuid() else []
        program = programs.find("umoci")
        command = [str(program), "unpack", *rootless, "--image", f"{layout}:{tag}", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        self.root = folder / "rootfs"
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())["process"]
        self.data = folder / "data"
        self.data.mkdir()
        self.data.chmod(0o777)
        (self.root / "data").mkdir()

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a process in it, as the image's user; without a command what the image says."""
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        user = self.config["user"]
        account = f"--userspec={user['uid']}:{user['gid']}" if not os.geteuid() else ""
        if os.geteuid():
            alone.insert(1, "--map-root-user")
        variables = dict(each.partition("=")[::2] for each in self.config["env"]) | environment
        arguments = [str(self.root), str(self.data), self.config["cwd"], account]
        return subprocess.Popen(
            [*alone, "/bin/sh", "-ec", START, "sh", *arguments, *(command or self.config["args"])],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *command: str, **environment: str) -> str:
        """Run a process in it to its end; returns what it printed."""
        process = self.start(*command, **environment)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out


def kill(process: subprocess.Popen[str]) -> None:
    """End a container's processes, if they run."""
    process.kill()
    process.communicate()


def end(process: subprocess.Popen[str]) -> int:
    """Tell the first process of a container to end, as its runtime does; returns its exit code."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode
