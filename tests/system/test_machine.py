"""What a process may use is what its container's limits leave, not all that the machine has."""

import errno
import math
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.cli.doctor import examine_machine
from holdfast.config.settings import Config, usable_cores
from holdfast.system.machine import Machine

CORES = len(os.sched_getaffinity(0))
MIB = 1 << 20


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "cgroup"
    path.write_text("0::/\n")
    return path


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "groups"


def test_a_machine_without_groups_is_used_whole(groups: Path, tmp_path: Path) -> None:
    machine = Machine(groups, tmp_path / "none")
    assert (machine.cores, machine.memory_bytes) == (CORES, psutil.virtual_memory().total)


def test_limits_of_the_second_version_count(groups: Path, own: Path) -> None:
    write(groups, cpu__max="50000 100000\n", memory__max=f"{64 * MIB}\n")
    machine = Machine(groups, own)
    assert (machine.cores, machine.memory_bytes) == (0.5, 64 * MIB)


def test_groups_without_limits_leave_all_of_the_machine(groups: Path, own: Path) -> None:
    write(groups, cpu__max="max 100000\n", memory__max="max\n")
    machine = Machine(groups, own)
    assert (machine.cores, machine.memory_bytes) == (CORES, psutil.virtual_memory().total)


def test_limits_of_the_first_version_count(groups: Path, own: Path) -> None:
    own.write_text("4:memory:/pod\n2:cpu,cpuacct:/pod\n0::/\n")
    write(groups / "cpu" / "pod", cpu__cfs_quota_us="25000\n", cpu__cfs_period_us="100000\n")
    write(groups / "memory" / "pod", memory__limit_in_bytes=f"{64 * MIB}\n")
    machine = Machine(groups, own)
    assert (machine.cores, machine.memory_bytes) == (0.25, 64 * MIB)


def test_the_first_version_tells_no_limit_by_large_numbers(groups: Path, own: Path) -> None:
    own.write_text("4:memory:/\n2:cpu:/\n")
    write(groups / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    write(groups / "memory", memory__limit_in_bytes="9223372036854771712\n")
    machine = Machine(groups, own)
    assert (machine.cores, machine.memory_bytes) == (CORES, psutil.virtual_memory().total)


def test_a_limit_of_a_group_above_counts(groups: Path, own: Path) -> None:
    own.write_text("0::/pod/container\n")
    write(groups / "pod", cpu__max="50000 100000\n", memory__max=f"{64 * MIB}\n")
    write(groups / "pod" / "container", cpu__max="80000 100000\n", memory__max="max\n")
    machine = Machine(groups, own)
    assert (machine.cores, machine.memory_bytes) == (0.5, 64 * MIB)


def test_a_container_that_sees_its_group_as_the_root_has_its_limits(groups: Path, own: Path) -> None:
    own.write_text("4:memory:/docker/4711\n")
    write(groups / "memory", memory__limit_in_bytes=f"{64 * MIB}\n")
    assert Machine(groups, own).memory_bytes == 64 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_load_is_a_share_of_the_limits(
    groups: Path, own: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    if version == 2:
        cpu = memory = groups
        write(groups, cpu__max="50000 100000", cpu__stat="usage_usec 1000000\n", memory__max=f"{100 * MIB}")
        write(groups, memory__current=f"{75 * MIB}", memory__stat=f"anon 1\ninactive_file {25 * MIB}\n")
    else:
        own.write_text("4:memory:/\n3:cpuacct:/\n2:cpu:/\n")
        cpu, memory = groups / "cpuacct", groups / "memory"
        write(groups / "cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
        write(cpu, cpuacct__usage="1000000000")
        write(memory, memory__limit_in_bytes=f"{100 * MIB}", memory__usage_in_bytes=f"{75 * MIB}")
        write(memory, memory__stat=f"inactive_file 5\ntotal_inactive_file {25 * MIB}\n")
    machine = Machine(groups, own)
    assert machine.shares()[0] == 0.0, "there is nothing to compare with yet"
    now += 10
    write(cpu, cpu__stat="usage_usec 3000000\n", cpuacct__usage="3000000000")
    processors, held = machine.shares()
    assert math.isclose(processors, 0.4)
    assert math.isclose(held, 0.5)


def test_without_file_descriptors_it_is_made_and_tells_nothing(
    groups: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    write(groups, cpu__max="50000 100000", cpu__stat="usage_usec 1000000\n")
    monkeypatch.setattr("holdfast.system.machine.read_table", fail)
    assert Machine(groups, own).shares() == (0.0, 0.0)


@pytest.mark.parametrize("cores, whole", [(0.25, 1), (1.9, 1), (4.5, 4)])
def test_whole_cores_are_one_at_least(monkeypatch: pytest.MonkeyPatch, cores: float, whole: int) -> None:
    monkeypatch.setattr(Machine, "cores", cores)
    assert Machine().whole_cores == whole


def test_slots_follow_the_limit_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "cores", 4.5)
    assert usable_cores() == 3
    monkeypatch.setattr(Machine, "cores", 0.5)
    assert usable_cores() == 1


def test_one_slot_in_half_a_core_is_nothing_to_warn_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "cores", 0.5)
    found = {
        slots: [*examine_machine(Config(slots=slots, spare_slots=0, slot_memory_mb=64))] for slots in (1, 2)
    }
    assert [finding.verdict for finding in found[1]] == ["ok"]
    assert [finding.fix for finding in found[2]] == ["set slots to 1 or less"]
