"""The promises of every registry."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import TooLarge
from holdfast.ports.registry import Document, Registry

PATIENCE_S = 10.0
"""Seconds for which a test waits for an expected event."""

ODD_NAMES = ["k", "a/b//c", "käse \N{SNOWMAN}", "'\"%_\\;--", "*?[x]{y}:z", "..", "x" * 256]


@pytest.mark.asyncio
class RegistryConformance:
    """Every promise of the registry port. Fixture: ``registry``, new and empty, with a small ``max_bytes``
    (1 MiB, say; at least 1 kB)."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a few calls to be answered in."""

    @pytest.fixture
    def registry(self) -> Registry:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture registry")

    @pytest.fixture
    def other_registry(self, registry: Registry) -> Registry:
        """Override if several clients may share a registry: another client of the same one."""
        return registry

    # --- compare and set

    async def test_an_unknown_document_is_neither_read_dropped_nor_replaced(self, registry: Registry) -> None:
        assert await registry.get("apps/a") is None
        assert await registry.list("") == []
        assert not await registry.drop("apps/a", 0)
        assert not await registry.drop("apps/a", 1)
        assert await registry.put("apps/a", b"x", 1) is None
        assert await registry.get("apps/a") is None

    async def test_a_document_is_written_and_read(self, registry: Registry, other_registry: Registry) -> None:
        body = bytes(range(256))
        first = await registry.put("apps/a", body, 0)
        assert first is not None
        assert first == Document("apps/a", first.version, body)
        assert first.version > 0
        assert await other_registry.get("apps/a") == first
        second = await other_registry.put("apps/a", b"", first.version)
        assert second is not None
        assert second.version > first.version
        assert await registry.get("apps/a") == second == Document("apps/a", second.version, b"")

    async def test_another_version_refuses_a_write(self, registry: Registry) -> None:
        first = await registry.put("apps/a", b"one", 0)
        assert first is not None
        second = await registry.put("apps/a", b"two", first.version)
        assert second is not None
        for wrong in (0, first.version, second.version + 1):
            assert await registry.put("apps/a", b"wrong", wrong) is None
            assert not await registry.drop("apps/a", wrong)
        assert await registry.get("apps/a") == second

    async def test_the_version_of_a_dropped_document_never_comes_again(self, registry: Registry) -> None:
        first = await registry.put("apps/a", b"one", 0)
        assert first is not None
        assert await registry.drop("apps/a", first.version)
        assert await registry.get("apps/a") is None
        assert not await registry.drop("apps/a", first.version)
        assert await registry.put("apps/a", b"wrong", first.version) is None
        second = await registry.put("apps/a", b"one", 0)
        assert second is not None
        assert second.version > first.version

    async def test_one_of_several_writes_wins(self, registry: Registry, other_registry: Registry) -> None:
        standing = await registry.put("apps/a", b"", 0)
        for _ in range(3):
            assert standing is not None
            answers = await asyncio.gather(
                *(
                    client.put("apps/a", b"%d" % i, standing.version)
                    for i, client in enumerate([registry, other_registry] * 4)
                )
            )
            [standing] = [answer for answer in answers if answer is not None]
            assert await registry.get("apps/a") == standing

    async def test_no_write_of_many_is_lost(self, registry: Registry, other_registry: Registry) -> None:
        async def count(client: Registry) -> None:
            for _ in range(10):
                while True:
                    found = await client.get("count")
                    number, version = (int(found.body), found.version) if found else (0, 0)
                    await asyncio.sleep(0)  # let others read too
                    if await client.put("count", b"%d" % (number + 1), version):
                        break

        await asyncio.gather(*(count(client) for client in [registry, other_registry] * 2))
        found = await registry.get("count")
        assert found is not None
        assert found.body == b"40"

    async def test_a_document_over_the_limit_is_refused(self, registry: Registry) -> None:
        with pytest.raises(TooLarge, match=str(registry.max_bytes)):
            await registry.put("apps/a", bytes(registry.max_bytes + 1), 0)
        assert await registry.get("apps/a") is None
        assert await registry.put("apps/a", bytes(registry.max_bytes), 0) is not None

    # --- names

    async def test_documents_are_listed_by_prefix(self, registry: Registry) -> None:
        names = ["apps/b", "apps/a", "apps/a/nodes", "apps", "limits/a", "Apps/a", "apps0", "apps%/x"]
        made = {name: await registry.put(name, name.encode(), 0) for name in names}
        for prefix in ("", "apps/", "apps/a", "limits/a", "apps%", "none"):
            wanted = [made[name] for name in sorted(names) if name.startswith(prefix)]
            assert await registry.list(prefix) == wanted

    async def test_a_document_with_an_odd_name_is_stored_and_listed(
        self, registry: Registry, other_registry: Registry
    ) -> None:
        for name in ODD_NAMES:
            made = await registry.put(name, name.encode(), 0)
            assert made is not None
            assert await other_registry.get(name) == made
            assert made in await other_registry.list(name)
        assert [document.name for document in await registry.list("")] == sorted(ODD_NAMES)

    # --- waiting

    async def test_a_waiting_call_wakes_at_a_change(
        self, registry: Registry, other_registry: Registry
    ) -> None:
        standing: Document | None = None
        for body in (b"one", b"two"):
            version = standing.version if standing else 0
            waiting = asyncio.create_task(registry.changed("apps/a", version, 3 * PATIENCE_S))
            await asyncio.sleep(0)  # it begins to wait
            await other_registry.put("apps/other", body, await self._version(other_registry, "apps/other"))
            standing = await other_registry.put("apps/a", body, version)
            assert standing is not None
            assert await asyncio.wait_for(waiting, PATIENCE_S) == standing
        assert standing is not None
        waiting = asyncio.create_task(registry.changed("apps/a", standing.version, 3 * PATIENCE_S))
        await asyncio.sleep(0)
        assert await other_registry.drop("apps/a", standing.version)
        assert await asyncio.wait_for(waiting, PATIENCE_S) is None

    async def test_an_earlier_change_is_returned_at_once(self, registry: Registry) -> None:
        made = await registry.put("apps/a", b"one", 0)
        assert made is not None
        for known in (0, made.version + 1):
            waiting = registry.changed("apps/a", known, 3 * PATIENCE_S)
            assert await asyncio.wait_for(waiting, PATIENCE_S) == made
        waiting = registry.changed("apps/b", made.version, 3 * PATIENCE_S)
        assert await asyncio.wait_for(waiting, PATIENCE_S) is None

    async def test_a_waiting_call_ends_in_time(self, registry: Registry) -> None:
        made = await registry.put("apps/a", b"one", 0)
        assert made is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await registry.changed("apps/a", made.version, self.tick_s) == made
            assert await registry.changed("apps/b", 0, 0.0) is None

    async def test_none_of_many_changes_is_missed(self, registry: Registry, other_registry: Registry) -> None:
        async def write() -> None:
            version = 0
            for number in range(30):
                made = await other_registry.put("count", b"%d" % number, version)
                assert made is not None
                version = made.version

        async def follow() -> None:
            version = 0
            while True:
                found = await registry.changed("count", version, 3 * PATIENCE_S)
                assert found is not None
                assert found.version > version
                version = found.version
                if found.body == b"29":
                    return

        async with asyncio.timeout(2 * PATIENCE_S):
            await asyncio.gather(follow(), write())

    @staticmethod
    async def _version(registry: Registry, name: str) -> int:
        found = await registry.get(name)
        return found.version if found else 0
