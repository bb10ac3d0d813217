"""Plays a day at the site of site.py: its node, its cameras, a door, and a receiver of alerts.

    make demo-site

Everything is real but the cameras and the door: the node and Mosquitto are processes of their own, and the
receiver of alerts accepts only signed ones. Ends with 0 once all five parts have done their work.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from examples.site import Sight, app, nightly
from holdfast import AsyncClient, devices
from simulator.servers import MosquittoServer
from simulator.servers.server import until

SECRET = "whsec_bm90IGEgc2VjcmV0OiBtYWtlIG9uZSBvZiB5b3VyIG93bg=="  # noqa: S105 (of a play)
SILENT_S = 2.0
PATIENCE_S = 60.0


class Receiver(ThreadingHTTPServer):
    """Takes alerts, each once, and only signed ones. It runs from its construction on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Alerted)
        self.url = f"http://127.0.0.1:{self.server_port}/alerts"
        self._alerts: asyncio.Queue[Any] = asyncio.Queue()
        self._seen: set[str] = set()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self, effect: str, alert: Any) -> None:
        """Remember an alert, unless it has come before."""
        if effect not in self._seen:
            self._seen.add(effect)
            self._loop.call_soon_threadsafe(self._alerts.put_nowait, alert)

    async def next(self) -> Any:
        """Wait for an alert."""
        return await self._alerts.get()

    def server_close(self) -> None:
        """End it."""
        self.shutdown()
        super().server_close()


class Alerted(BaseHTTPRequestHandler):
    """Handles one request."""

    server: Receiver

    def do_POST(self) -> None:
        """Verify the signature, then take the alert."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            alert = Webhook(SECRET).verify(body, dict(self.headers))
        except WebhookVerificationError:
            self.send_error(401)
            return
        self.server.take(self.headers["webhook-id"], alert)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@contextlib.contextmanager
def node(folder: Path, broker: str, alerts: str) -> Iterator[str]:
    """Run ``holdfast node`` with all the settings that the site needs; gives the URL of its services."""
    url = f"sqlite:///{folder / 'holdfast.db'}"
    settings = {
        "HOLDFAST_URL": url,
        "HOLDFAST_OUTBOX_URL": f"sqlite:///{folder / 'site.db'}",
        "HOLDFAST_DEVICES_URL": broker,
        "HOLDFAST_TARGET_SECRETS": json.dumps({alerts: SECRET}),
        "SITE_ALERTS": alerts,
        "SITE_SILENT_S": f"{SILENT_S:g}",
    }
    command = [sys.executable, "-m", "holdfast", "node", "examples.site:app"]
    with (
        (folder / "node.log").open("wb") as log,
        subprocess.Popen(command, env=os.environ | settings, stderr=log) as process,  # noqa: S603
    ):
        try:
            yield url
        finally:
            process.send_signal(signal.SIGTERM)


async def play(folder: Path) -> None:
    """Play it, and print what happens. Raises TimeoutError if something doesn't happen."""
    opened: asyncio.Queue[str] = asyncio.Queue()

    def obey(door: str, _: str, command: bytes) -> bytes:
        opened.put_nowait(f"{door} has opened for {json.loads(command)['person']}")
        return b"{}"

    async with contextlib.AsyncExitStack() as running:
        broker = await running.enter_async_context(MosquittoServer())
        await running.enter_async_context(devices.Fleet(broker.url, ["door-1"], work=obey))
        alerts = running.enter_context(Receiver())
        url = running.enter_context(node(folder, broker.url, alerts.url))
        client = await running.enter_async_context(AsyncClient(app, url=url))
        await running.enter_async_context(asyncio.timeout(PATIENCE_S))

        now = dt.datetime.now(dt.UTC)
        sights = [
            Sight("cam-1", "harbour", now, {"ada"}, door="door-1"),
            Sight("cam-1", "harbour", now, {"ada", "mallory"}, door="door-1"),
            Sight("cam-2", "harbour", now, {"ada", "grace"}),
        ]
        await client.stream("cameras").send_many(sights)
        print("cam-1 sees ada, then mallory too, at door-1; cam-2 sees ada and grace")
        print(f"outbox   {await opened.get()}")

        async def counted() -> bool:
            return len((await client.query("sites", "harbour", f"{now.date()}")).value) == 3

        await until(counted, "the site has counted three people")
        print("stream   harbour has counted 3 people")
        for alert in (await alerts.next(), await alerts.next()):
            print(f"timer    {alert['camera']} has been silent for {alert['silent_s']:g} s")
            print(f"webhook  the alert of {alert['camera']} has come, with the right signature")
        (trace,) = await client.send_many(nightly(now + dt.timedelta(days=1)))
        print(f"task     {(await client.wait(trace)).value}")


def main() -> int:
    """Play it in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-site-") as name:
        try:
            asyncio.run(play(Path(name)))
        except BaseException:
            print(f"It went wrong. The log of the node:\n{Path(name, 'node.log').read_text()}")
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
