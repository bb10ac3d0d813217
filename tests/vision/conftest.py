"""Rendered scenes and what a handler needs, shared by the vision tests."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from examples.tracking.render import Rendered, render_all
from examples.tracking.scene import Scene
from holdfast.vision.detector import Detection, Detector
from holdfast.vision.ingest import video_frames
from holdfast.vision.jpeg import decode_cells
from holdfast.vision.video import VideoFrame
from tests.console.chromium import chromium

__all__ = ["chromium"]

Detect = Callable[[Rendered], list[list[Detection]]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenes")


@pytest.fixture(scope="session")
def easy(folder: Path) -> list[Rendered]:
    """Few people under steady light."""
    return render_all([Scene(seed=seed, people=3, light=False) for seed in range(4)], folder)


@pytest.fixture(scope="session")
def usual(folder: Path) -> list[Rendered]:
    """What the demo shows: crossings, a pillar, a lamp that fails."""
    return render_all([Scene(seed=seed) for seed in range(4)], folder)


@pytest.fixture(scope="session")
def frames(usual: list[Rendered]) -> list[VideoFrame]:
    """The frames of one usual video."""
    return list(video_frames(usual[0].video))


@pytest.fixture(scope="session")
def detect() -> Detect:
    """All detections of a video, by frame."""
    known: dict[Path, list[list[Detection]]] = {}

    def detections(rendered: Rendered) -> list[list[Detection]]:
        if rendered.video not in known:
            known[rendered.video] = _detections(list(video_frames(rendered.video)))
        return known[rendered.video]

    return detections


def _detections(frames: Sequence[VideoFrame]) -> list[list[Detection]]:
    width, height, _ = decode_cells(frames[0].jpeg, "")
    detector = Detector(width, height)
    return [detector.detect(decode_cells(frame.jpeg, "")[2]) for frame in frames]


@pytest.fixture
def grey() -> Callable[[int, int], Image.Image]:
    """A plain picture of a given width and height."""
    return lambda width, height: Image.fromarray(np.full((height, width, 3), 128, np.uint8))


@pytest.fixture(scope="session")
def peer() -> ModuleType:
    """The tracking library that ours is compared with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, at import
        return importlib.import_module("trackers")
