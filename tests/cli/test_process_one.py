"""``holdfast`` as the first process of a container, which has no action of its own for signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 60.0
STARTING = """
import sys, threading

class Standstill:
    def find_spec(self, name, *_):
        if name == "holdfast.cli":
            print("starts", flush=True)
            threading.Event().wait()

sys.meta_path.insert(0, Standstill())
from holdfast.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces of processes")
def test_the_first_process_of_a_container_ends_at_sigterm_while_it_starts() -> None:
    alone = ["unshare", *(["--map-root-user"] if os.geteuid() else []), "--pid", "--fork", "--kill-child"]
    process = subprocess.Popen([*alone, sys.executable, "-c", STARTING], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "starts\n"
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
