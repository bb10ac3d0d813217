"""Makes the pictures of the console in ``docs/images``: a small cluster with faults, in a real browser.

Run as ``make screenshots``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import polars as pl
from PIL import Image
from playwright.async_api import Browser, async_playwright

from examples.tracking.render import render_all
from examples.tracking.scene import Scene
from simulator.servers import MosquittoServer, programs

IMAGES = Path(__file__).parent / "images"
PAGES = {
    "overview": "/",
    "streams": "/streams",
    "stream": "/stream?key=meters%2Fcellar-3",
    "tasks": "/tasks",
    "dead-letters": "/dead-letters?queue=meters",
    "devices": "/devices",
    "device": "/devices/one?outbox=doors&device=roof",
    "reports": "/reports",
    "cameras": "/cameras?stream=frames",
    "audit": "/audit",
}
FOLLOWED = {
    "task": ("/tasks?state=running", "#tasks tbody a"),
    "dead-letter": ("/dead-letters?queue=meters", "tbody a"),
}
"""Pages that the first such link of another page leads to."""

SIZE = {"width": 1200, "height": 860}
COLOURS = 200
"""Enough for pages, and less than half the bytes."""

ENTRY = re.compile(r"http://\S+/enter\?token=\S+")
SETTLED = "() => document.querySelector('#connection')?.textContent.trim() === 'Live'"
DRAWN = "() => [...document.querySelectorAll('canvas')].every(one => !one.ariaLabel.endsWith('nothing yet'))"
PATIENCE_S = 60.0
FEED_S = 3600.0
"""Longer than it takes: what feeds the cluster is ended with it."""

APP = """
import time
from datetime import datetime

import msgspec

from holdfast import App, Context, Job, Order, StreamHandler
from holdfast.vision.handler import Frame, Tracking

app = App("house")
doors = app.outbox("doors")
app.stream("frames", key="video", seq="frame", run="run", message=Frame, first_seq=0)(Tracking)


class Reading(msgspec.Struct):
    meter: str
    number: int
    kwh: float


@app.stream("meters", key="meter", seq="number", message=Reading, first_seq=0, gap_timeout_s=3600)
class Total(StreamHandler[Reading]):
    def open(self, context: Context, state: bytes | None) -> None:
        self.total = float(state or 0)

    def process(self, message: Reading, context: Context) -> dict[str, float]:
        if message.kwh < 0:
            raise ValueError(f"{message.kwh} kWh: a meter does not run backwards")
        self.total += message.kwh
        context.wake("quiet", after_s=600)
        return {"total_kwh": round(self.total, 2)}

    def wake(self, name: str, body: bytes, context: Context) -> None:
        return None

    def snapshot(self) -> bytes:
        return str(self.total).encode()


@app.periodic("month-end", "0 6 1 * *", zone="Europe/Berlin")
def month_end(moment: datetime) -> list[Order]:
    return [Order(task_type="bill", body={"month": moment.month, "pages": 2})]


@app.task("bill", timeout_s=600)
def bill(order: dict[str, int], job: Job) -> int:
    if order["month"] > 12:
        raise ValueError(f"there is no month {order['month']}")
    for page in range(order["pages"]):
        job.progress(page / order["pages"], "typesetting")
        time.sleep(0.5)
    return order["pages"]
"""

DOORS = """
import asyncio
import sys

import sqlalchemy
from house import doors

from holdfast.devices.fleet import Behaviour, Fleet

NAMES = [f"{floor}-{side}" for floor in ("cellar", "ground", "first") for side in ("north", "south")]


async def main(broker, seconds):
    office = sqlalchemy.create_engine("sqlite:///office.db")
    async with Fleet(broker, NAMES, behaviour=Behaviour(latency_s=0.5, heartbeat_s=5.0)):
        with office.begin() as db:
            doors.add_rollout(db, "keys of November", [*NAMES, "roof"], {"keys": 17})
            doors.add(db, device="roof", command={"do": "unlock"})
        await asyncio.sleep(seconds)


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""

FEED = """
import sys
import time

from holdfast import Client
from house import Reading, app, bill

METERS = [f"{floor}-{n}" for floor in ("cellar", "ground", "first", "roof") for n in range(1, 9)]
with Client(app) as client:
    meters = client.stream("meters")
    for n in (0, 1, 2, 5, 6):
        meters.send(Reading("cellar-3", n, 0.4))
    for month in (1, 2, 3, 13):
        bill.send({"month": month, "pages": 2})
    for month in (4, 5):
        bill.send({"month": month, "pages": 600})
    for month in (6, 7):
        bill.send({"month": month, "pages": 2}, delay_s=3600)
    number, until = 0, time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        meters.send_many(
            Reading(meter, number, -0.1 if meter == "roof-5" and number % 40 == 7 else 0.5)
            for meter in METERS
            if meter != "cellar-3"
        )
        number += 1
        time.sleep(0.25 + 0.2 * (number // 60 % 3))
"""


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this project in a folder, until the end of the block."""
    process = subprocess.Popen(  # noqa: S603 - what runs is written here
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"HOLDFAST_LOG_FORMAT": "json", "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def entry(process: subprocess.Popen[str]) -> str:
    """The address that a console prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := ENTRY.search(line):
            return found[0]
    raise RuntimeError("the console printed no address")


def order_reports(folder: Path) -> None:
    """Publish three reports, the last of which fails."""
    table = folder / "readings.parquet"
    (folder / "out").mkdir()
    pl.DataFrame({"meter": ["cellar-1", "roof-2"], "kwh": [412.5, 98.0]}).write_parquet(table)
    places = {"north": "out", "south": "out", "west": "sftp://files.west.example/in"}
    for customer, place in places.items():
        arguments = ("reports", "publish", str(table), place, "--customer", customer, "--record")
        with running(folder, "-m", "holdfast", *arguments) as publishing:
            publishing.wait(PATIENCE_S)


async def take(browser: Browser, address: str, scheme: Literal["light", "dark"]) -> None:
    """Take a picture of each page."""
    context = await browser.new_context(color_scheme=scheme, viewport=SIZE)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(address)
    base = address.partition("/enter")[0]
    for name in (*PAGES, *FOLLOWED):
        path, link = (PAGES[name], "") if name in PAGES else FOLLOWED[name]
        await page.goto(base + path)
        if link:
            await page.locator(link).first.click()
        if await page.locator("[data-live]").count():
            await page.wait_for_function(SETTLED, timeout=PATIENCE_S * 1000)
        await page.wait_for_function(DRAWN, timeout=PATIENCE_S * 1000)
        file = IMAGES / f"console-{name}-{scheme}.png"
        await page.screenshot(path=file)
        Image.open(file).convert("RGB").quantize(COLOURS).save(file, optimize=True)
    await context.close()


async def main() -> None:
    """Start a cluster, let it work for a while, and take the pictures."""
    parser = argparse.ArgumentParser(prog="docs/screenshots.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="how long the charts are to be")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        (folder / "house.py").write_text(APP)
        (folder / "feed.py").write_text(FEED)
        (folder / "office_doors.py").write_text(DOORS)
        broker = MosquittoServer()
        await broker.start()
        stack.callback(broker.kill)
        os.environ["HOLDFAST_OUTBOX_URL"], os.environ["HOLDFAST_DEVICES_URL"] = (
            "sqlite:///office.db",
            broker.url,
        )
        stack.enter_context(running(folder, "-m", "holdfast", "node", "house:app", "--nodes", "2"))
        console = stack.enter_context(running(folder, "-m", "holdfast", "console", "--port", "0"))
        stack.enter_context(running(folder, "feed.py", str(FEED_S)))
        order_reports(folder)
        scenes = [Scene(seed=seed, seconds=4.0, width=320, height=180) for seed in range(3)]
        videos = [str(rendered.video) for rendered in render_all(scenes, folder / "scenes")]
        keys = [word for name in ("gate", "hall", "yard") for word in ("--key", name)]
        address = entry(console)
        await asyncio.sleep(asked.seconds / 2)
        stack.enter_context(running(folder, "office_doors.py", broker.url, str(FEED_S)))
        await asyncio.sleep(asked.seconds / 2)
        with running(folder, "-m", "holdfast", "ingest", *videos, *keys) as ingest:
            ingest.wait(PATIENCE_S)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=programs.find("chromium"))
            for scheme in ("light", "dark"):
                await take(browser, address, scheme)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
