"""The detector that runs a network from an ONNX file."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from PIL import Image

from holdfast import App
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.ports.slots import MessageWork
from holdfast.slots.stream_slots import StreamSlotSettings, stream_slots
from holdfast.system.clock import SystemClock
from holdfast.testing import StreamTest
from holdfast.vision.handler import Frame, ModelTracking
from holdfast.vision.layouts import LAYOUTS
from holdfast.vision.onnx import OnnxDetector
from tests.vision.networks import CELL, HEIGHT, WIDTH, build, cells

LONG_S = 60.0
find = partial(OnnxDetector, score_min=0.9, classes=(0,))


def box_of(column: int, row: int) -> tuple[float, ...]:
    return column * CELL, row * CELL, (column + 1) * CELL, (row + 1) * CELL


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("network") / "bright.onnx")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_every_layout_gives_the_same_boxes(tmp_path: Path, layout: Any, kind: int) -> None:
    detector = find(build(tmp_path / "n.onnx", layout, kind=kind), layout=layout)
    found = detector.detect(cells((3, 2), (9, 6)))
    assert sorted(detection.box for detection in found) == [box_of(3, 2), box_of(9, 6)]
    assert all(0.99 <= detection.score <= 1 for detection in found)
    assert detector.detect(cells()) == []


@pytest.mark.parametrize("times", [0.5, 1.5, 2, 3])
def test_boxes_are_in_the_pixels_of_the_image(network: Path, times: float) -> None:
    size = round(WIDTH * times), round(HEIGHT * times)
    image = np.asarray(Image.fromarray(cells((3, 2))).resize(size, Image.Resampling.NEAREST))
    (found,) = find(network, score_min=0.6).detect(image)
    assert found.box == pytest.approx([side * times for side in box_of(3, 2)])


def test_an_image_of_another_form_is_fitted_in_and_not_stretched(network: Path) -> None:
    tall = cells((1, 5), width=WIDTH, height=2 * HEIGHT)  # 96x128 becomes 48x64, with 24 grey on each side
    tall[5 * CELL - CELL : 7 * CELL, : 3 * CELL] = 255
    detector = OnnxDetector(network, score_min=0.9, classes=(0,))
    boxes = [detection.box for detection in detector.detect(tall)]
    assert boxes
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 3 * CELL + CELL
        assert 4 * CELL <= top < bottom <= 7 * CELL


def test_boxes_end_at_the_border_of_the_frame(tmp_path: Path) -> None:
    detector = find(build(tmp_path / "n.onnx", box=5 * CELL), iou_max=0.99)
    (found,) = detector.detect(cells((0, 0)))
    assert found.box == (0, 0, 3 * CELL, 3 * CELL)


def test_what_overlaps_is_one_and_the_clearest_counts(tmp_path: Path) -> None:
    path = build(tmp_path / "n.onnx", box=4 * CELL)
    image = cells((4, 4), (5, 4))
    image[image == 255] = 250
    image[4 * CELL : 5 * CELL, 5 * CELL : 6 * CELL] = 255
    (found,) = find(path).detect(image)
    assert found.box == (3.5 * CELL, 2.5 * CELL, 7.5 * CELL, 6.5 * CELL)
    assert len(find(path, iou_max=0.9).detect(image)) == 2


def test_classes_and_numbers_of_detections_are_limited(network: Path) -> None:
    image = cells((3, 2), (9, 6))
    dark = OnnxDetector(network, score_min=0.9, classes=(1,), detections_max=7).detect(image)
    assert len(dark) == 7
    assert box_of(3, 2) not in [detection.box for detection in dark]
    assert len(OnnxDetector(network, score_min=0.9, detections_max=1000).detect(image)) == 12 * 8


def test_the_same_image_gives_the_same_bits(network: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (123, 211, 3), np.uint8)
    first, second = (OnnxDetector(network, score_min=0.5).detect(image) for _ in range(2))
    assert first == second
    assert first


def test_a_network_for_any_size_needs_one(tmp_path: Path) -> None:
    path = build(tmp_path / "any.onnx", shape=["n", 3, "h", "w"])
    with pytest.raises(ConfigError, match=r"choose one with size=\(width, height\)"):
        find(path)
    (found,) = find(path, size=(WIDTH, HEIGHT)).detect(cells((3, 2)))
    assert found.box == box_of(3, 2)
    with pytest.raises(ConfigError, match="fails with an image of 40x40"):
        find(path, size=(40, 40))


def test_a_file_that_is_missing_or_another(tmp_path: Path, network: Path) -> None:
    digest = hashlib.sha256(network.read_bytes()).hexdigest()
    find(network, digest)
    find(network, digest.upper())
    with pytest.raises(ConfigError, match=f"has the digest {digest}, not 0000"):
        find(network, "0000")
    with pytest.raises(ConfigError, match=r"no model file .*none.onnx .*put it on every node"):
        find(tmp_path / "none.onnx")
    with pytest.raises(ConfigError, match=r"can't be read: Is a directory"):
        find(tmp_path)
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"no network")
    with pytest.raises(ConfigError, match=r"junk.onnx can't be loaded .*export it again"):
        find(junk)


@pytest.mark.parametrize(
    "made, settings, text",
    [
        ({}, {"layout": "rows"}, "layout is 'rows'; it must be one of columns, objectness, final"),
        (
            {},
            {"layout": "final"},
            r"shape \(1, 6, 96\), but .*'final' is \(1, n, 6\); layout='columns' would fit",
        ),
        ({"layout": "final"}, {}, r"shape \(1, 96, 6\), but .*layout='objectness' would fit"),
        (
            {"shape": [2, 3, HEIGHT, WIDTH]},
            {},
            r"of shape \(2, 3, 64, 96\), not floats of shape \(1, 3, height, width\)",
        ),
        ({"inputs": 2}, {}, r"has 2 inputs \(image, more\)"),
        ({}, {"size": (640, 640)}, "takes images of 96x64, not of 640x640; leave size out"),
        ({}, {"providers": ("GpuProvider",)}, "no provider GpuProvider here"),
    ],
)
def test_a_network_that_does_not_fit_says_what_to_do(
    tmp_path: Path, made: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    path = build(tmp_path / "odd.onnx", **made)
    with pytest.raises(ConfigError, match=text):
        find(path, **settings)


def test_without_the_library_the_extra_is_named(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast-streams\[onnx\]'"):
        find(network)


# --- in a handler


def png(image: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def scene(number: int) -> NDArray[np.uint8]:
    """A bright block that goes right by two pixels a frame."""
    image = cells()
    image[2 * CELL : 4 * CELL, 8 + 2 * number : 24 + 2 * number] = 255
    return image


FRAMES = {f"memory:///{number}": png(scene(number)) for number in range(20)}
MESSAGES = [Frame("cam", 0, number, 40 * number, f"memory:///{number}") for number in range(20)]


def app_with(network: Path) -> App:
    app = App("bright")
    app.model("detector", partial(find, network, iou_max=0.1), memory_mb=50)
    app.stream("frames", key="video", run="run", seq="frame", first_seq=0, message=Frame, models="detector")(
        ModelTracking
    )
    return app


@pytest.mark.slow
def test_a_handler_follows_what_the_network_finds(tmp_path: Path) -> None:
    app = app_with(build(tmp_path / "n.onnx", box=3 * CELL))
    whole = StreamTest(app, objects=FRAMES)
    results = whole.send(*MESSAGES)
    assert {track["id"] for result in results for track in result["tracks"]} == {1}
    lefts = [result["tracks"][0]["box"][0] for result in results[3:]]
    assert lefts == sorted(lefts)
    broken = StreamTest(app, objects=FRAMES, restart_every=1)
    assert broken.send(*MESSAGES) == results
    assert broken.state == whole.state


@pytest.mark.slow
def test_a_frame_that_is_no_image_or_of_another_size(network: Path) -> None:
    test = StreamTest(
        app_with(network), objects=FRAMES | {"memory:///x": b"no", "memory:///y": png(cells()[:32])}
    )
    test.send(MESSAGES[0])
    for url, text in (("memory:///x", "is not a whole JPEG"), ("memory:///y", "has 96x32 pixels")):
        with pytest.raises(InvalidMessage, match=text):
            test.send(Frame("cam", 0, 1, 40, url))


@pytest.mark.slow
async def test_a_network_runs_in_a_slot(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("TEST_NETWORK", str(network))
    slots = stream_slots(StreamSlotSettings(app="onnx_app:app"), SystemClock())
    try:
        slot = await slots.spawn()
        await slot.open("frames", "cam", None, 0)
        assert list(slot.models) == ["detector"]
        bodies = [msgspec.json.encode(_inline(message)) for message in MESSAGES]
        ran = await slot.run(
            "frames", "cam", [MessageWork(0, number, body) for number, body in enumerate(bodies)], 99, LONG_S
        )
    finally:
        await slots.close()
    assert ran.error == ""
    assert msgspec.json.decode(ran.results[-1] or b"")["tracks"]


def _inline(message: Frame) -> Frame:
    data = base64.b64encode(FRAMES[message.url]).decode()
    return msgspec.structs.replace(message, url=f"data:image/png;base64,{data}")
