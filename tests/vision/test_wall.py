"""The camera wall: newest frames with their boxes, read once for all who look, and no other picture."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect

from holdfast import App, Context
from holdfast.config.settings import Config
from holdfast.console.service import Console
from holdfast.errors import Unavailable
from holdfast.services.file.objects import FileObjects
from holdfast.testing import NodeForTests, node_for_tests
from holdfast.vision.places import object_name
from holdfast.vision.wall import AT_ONCE
from holdfast.wiring.services import Services
from tests.console.browser import Browser, running_console
from tests.console.chromium import PATIENCE_MS, PHONE_PX, opened

HOSTILE = "<script>alert(1)</script>"
FRAMES = 3


def site() -> App:
    """Cameras with a person each, and a stream without any."""
    app = App("site")

    @app.stream("doors", key="door")
    def doors(message: dict[str, Any], context: Context) -> dict[str, Any]:
        return {"open": True}

    @app.stream("frames", key="video", seq="frame", first_seq=0)
    def frames(message: dict[str, Any], context: Context) -> dict[str, Any]:
        tracks = [{"id": 7, "box": [10.0, 20.0, 60.0, 90.0], "score": 0.9}]
        return {"video": message["video"], "run": 0, "frame": message["frame"], "tracks": tracks}

    return app


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (160, 120), "navy").save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def objects(tmp_path: Path) -> FileObjects:
    return FileObjects(tmp_path / "objects", read_in_thread=False, makes=False)


@pytest.fixture
def node(objects: FileObjects) -> Iterator[NodeForTests]:
    async def put() -> None:
        for video in ("gate", HOSTILE):
            for frame in range(FRAMES):
                await objects.put(object_name(video, 0, frame), jpeg())

    asyncio.run(put())
    with node_for_tests(site()) as running:
        running.stream("doors").send({"door": "d1"})
        for frame in range(FRAMES):
            for video in ("gate", HOSTILE):
                running.stream("frames").send({"video": video, "frame": frame})
        running.results("frames", 2 * FRAMES)
        yield running


@pytest.fixture
async def console(node: NodeForTests, objects: FileObjects) -> AsyncIterator[Console]:
    config = Config(url=node.url, objects_url=f"file:{objects.root}")
    async with Services(config) as services, running_console(services) as running:
        async with Browser(running) as reader:
            await reader.until("frames/gate", "/cameras?stream=frames")
        yield running


async def news(browser: Browser, *keys: str) -> Any:
    async with browser.session.get("/cameras/news", params=[("key", key) for key in keys]) as response:
        assert response.status == 200
        return await response.json()


async def test_the_page_has_the_cameras_of_the_first_stream_with_tracks(console: Console) -> None:
    async with Browser(console) as reader:
        page = await reader.until("frames/gate", "/cameras")
        assert "doors/d1" not in page.text
        assert HOSTILE not in page.text
        assert "takes the right" in page.text
        assert "frames/gate" not in (await reader.get("/cameras", stream="doors")).text


async def test_news_are_the_newest_results_and_tell_pictures_to_who_may_see_them(console: Console) -> None:
    async with Browser(console) as reader, Browser(console, console.own_token) as operator:
        (seen,) = await news(operator, "frames/gate", "doors/d1", "frames/none")
        assert (seen["key"], seen["run"], seen["frame"]) == ("frames/gate", 0, FRAMES - 1)
        assert seen["tracks"] == [{"id": 7, "box": [10.0, 20.0, 60.0, 90.0]}]
        picture = await operator.get(seen["picture"])
        assert (picture.status, picture.headers["Content-Type"]) == (200, "image/jpeg")
        assert picture.headers["Cache-Control"] == "no-store"
        assert picture.headers["X-Content-Type-Options"] == "nosniff"
        (unseen,) = await news(reader, "frames/gate")
        assert (unseen["picture"], unseen["tracks"]) == ("", seen["tracks"])
        assert (await reader.get(seen["picture"])).status == 403
        many = "&".join(["key=frames/gate"] * (AT_ONCE + 1))
        assert (await reader.get(f"/cameras/news?{many}")).status == 400


async def test_only_cameras_that_are_known_are_read_and_one_that_fails_hides_no_other(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = type(console.parts.services.state())
    peek, peeked = store.peek, list[str]()

    async def fails_for_hostile(self: Any, key: str) -> Any:
        peeked.append(key)
        if HOSTILE in key:
            raise Unavailable("the store is away")
        return await peek(self, key)

    async with Browser(console) as reader:
        monkeypatch.setattr(store, "peek", fails_for_hostile)
        (seen,) = await news(reader, "frames/none", f"frames/{HOSTILE}", "x" * 4000, "frames/gate")
    assert seen["key"] == "frames/gate"
    assert set(peeked) <= {f"frames/{HOSTILE}", "frames/gate"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", ["video=../../secret&run=0&frame=0", "video=gate&run=0&frame=99", "video=gate&run=0&frame=7"]
)
async def test_what_is_no_frame_below_the_place_of_objects_is_not_shown(
    console: Console, objects: FileObjects, query: str
) -> None:
    await objects.put(object_name("gate", 0, 7), b"<html>no picture</html>")
    (objects.root.parent / "secret").mkdir()
    (objects.root.parent / "secret/0").mkdir()
    (objects.root.parent / "secret/0/00000000.jpg").write_bytes(jpeg())
    async with Browser(console, console.own_token) as operator:
        answer = await operator.get(f"/cameras/picture?{query}")
        assert answer.status == 404
        assert "no picture</html>" not in answer.text


@pytest.mark.slow
async def test_a_frame_is_read_once_for_all_who_look(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, get = [], FileObjects.get

    async def counted(self: FileObjects, url: str) -> bytes:
        reads.append(url)
        return await get(self, url)

    monkeypatch.setattr(FileObjects, "get", counted)
    async with Browser(console, console.own_token) as one, Browser(console, console.own_token) as two:
        (seen,) = await news(one, "frames/gate")
        answers = await asyncio.gather(*(each.get(seen["picture"]) for each in (one, two) for _ in range(4)))
        assert {answer.status for answer in answers} == {200}
    assert len(reads) == 1


@pytest.mark.slow
async def test_a_frame_that_could_not_be_read_is_read_again(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = FileObjects.get

    async def away(self: FileObjects, url: str) -> bytes:
        raise Unavailable("the store is away")

    async with Browser(console, console.own_token) as operator:
        (seen,) = await news(operator, "frames/gate")
        monkeypatch.setattr(FileObjects, "get", away)
        assert (await operator.get(seen["picture"])).status == 404
        monkeypatch.setattr(FileObjects, "get", get)
        assert (await operator.get(seen["picture"])).status == 200


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_browser_draws_the_newest_frames_and_leads_to_their_streams(
    chromium: Chromium, console: Console, node: NodeForTests, objects: FileObjects, scheme: Any
) -> None:
    async with Browser(console) as reader:
        await reader.until("frames/gate", "/cameras")
    async with opened(chromium, console, scheme, PHONE_PX) as tab:
        await tab.open("/cameras")
        tile = tab.page.locator('[data-key="frames/gate"] canvas')
        said = f"frames/gate: run 0, frame {FRAMES - 1}, 1 tracked"
        await expect(tile).to_have_attribute("aria-label", said, timeout=PATIENCE_MS)
        assert await tile.evaluate("canvas => [canvas.width, canvas.height]") == [160, 120]
        blue = await tile.evaluate("canvas => canvas.getContext('2d').getImageData(150, 110, 1, 1).data[2]")
        assert blue > 100, "the picture is drawn"
        await objects.put(object_name("gate", 0, FRAMES), jpeg())
        await asyncio.to_thread(node.stream("frames").send, {"video": "gate", "frame": FRAMES})
        newer = f"frames/gate: run 0, frame {FRAMES}, 1 tracked"
        await expect(tile).to_have_attribute("aria-label", newer, timeout=PATIENCE_MS)
        assert await tab.width_px() <= PHONE_PX
        assert await tab.serious_faults() == []
        await tile.click()
        await expect(tab.page).to_have_title("frames/gate · Holdfast", timeout=PATIENCE_MS)
