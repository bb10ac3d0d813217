"""The promises of every back-up of dead letters."""

from __future__ import annotations

import pytest

from holdfast.ports.backup import Backup, Kept
from holdfast.ports.queue import DeadLetter

ODD = "käse \N{SNOWMAN} '\"%_\\;-- {x} \r\n\t"


def kept(name: str, at: float, app: str = "reports") -> Kept:
    """Make a dead letter of which only the name matters."""
    return Kept(app, "publish", DeadLetter(f"publish/{name}", b"{}", "failed", key=name, at=at))


@pytest.mark.asyncio
class BackupConformance:
    """Every promise of the backup port. Fixture: ``backup``, new and empty."""

    @pytest.fixture
    def backup(self) -> Backup:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture backup")

    @pytest.fixture
    def other_backup(self, backup: Backup) -> Backup:
        """Override if several clients may share the back-up: another client of the same one."""
        return backup

    async def test_an_empty_back_up_has_no_dead_letters(self, backup: Backup) -> None:
        assert await backup.add([]) == 0
        assert [found async for found in backup.dead_letters("reports")] == []

    async def test_a_dead_letter_comes_back_as_it_was(self, backup: Backup, other_backup: Backup) -> None:
        letter = DeadLetter(
            id=f"publish/{ODD}",
            body=bytes(range(256)),
            reason=f"failed: {ODD}",
            attributes={"id": ODD, "spare": "3"},
            detail=f"Traceback\n  {ODD}" * 1000,
            key=ODD,
            at=1_700_000_000.123456,
        )
        assert await backup.add([Kept("reports", "re.publish", letter)]) == 1
        (found,) = [found async for found in other_backup.dead_letters("reports")]
        assert found == Kept("reports", "re.publish", letter)

    async def test_each_is_kept_once_and_once_more_if_it_failed_again(
        self, backup: Backup, other_backup: Backup
    ) -> None:
        first, again, other = kept("a", 1.5), kept("a", 2.5), kept("b", 1.5)
        assert await backup.add([first, first]) == 1
        assert await other_backup.add([first, again, other]) == 2
        assert await backup.add([again, other]) == 0
        assert [found async for found in backup.dead_letters("reports")] == [first, other, again]

    async def test_an_app_sees_no_dead_letters_of_another(self, backup: Backup) -> None:
        mine, theirs = kept("a", 1.0), kept("a", 1.0, app="invoices")
        assert await backup.add([mine, theirs]) == 2
        assert [found async for found in backup.dead_letters("reports")] == [mine]
        assert [found async for found in backup.dead_letters("invoices")] == [theirs]

    async def test_many_dead_letters_come_back_oldest_first(self, backup: Backup) -> None:
        many = [kept(f"{n:04}", at=1000.0 - n // 2) for n in range(1201)]
        assert await backup.add(many) == len(many)
        expected = sorted(many, key=lambda kept: (kept.dead_letter.at, kept.dead_letter.id))
        assert [found async for found in backup.dead_letters("reports")] == expected

    async def test_a_text_of_any_kind_is_kept(self, backup: Backup) -> None:
        letter = DeadLetter("publish/nul", b"\0", "failed: \0", detail="\0", key="nul", at=1.0)
        assert await backup.add([Kept("reports", "publish", letter)]) == 1
        (found,) = [found async for found in backup.dead_letters("reports")]
        assert found.dead_letter.body == b"\0"
