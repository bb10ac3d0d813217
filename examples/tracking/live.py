"""The live part: real nodes on fresh services, frames at a camera's pace, one node killed, one drained."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog

from examples.tracking import app, servers, watch
from examples.tracking.picture import Picture, PictureNode
from examples.tracking.plan import DRAIN_AT, FPS, KILL_AT, LATEST, RUN, DemoCamera, DemoFailed, DemoPlan
from examples.tracking.report import best_frames
from examples.tracking.view import DemoView
from holdfast.cli.children import Launcher
from holdfast.cli.node import share_slots
from holdfast.cluster.supervisor import Supervisor
from holdfast.extend.commands import exits
from holdfast.extend.products import Config, Services
from holdfast.system.log import set_up as set_up_log
from holdfast.vision.ingest import ingest
from holdfast.vision.places import object_name

REFRESH_S = 0.2
LOOK_S = 0.05
START_TIMEOUT_S = 120.0
STALL_TIMEOUT_S = 75.0
"""Outlasts the visibility and the gap timeout, after which a missing frame is given up."""

LOG = "nodes.log"

log = structlog.get_logger()


def settings(workspace: Path, nodes: int, **found: Any) -> Config:
    """Return the settings of each of the demo's ``nodes``, which share the slots of one. Everything that no
    service ``found`` holds is in the ``workspace``."""
    place = quote(str(workspace))
    own = {
        "url": f"sqlite:///{place}/holdfast.db",
        "objects_url": f"file:{place}/objects",
        "node_name": "node",
        "log_format": "json",
    }
    config = Config.model_validate(own | found)
    return share_slots(config, nodes)


async def show(plan: DemoPlan, picture: Picture, view: DemoView, workspace: Path) -> dict[str, bytes]:
    """Run the live part and fill the picture; returns each stream's frame for the contact sheet, as JPEG.
    Raises DemoFailed, and the services' errors."""
    async with AsyncExitStack() as stack:
        config = settings(
            workspace, plan.nodes, **await stack.enter_async_context(servers.started(plan.services))
        )
        services = await stack.enter_async_context(Services(config))
        await servers.make_queues(services)
        logs = stack.enter_context((workspace / LOG).open("a"))
        set_up_log("json", "info", logs)
        nodes = Supervisor(
            services.coordinator(),
            services.clock,
            Launcher(["node", app.PLACE], config, workspace, logs).node,
            [f"node-{number}" for number in range(1, plan.nodes + 1)],
            log,
            final=(exits.OK, exits.USAGE),
            drain_timeout_s=config.drain_timeout_s,
        )
        stack.push_async_callback(_end, nodes)
        after, _ = await services.coordinator().watch(-1, 0)
        await nodes.start()
        await _while_running(
            _play(plan, services, nodes, picture),
            _guard(nodes),
            _refresh(services, picture, view),
            watch.follow_results(services.state(), picture),
            watch.follow_changes(services.coordinator(), picture, after),
            watch.follow_metrics(services.clock, picture),
        )
        return {
            key: await services.objects().get(f"{config.objects_url}/{object_name(key, RUN, frame)}")
            for key, frame in best_frames(picture).items()
        }


async def _end(nodes: Supervisor) -> None:
    """Kill the nodes: the streams are done."""
    nodes.kill()
    await nodes.stop()


async def _while_running(main: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` to its end, and the others meanwhile; the first error ends them all."""
    try:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(other) for other in others]
            await group.create_task(main)
            for helper in helpers:
                helper.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _guard(nodes: Supervisor) -> None:
    await nodes.ended.wait()
    raise DemoFailed("all nodes have ended")


async def _refresh(services: Services, picture: Picture, view: DemoView) -> None:
    while True:
        view.update(picture)
        await services.clock.sleep(REFRESH_S)


# --- the play


async def _play(plan: DemoPlan, services: Services, nodes: Supervisor, picture: Picture) -> None:
    clock = services.clock
    started_at = clock.monotonic()
    while len(picture.nodes) < plan.nodes:
        if clock.monotonic() - started_at > START_TIMEOUT_S:
            raise DemoFailed(
                f"only {len(picture.nodes)} of {plan.nodes} nodes joined in {START_TIMEOUT_S:g} s"
            )
        await clock.sleep(LOOK_S)
    picture.begin()
    hurt = asyncio.create_task(_hurt(plan, services, nodes, picture))
    try:
        await asyncio.gather(*(_film(camera, plan, services, picture) for camera in plan.cameras))
        await hurt
    finally:
        hurt.cancel()
    await _all_committed(services, picture)


async def _film(camera: DemoCamera, plan: DemoPlan, services: Services, picture: Picture) -> None:
    stream = picture.streams[camera.key]
    await ingest(
        camera.video,
        camera.key,
        RUN,
        objects=services.objects(),
        queue=services.queue(app.STREAM),
        clock=services.clock,
        fps=FPS,
        seconds=plan.seconds,
        realtime=True,
        progress=partial(setattr, stream, "sent"),
    )


async def _all_committed(services: Services, picture: Picture) -> None:
    """Wait for the results of all frames, or until results stop coming."""
    seen, since = -1, 0.0
    while picture.committed < picture.sent:
        now = services.clock.monotonic()
        if picture.committed != seen:
            seen, since = picture.committed, now
        elif now - since > STALL_TIMEOUT_S:
            picture.note(f"nothing was committed for {STALL_TIMEOUT_S:g} s")
            return
        await services.clock.sleep(LOOK_S)


async def _hurt(plan: DemoPlan, services: Services, nodes: Supervisor, picture: Picture) -> None:
    """Kill the node that owns most streams; once it is back, drain another, early enough to be seen."""
    if not plan.faults:
        return
    clock, began_at = services.clock, services.clock.monotonic()
    await clock.sleep(KILL_AT * plan.seconds)
    while not all(stream.owner for stream in picture.streams.values()):
        await clock.sleep(LOOK_S)
    victim = _busiest(picture)
    picture.killed(victim)
    _signal(nodes, picture.nodes[victim], signal.SIGKILL)
    await clock.sleep(began_at + DRAIN_AT * plan.seconds - clock.monotonic())
    while picture.running < 2 or (
        picture.running < plan.nodes and clock.monotonic() < began_at + LATEST * plan.seconds
    ):
        await clock.sleep(LOOK_S)
    leaving = _busiest(picture)
    picture.draining(leaving)
    _signal(nodes, picture.nodes[leaving], signal.SIGTERM)
    while picture.nodes[leaving].state != "ended":
        await clock.sleep(LOOK_S)


def _busiest(picture: Picture) -> str:
    """Return the membership that owns most streams."""
    running = {member: node for member, node in picture.nodes.items() if node.state == "running"}
    return max(running, key=lambda member: len(picture.owned(running[member].name)))


def _signal(nodes: Supervisor, node: PictureNode, number: signal.Signals) -> None:
    life = nodes.lives.get(node.place)
    if life is not None and life.name == node.life:
        life.signal(number)
