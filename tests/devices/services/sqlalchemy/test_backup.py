"""Dead letters in a table of SQLite and of PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.devices.services.sqlalchemy.backup import SqlBackup
from holdfast.errors import ConfigError
from holdfast.testing.conformance import BackupConformance
from simulator.servers import PostgresqlServer


class SqlConformance(BackupConformance):
    @pytest.fixture
    async def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    async def backup(self, url: str) -> AsyncIterator[SqlBackup]:
        backup = SqlBackup(url)
        yield backup
        await backup.close()

    @pytest.fixture
    async def other_backup(self, url: str) -> AsyncIterator[SqlBackup]:
        backup = SqlBackup(url)
        yield backup
        await backup.close()


class TestSqlite(SqlConformance):
    @pytest.fixture
    async def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/letters.db"


class TestPostgresql(SqlConformance):
    @pytest.fixture
    async def url(self, postgresql_server: PostgresqlServer) -> str:
        return postgresql_server.url


def test_a_backup_in_another_kind_of_database_is_refused() -> None:
    with pytest.raises(ConfigError, match="sqlite:/// or postgresql://"):
        SqlBackup("mysql://root@host/letters")
