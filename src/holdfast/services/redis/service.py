"""The service that URLs of Redis and Valkey open: ``redis://host``, ``rediss+cluster://host,host``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extend import Opening, Risk, Service, extra, named

if TYPE_CHECKING:
    from holdfast.services.redis.connection import RedisConnection
    from holdfast.services.redis.coordinator import RedisCoordinator
    from holdfast.services.redis.queue import RedisQueue
    from holdfast.services.redis.registry import RedisRegistry
    from holdfast.services.redis.state import RedisState
    from holdfast.services.redis.tasks import RedisTasks


class RedisService(Service):
    """Serves all ports. Each has its own connection, so that commits never delay a renewal."""

    example = "redis://localhost"

    def queue(self, opening: Opening, name: str) -> RedisQueue:
        connection = _connection(opening)
        from holdfast.services.redis.queue import RedisQueue, bell_of  # noqa: PLC0415
        from holdfast.services.redis.replicas import ConfirmedConnection  # noqa: PLC0415

        bell = opening.shared(("redis", "bell", opening.url), lambda: bell_of(connection, opening.clock))
        confirmed = None
        if connection.address.wait_replicas:
            confirmed = opening.shared(
                ("redis", "confirmed", opening.url),
                lambda: ConfirmedConnection(connection.address, opening.meter),
            )
        return RedisQueue(
            connection,
            name,
            opening.clock,
            bell,
            confirmed=confirmed,
            max_bytes=opening.max_message_bytes,
        )

    async def filled_queues(self, opening: Opening) -> list[str]:
        connection = _connection(opening)
        from holdfast.services.redis.queue import filled  # noqa: PLC0415

        return await filled(connection)

    async def queue_names(self, opening: Opening) -> list[str]:
        connection = _connection(opening)
        from holdfast.services.redis.queue import all_names  # noqa: PLC0415

        return await all_names(connection)

    def coordinator(self, opening: Opening) -> RedisCoordinator:
        connection = _connection(opening)
        from holdfast.services.redis.coordinator import RedisCoordinator  # noqa: PLC0415

        return RedisCoordinator(connection, opening.clock)

    def state(self, opening: Opening) -> RedisState:
        connection = _connection(opening)
        from holdfast.services.redis.state import RedisState  # noqa: PLC0415

        return RedisState(connection, opening.clock, max_state_bytes=opening.max_state_bytes)

    async def risks(self, opening: Opening) -> list[Risk]:
        connection = _connection(opening)
        from holdfast.services.redis.durability import check  # noqa: PLC0415

        return await check(connection)

    def tasks(self, opening: Opening, app: str) -> RedisTasks:
        connection = _connection(opening, app)
        from holdfast.services.redis.tasks import RedisTasks  # noqa: PLC0415

        return RedisTasks(connection, app, opening.clock)

    def registry(self, opening: Opening) -> RedisRegistry:
        connection = _connection(opening)
        from holdfast.services.redis.registry import RedisRegistry  # noqa: PLC0415

        return RedisRegistry(connection, opening.clock)


def _connection(opening: Opening, app: str = "") -> RedisConnection:
    with extra("redis", opening.setting):
        from holdfast.services.redis.connection import RedisConnection, parse  # noqa: PLC0415
    with named(opening.setting, opening.url):
        return opening.shared(
            ("redis", opening.setting, opening.url, app),
            lambda: RedisConnection(parse(opening.url), opening.meter),
        )


service = RedisService()
