"""A process with all that it started."""

import os
import signal
import subprocess
import sys

import pytest

from holdfast.slots import descendants

CLAN = r"""
import os, signal
shared = b"x" * (60 << 20)
if os.fork() == 0:
    os.fork()
os.write(1, b"up\n")
signal.pause()
"""


@pytest.mark.parametrize("kernel_lists", [True, False])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports shared memory")
def test_memory_shared_by_processes_counts_once(kernel_lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel_lists:
        monkeypatch.setattr(descendants, "LISTS_CHILDREN", kernel_lists)
    clan = subprocess.Popen([sys.executable, "-c", CLAN], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert clan.stdout
        assert [clan.stdout.readline() for _ in range(3)] == 3 * [b"up\n"]
        members = descendants.family(clan.pid)
        assert (len(members), members[0].pid) == (3, clan.pid)
        assert 60 < descendants.memory_mb(clan.pid, 50) < 120
        assert descendants.memory_mb(clan.pid, 500) > 180, "measured only as closely as needed"
    finally:
        os.killpg(clan.pid, signal.SIGKILL)
        clan.communicate()
    assert (descendants.family(clan.pid), descendants.memory_mb(clan.pid, 0)) == ([], 0)
