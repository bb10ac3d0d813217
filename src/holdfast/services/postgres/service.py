"""The service that URLs of PostgreSQL open: ``postgresql://user@host/database``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extend import DatabaseHealth, Opening, Risk, SchemaSteps, Service, extra, named

if TYPE_CHECKING:
    from holdfast.services.postgres.coordinator import PostgresCoordinator
    from holdfast.services.postgres.database import PostgresDatabase
    from holdfast.services.postgres.queue import PostgresQueue
    from holdfast.services.postgres.registry import PostgresRegistry
    from holdfast.services.postgres.state import PostgresState
    from holdfast.services.postgres.tasks import PostgresTasks


class PostgresService(Service):
    """Serves all ports. Ports with the same URL share the connections of their process."""

    example = "postgresql://localhost/postgres"
    briefs_with_outcomes = True

    def queue(self, opening: Opening, name: str) -> PostgresQueue:
        database = _database(opening)
        from holdfast.services.postgres.messages import PostgresMessages  # noqa: PLC0415
        from holdfast.services.postgres.queue import PostgresQueue  # noqa: PLC0415

        messages = opening.shared(
            ("postgres", "messages", opening.url), lambda: PostgresMessages(database, opening.clock)
        )
        return PostgresQueue(messages, name, opening.clock, max_bytes=opening.max_message_bytes)

    async def filled_queues(self, opening: Opening) -> list[str]:
        database = _database(opening)
        from holdfast.services.postgres.queue import filled  # noqa: PLC0415

        return await filled(database)

    async def queue_names(self, opening: Opening) -> list[str]:
        database = _database(opening)
        from holdfast.services.postgres.queue import all_names  # noqa: PLC0415

        return await all_names(database)

    async def task_apps(self, opening: Opening) -> list[str]:
        database = _database(opening)
        from holdfast.services.postgres.tasks import apps_of  # noqa: PLC0415

        return await apps_of(database)

    def coordinator(self, opening: Opening) -> PostgresCoordinator:
        database = _database(opening)
        from holdfast.services.postgres.coordinator import PostgresCoordinator  # noqa: PLC0415

        return PostgresCoordinator(database, opening.clock)

    def state(self, opening: Opening) -> PostgresState:
        database = _database(opening)
        from holdfast.services.postgres.state import PostgresState  # noqa: PLC0415

        return PostgresState(database, opening.clock, max_state_bytes=opening.max_state_bytes)

    async def risks(self, opening: Opening) -> list[Risk]:
        database = _database(opening)
        from holdfast.services.postgres import durability, horizon  # noqa: PLC0415

        return [*await durability.check(database), *await horizon.check(database)]

    async def database_health(self, opening: Opening) -> DatabaseHealth:
        database = _database(opening)
        from holdfast.services.postgres import horizon  # noqa: PLC0415

        return await horizon.health(database)

    def registry(self, opening: Opening) -> PostgresRegistry:
        database = _database(opening)
        from holdfast.services.postgres.registry import PostgresRegistry  # noqa: PLC0415

        return PostgresRegistry(database, opening.clock)

    def tasks(self, opening: Opening, app: str) -> PostgresTasks:
        database = _database(opening)
        from holdfast.services.postgres.tasks import PostgresTasks  # noqa: PLC0415

        return PostgresTasks(database, app, opening.clock, max_message_bytes=opening.max_message_bytes)

    async def schema_steps(self, opening: Opening) -> SchemaSteps:
        return await _database(opening).schema_steps()

    async def migrate(self, opening: Opening, *, contract: bool = False) -> list[int]:
        return await _database(opening).migrate(contract=contract)

    def grants(self, opening: Opening, role: str) -> list[str]:
        database = _database(opening)
        from holdfast.services.postgres.schema import grants  # noqa: PLC0415

        return grants(database.address.schema, role)

    def grants_to_send(self, opening: Opening, role: str, *, tasks: bool = False) -> list[str]:
        database = _database(opening)
        from holdfast.services.postgres import schema  # noqa: PLC0415

        statements = (*schema.GRANTS_TO_SEND, *(schema.GRANTS_TO_SEND_TASKS if tasks else ()))
        return schema.grants(database.address.schema, role, statements)


def _database(opening: Opening) -> PostgresDatabase:
    with extra("postgres", opening.setting):
        from holdfast.services.postgres.address import parse  # noqa: PLC0415
        from holdfast.services.postgres.database import PostgresDatabase  # noqa: PLC0415
    with named(opening.setting, opening.url):
        address = parse(opening.url)
    return opening.shared(
        ("postgres", opening.url),
        lambda: PostgresDatabase(
            address,
            opening.clock,
            opening.meter,
            lock_timeout_s=opening.lock_timeout_s,
            expands=opening.expands,
        ),
    )


service = PostgresService()
