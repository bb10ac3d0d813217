"""Scenes follow from their parameters, and their truth from what can be seen."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from examples.tracking.scene import Scene, Staged, stage


def play(scene: Scene) -> list[Staged]:
    return list(stage(scene))


def test_a_scene_is_a_function_of_its_parameters() -> None:
    scene = Scene(seed=7, seconds=1)
    one, same, other = play(scene), play(scene), play(dataclasses.replace(scene, seed=8))
    assert len(one) == scene.frames == 25
    assert all(
        np.array_equal(a.pixels, b.pixels) and a.truth == b.truth for a, b in zip(one, same, strict=True)
    )
    assert not np.array_equal(one[0].pixels, other[0].pixels)


def test_frames_have_the_size_asked_for() -> None:
    (frame,) = play(Scene(seed=1, seconds=0.1, fps=10, width=128, height=96))
    assert frame.pixels.shape == (96, 128, 3)
    assert frame.pixels.dtype == np.uint8


@pytest.mark.slow
def test_truth_boxes_are_inside_the_frame_and_around_what_differs_from_the_empty_scene() -> None:
    # The backdrop and pillars are staged before the people, so without people they are the same.
    scene = Scene(seed=3, people=2, noise=0, light=False)
    boxes = 0
    for peopled, empty in zip(play(scene), play(dataclasses.replace(scene, people=0)), strict=True):
        differs = (peopled.pixels != empty.pixels).any(axis=2)
        for left, top, right, bottom in peopled.truth.values():
            boxes += 1
            assert 0 <= left < right <= scene.width
            assert 0 <= top < bottom <= scene.height
            inside = differs[int(top) : int(bottom), int(left) : int(right)]
            assert inside.mean() > 0.3
            assert inside[[0, -1]].any()
            assert inside[:, [0, -1]].any()
    assert boxes > 150


def test_people_vanish_behind_pillars_and_come_out_again() -> None:
    truths = [frame.truth for frame in play(Scene(seed=0, people=1))]
    seen = "".join("#" if 1 in truth else "." for truth in truths).strip(".")
    assert "." in seen


def test_people_in_a_scene_cross_each_others_way() -> None:
    truths = [frame.truth for frame in play(Scene(seed=0))]
    leftmost = [min(truth, key=lambda name: truth[name][0]) for truth in truths if {1, 2} <= truth.keys()]
    assert {1, 2} <= set(leftmost)


@pytest.mark.slow
def test_the_light_of_a_scene_drifts_and_switches() -> None:
    steady = [frame.pixels.mean() for frame in play(Scene(seed=5, people=0, light=False))]
    moving = [frame.pixels.mean() for frame in play(Scene(seed=5, people=0))]
    assert np.ptp(steady) < 1
    assert np.ptp(moving) > 15
    assert np.abs(np.diff(moving)).max() > 2


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0.0}, {"people": -1}, {"noise": -1.0}, {"width": 321}, {"height": 32}]
)
def test_a_scene_with_an_impossible_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="scene"):
        dataclasses.replace(Scene(seed=0), **wrong)
