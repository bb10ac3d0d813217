"""Small networks that find bright cells, in each layout, built here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CELL = 8
WIDTH, HEIGHT = 96, 64
COLUMNS, ROWS = WIDTH // CELL, HEIGHT // CELL
COUNT = COLUMNS * ROWS
SHAPE: list[int | str] = [1, 3, HEIGHT, WIDTH]


def build(
    path: Path,
    layout: str = "columns",
    *,
    shape: list[int | str] | None = None,
    kind: int = TensorProto.FLOAT,
    inputs: int = 1,
    box: int = CELL,
) -> Path:
    """Write a network: each cell of 8x8 pixels is a candidate of class 0, its score the mean brightness, its
    box of ``box`` pixels. In class 1, where the layout has several, it is the darkness."""
    real = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    constants = {
        "grey": np.full((1, 3, 1, 1), 1 / 3, real),
        "row": np.array([1, 1, COUNT], np.int64),
        "one": np.ones((1, 1, COUNT), real),
        "boxes": _boxes(box, corners=layout == "final").astype(real),
        "zero": np.zeros((1, 1, COUNT), real),
    }
    nodes = [
        helper.make_node("Conv", ["image", "grey"], ["mean"]),
        helper.make_node("AveragePool", ["mean"], ["cells"], kernel_shape=[CELL] * 2, strides=[CELL] * 2),
        helper.make_node("Reshape", ["cells", "row"], ["bright"]),
        helper.make_node("Sub", ["one", "bright"], ["dark"]),
    ]
    parts = {
        "columns": ["boxes", "bright", "dark"],
        "objectness": ["boxes", "one", "bright", "dark"],
        "final": ["boxes", "bright", "zero"],
    }[layout]
    nodes.append(helper.make_node("Concat", parts, ["found"], axis=1))
    result = "found"
    if layout != "columns":
        nodes.append(helper.make_node("Transpose", ["found"], ["rows"], perm=[0, 2, 1]))
        result = "rows"
    given = [helper.make_tensor_value_info(name, kind, shape or SHAPE) for name in ("image", "more")[:inputs]]
    output = helper.make_tensor_value_info(result, kind, None)
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "bright", given, [output], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


def cells(*bright: tuple[int, int], width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """A black image in which these cells (column, row) are white."""
    image = np.zeros((height, width, 3), np.uint8)
    for column, row in bright:
        image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = 255
    return image


def _boxes(size: int, *, corners: bool) -> NDArray[np.float64]:
    y, x = np.divmod(np.arange(COUNT), COLUMNS)
    middle_x, middle_y = (x + 0.5) * CELL, (y + 0.5) * CELL
    side = np.full(COUNT, float(size))
    if corners:
        rows = [middle_x - side / 2, middle_y - side / 2, middle_x + side / 2, middle_y + side / 2]
    else:
        rows = [middle_x, middle_y, side, side]
    return np.stack(rows)[None]
