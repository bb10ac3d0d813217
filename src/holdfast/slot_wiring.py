"""What slots need of wiring: apart, for a fork server imports it, and its slots would hold all the rest."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.services.file.objects import FileObjects
from holdfast.system.clock import SystemClock
from holdfast.system.files import OWNER, Access
from holdfast.urls import by_scheme, extra, path_in

FILE = "file:./holdfast-objects"


def open_objects(url: str, meter: Meter, access: Access = OWNER) -> Objects:
    """The object store at ``url``; what it makes has ``access``. Raises ConfigError for one that nothing here
    serves."""
    return _open_objects(url, meter, lambda path: FileObjects(path, access=access))


def open_slot_objects(url: str, meter: Meter) -> Objects:
    """As :func:`open_objects`, for a slot: one handler runs at a time, and nothing else waits."""
    return _open_objects(url, meter, lambda path: FileObjects(path, read_in_thread=False, access=None))


def _open_objects(url: str, meter: Meter, open_file: Callable[[Path], Objects]) -> Objects:
    openers: dict[str, Callable[[str], Objects]] = {
        "file": lambda url: open_file(path_in("objects_url", url, FILE)),
        "s3": lambda url: _s3_objects(url, meter),
    }
    return by_scheme("objects_url", url, openers, (FILE, "s3://bucket/prefix"))


def _s3_objects(url: str, meter: Meter) -> Objects:
    with extra("s3", "objects_url"):
        importlib.import_module("botocore")  # the adapter itself does so at its first call
    from holdfast.services.aws.objects import S3Objects  # noqa: PLC0415

    return S3Objects(url, SystemClock(), meter)
