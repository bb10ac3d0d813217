"""Images of compiled packages on a Debian, built in both ways, unpacked and run."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.image import image_config
from simulator.servers import Buildah, buildah, debian_base, programs
from simulator.servers.loopback import free_port
from tests.image.container import Container, end, kill

CONTAINERFILE = Path(__file__).parents[2] / "deploy/Containerfile"
APP = """
import av
import numpy as np

from holdfast import App

app = App("cameras")


@app.stream("frames", key="camera", seq="frame", first_seq=0)
def brightness(message, context):
    pixels = np.full((8, 8, 3), message["frame"], dtype=np.uint8)
    return {"mean": float(av.VideoFrame.from_ndarray(pixels, format="rgb24").to_ndarray().mean())}
"""

PLAIN_APP = """
from holdfast import App

app = App("cameras")


@app.stream("frames", key="camera", seq="frame", first_seq=0)
def brightness(message, context):
    return {"mean": float(message["frame"])}
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of an image, built by the command line."""
    folder = tmp_path_factory.mktemp("cameras")
    (folder / "cameras.py").write_text(APP)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "cameras"\nversion = "1"\ndependencies = ["holdfast-streams", "numpy", "av"]\n'
    )
    base = debian_base.write(tmp_path_factory.mktemp("debian") / "layout")
    layout = tmp_path_factory.mktemp("built") / "layout"
    command = [sys.executable, "-m", "holdfast", "image", "build", "cameras:app", "-t", "cameras:1"]
    cache = tmp_path_factory.mktemp("cache")
    subprocess.run([*command, "--base", base, "-o", layout, "--cache", cache], cwd=folder, check=True)
    return layout


@pytest.fixture(scope="module")
def image_of_containerfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of an image that deploy/Containerfile says, with its last line changed as it asks for."""
    folder = tmp_path_factory.mktemp("cameras")
    (folder / "cameras.py").write_text(PLAIN_APP)
    (folder / "requirements.txt").write_text("--no-index\n-f /wheels\nholdfast-streams\n")
    *lines, last = CONTAINERFILE.read_text().splitlines()
    (folder / "Containerfile").write_text("\n".join([*lines, last.replace("app:app", "cameras:app")]))
    base = debian_base.write(tmp_path_factory.mktemp("debian") / "layout")
    wheels = buildah.write_wheels(tmp_path_factory.mktemp("wheels") / "all")
    layout = tmp_path_factory.mktemp("built") / "layout"
    images = Buildah(tmp_path_factory.mktemp("store"))
    try:
        images.build(folder, folder / "Containerfile", "cameras:1", wheels=wheels, BASE=base)
        images.push("cameras:1", f"oci:{layout}:1", compress=False)
    finally:
        images.close()
    return layout


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["image", "image_of_containerfile"])
def test_the_image_handles_a_stream_as_a_user_without_rights(
    request: pytest.FixtureRequest, tmp_path: Path, how: str
) -> None:
    if how == "image_of_containerfile" and os.geteuid():
        pytest.skip("only root builds a Containerfile without namespaces")
    container = Container(request.getfixturevalue(how), "1", tmp_path / "bundle")
    service = {"HOLDFAST_URL": "sqlite:////data/holdfast.db", "HOLDFAST_PORT": str(free_port())}
    holdfast = container.config["args"][:3]
    assert holdfast[1:] == ["-m", "holdfast"]
    node = container.start(**service)
    try:
        for frame in range(3):
            message = json.dumps({"camera": "lobby", "frame": frame})
            container.run(*holdfast, "send", "frames", message, **service)
        lines = container.run(*holdfast, "results", "--stream", "frames", "--follow", "-n", "3", **service)
        assert [json.loads(line)["result"]["mean"] for line in lines.splitlines()] == [0.0, 1.0, 2.0]
        assert (container.data / "holdfast.db").stat().st_uid == container.config["user"]["uid"]
        container.run(*image_config.LIVE, **service)
        container.run(*image_config.READY, **service)
        assert end(node) == 0
    finally:
        kill(node)
    with pytest.raises(AssertionError):
        container.run(*image_config.LIVE, **service)


@pytest.mark.nightly
def test_skopeo_reads_and_copies_a_built_image(image: Path, tmp_path: Path) -> None:
    inspected = subprocess.check_output([programs.find("skopeo"), "inspect", f"oci:{image}:1"])
    assert json.loads(inspected)["Labels"]["holdfast.app"] == "cameras:app"
    program, target = str(programs.find("skopeo")), f"oci-archive:{tmp_path}/copy.tar:1"
    copy = [program, "copy", "--insecure-policy", "--preserve-digests", f"oci:{image}:1", target]
    subprocess.run(copy, check=True, capture_output=True)
    index = msgspec.json.decode((image / "index.json").read_bytes())
    copied = subprocess.check_output([program, "inspect", "--raw", target])
    assert f"sha256:{hashlib.sha256(copied).hexdigest()}" == index["manifests"][0]["digest"]
