"""How well people are tracked in rendered scenes, and beside a tracking library on the same detections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pytest

from examples.tracking.render import Rendered
from examples.tracking.score import Frames, Score, score, total
from holdfast.vision.detector import Detection
from holdfast.vision.tracker import Tracker

Detect = Callable[[Rendered], list[list[Detection]]]
Track = Callable[[Sequence[list[Detection]]], Frames]


def ours(detections: Sequence[list[Detection]]) -> Frames:
    tracker = Tracker()
    return [
        {track.id: track.box for track in tracker.update(frame, found)}
        for frame, found in enumerate(detections)
    ]


def theirs(peer: ModuleType, name: str) -> Track:
    """The library's tracker of this name, with its own settings."""
    import supervision

    def track(detections: Sequence[list[Detection]]) -> Frames:
        tracker = getattr(peer, name)()
        frames = []
        for found in detections:
            tracked = tracker.update(
                supervision.Detections(
                    xyxy=np.array([box for box, _ in found], float).reshape(-1, 4),
                    confidence=np.array([sure for _, sure in found], float),
                    class_id=np.zeros(len(found), int),
                )
            )
            rows = zip(tracked.tracker_id, tracked.xyxy, strict=True)
            frames.append({int(track): tuple(box) for track, box in rows if track >= 0})
        return frames

    return track


def judged(videos: Sequence[Rendered], detect: Detect, track: Track) -> Score:
    return total(score(video.truth().frames, track(detect(video))) for video in videos)


def perfect(video: Rendered) -> list[list[Detection]]:
    """The truth as detections: nothing hidden is seen, but nothing else goes wrong."""
    return [[Detection(box, 1.0) for box in frame.values()] for frame in video.truth().frames]


@pytest.mark.slow
def test_tracks_of_easy_scenes_keep_their_accuracy_and_identities(
    easy: list[Rendered], detect: Detect
) -> None:
    found = judged(easy, detect, ours)
    assert found.mota >= 0.90
    assert found.idf1 >= 0.85


@pytest.mark.nightly
def test_tracks_of_usual_scenes_keep_their_accuracy_and_identities(
    usual: list[Rendered], detect: Detect
) -> None:
    found = judged(usual, detect, ours)
    assert found.mota >= 0.80
    assert found.idf1 >= 0.75


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["SORTTracker", "ByteTrackTracker"])
def test_no_worse_than_a_tracking_library(
    name: str, usual: list[Rendered], detect: Detect, peer: ModuleType
) -> None:
    # The detector's patches, which people share where they cross, are what ours is made for.
    for detections in (detect, perfect):
        mine, other = judged(usual, detections, ours), judged(usual, detections, theirs(peer, name))
        assert mine.mota >= other.mota
        assert mine.idf1 >= other.idf1
