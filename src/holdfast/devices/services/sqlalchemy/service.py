"""The backup that URLs of SQL databases open: ``sqlite:///letters.db``, ``postgresql://user@host/office``."""

from __future__ import annotations

from holdfast.extend import Access, Backup, extra, named


def backup(setting: str, url: str, access: Access) -> Backup:
    """Open dead letters in a table."""
    with extra("outbox", setting):
        from holdfast.devices.services.sqlalchemy.backup import SqlBackup  # noqa: PLC0415
    with named(setting, url):
        return SqlBackup(url, access)
