"""The service that URLs of SQLite open: ``sqlite:///holdfast.db``, ``sqlite:////var/lib/holdfast.db``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from holdfast.extend import Opening, SchemaSteps, Service, path_in

if TYPE_CHECKING:
    from holdfast.services.sqlite.coordinator import SqliteCoordinator
    from holdfast.services.sqlite.database import Database
    from holdfast.services.sqlite.queue import SqliteQueue
    from holdfast.services.sqlite.registry import SqliteRegistry
    from holdfast.services.sqlite.state import SqliteState
    from holdfast.services.sqlite.tasks import SqliteTasks


class SqliteService(Service):
    """One file for all ports that name it, opened once."""

    example = "sqlite:///holdfast.db"
    one_host = True
    waits_for_locks = True

    def queue(self, opening: Opening, name: str) -> SqliteQueue:
        from holdfast.services.sqlite.queue import SqliteQueue  # noqa: PLC0415

        return SqliteQueue(_database(opening), name, opening.clock, max_bytes=opening.max_message_bytes)

    async def filled_queues(self, opening: Opening) -> list[str]:
        from holdfast.services.sqlite.queue import filled  # noqa: PLC0415

        return await filled(_database(opening))

    async def queue_names(self, opening: Opening) -> list[str]:
        from holdfast.services.sqlite.queue import names  # noqa: PLC0415

        return await names(_database(opening))

    async def task_apps(self, opening: Opening) -> list[str]:
        from holdfast.services.sqlite.tasks import apps_of  # noqa: PLC0415

        return await apps_of(_database(opening))

    def coordinator(self, opening: Opening) -> SqliteCoordinator:
        from holdfast.services.sqlite.coordinator import SqliteCoordinator  # noqa: PLC0415

        return SqliteCoordinator(_database(opening), opening.clock)

    def state(self, opening: Opening) -> SqliteState:
        from holdfast.services.sqlite.state import SqliteState  # noqa: PLC0415

        return SqliteState(_database(opening), opening.clock, max_state_bytes=opening.max_state_bytes)

    def tasks(self, opening: Opening, app: str) -> SqliteTasks:
        from holdfast.services.sqlite.tasks import SqliteTasks  # noqa: PLC0415

        return SqliteTasks(_database(opening), app, opening.clock)

    def registry(self, opening: Opening) -> SqliteRegistry:
        from holdfast.services.sqlite.registry import SqliteRegistry  # noqa: PLC0415

        return SqliteRegistry(_database(opening), opening.clock)

    async def schema_steps(self, opening: Opening) -> SchemaSteps:
        from holdfast.services.sqlite.schema import steps_of  # noqa: PLC0415

        return steps_of(_path(opening))

    async def migrate(self, opening: Opening, *, contract: bool = False) -> list[int]:
        from holdfast.services.sqlite import schema  # noqa: PLC0415

        before = (await self.schema_steps(opening)).version
        database = _database(opening)  # which expands it
        if contract:
            await database.write(lambda transaction: schema.contract(transaction.connection))
        after = (await self.schema_steps(opening)).version
        return [number for number, *_ in schema.migrations() if before < number <= after]

    def local_file(self, url: str) -> Path | None:
        return Path(unquote(urlsplit(url).path).removeprefix("/"))


def _path(opening: Opening) -> Path:
    return path_in(opening.setting, opening.url, SqliteService.example)


def _database(opening: Opening) -> Database:
    from holdfast.services.sqlite.database import Database  # noqa: PLC0415

    path = _path(opening)
    return opening.shared(
        ("sqlite", path),
        lambda: Database.open(
            path,
            opening.clock,
            durability=opening.durability,
            lock_timeout_s=opening.lock_timeout_s,
            access=None if opening.reads_only else opening.access,
            expands=opening.expands,
        ),
    )


service = SqliteService()
