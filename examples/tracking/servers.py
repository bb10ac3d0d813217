"""The services that the demo starts for itself, beside the database that it uses by default."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from examples.tracking import app
from holdfast.assembly.checks import queues_of
from holdfast.errors import ConfigError
from holdfast.extend.products import Services
from simulator.servers import FauxqsServer, PostgresqlServer, RedisServer, ZooKeeperServer

KNOWN = {
    "postgres": "all but frames",
    "redis": "all but frames",
    "zookeeper": "coordinator",
    "sqs": "queue",
    "s3": "frames",
}
BUCKET = "holdfast-demo"
VISIBILITY_S = 10.0
"""Visibility of deliveries in seconds: short, as a viewer waits for those of a killed node."""


def parse(text: str) -> tuple[str, ...]:
    """The names in ``redis,sqs``. Raises ConfigError for one that isn't known."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in KNOWN:
            known = ", ".join(f"{known} ({what})" for known, what in KNOWN.items())
            raise ConfigError(f"--services: unknown service {name!r}; known are {known}")
    if {"postgres", "redis"}.issubset(names):
        raise ConfigError("--services: postgres and redis are used for the same things; name one of them")
    return names


@asynccontextmanager
async def started(names: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
    """Start servers for the services named; yields the settings that lead to them. What leads AWS clients
    to them stands in this process's environment meanwhile. Raises ConfigError for a missing program."""
    found: dict[str, Any] = {}
    if not names:
        yield found
        return
    async with AsyncExitStack() as stack:
        if "postgres" in names:
            postgres = await stack.enter_async_context(PostgresqlServer(fsync=True))
            found["url"] = postgres.url
        if "redis" in names:
            redis = await stack.enter_async_context(RedisServer())
            found["url"] = redis.url
        if "zookeeper" in names:
            found["coordinator_url"] = (await stack.enter_async_context(ZooKeeperServer())).url
        if not {"sqs", "s3"}.isdisjoint(names):
            aws = await stack.enter_async_context(FauxqsServer())
            _export(stack, aws.environment())
            async with aiohttp.ClientSession() as session, session.put(f"{aws.endpoint}/{BUCKET}") as made:
                made.raise_for_status()
        if "sqs" in names:
            found |= {"queue_url": "sqs:///", "visibility_s": VISIBILITY_S}
        if "s3" in names:
            found["objects_url"] = f"s3://{BUCKET}"
        yield found


async def make_queues(services: Services) -> None:
    """Make the demo's queue where the service doesn't by itself."""
    if setup := services.queue_setup():
        for name, visibility_s in queues_of(app.app).items():
            await setup.create(name, visibility_s=visibility_s, tags={}, encrypt=False, kms_key="")


def _export(stack: AsyncExitStack, environment: Mapping[str, str]) -> None:
    """Set variables for as long as ``stack`` is open."""
    before = {name: os.environ.get(name) for name in environment}

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    os.environ.update(environment)
    stack.callback(restore)
