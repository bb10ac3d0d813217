"""Videos are rendered once, the same each time, with their truth."""

import dataclasses
from pathlib import Path

import av
import numpy as np
import pytest

from examples.tracking.render import render, render_all
from examples.tracking.scene import Scene, stage

SCENE = Scene(seed=1, seconds=1)


def test_a_rendered_video_shows_each_frame_of_its_scene(tmp_path: Path) -> None:
    rendered = render(SCENE, tmp_path)
    staged = list(stage(SCENE))
    with av.open(str(rendered.video)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(shown) == len(staged)
    for picture, frame in zip(shown, staged, strict=True):
        assert np.abs(picture.astype(int) - frame.pixels).mean() < 8
    truth = rendered.truth()
    assert truth.frames == [frame.truth for frame in staged]
    assert (truth.fps, truth.width, truth.height) == (25, 320, 180)


@pytest.mark.slow
def test_the_same_scene_gives_the_same_bytes(tmp_path: Path) -> None:
    # Long enough for the encoder's look-ahead; rendered beside others, as in the demo.
    scenes = [Scene(seed=seed, seconds=4) for seed in range(2)]
    one, other = (render_all(scenes, tmp_path / name, threads=2) for name in ("one", "other"))
    for first, second in zip(one, other, strict=True):
        assert first.video.read_bytes() == second.video.read_bytes()
        assert first.truth_file.read_bytes() == second.truth_file.read_bytes()


def test_a_scene_that_was_rendered_is_not_rendered_again(tmp_path: Path) -> None:
    first = render(SCENE, tmp_path)
    before = first.video.stat()
    assert render(SCENE, tmp_path) == first
    assert first.video.stat() == before
    assert render(dataclasses.replace(SCENE, noise=1.0), tmp_path).video != first.video


def test_a_video_without_its_truth_is_rendered_again(tmp_path: Path) -> None:
    first = render(SCENE, tmp_path)
    first.truth_file.unlink()
    assert render(SCENE, tmp_path).truth().frames
    assert sorted(tmp_path.iterdir()) == sorted([first.video, first.truth_file])
