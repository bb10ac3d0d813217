"""The promises of every object store."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import InvalidMessage
from holdfast.ports.objects import Objects

ODD_NAMES = [
    "frame.jpg",
    "cam-1/0/000001.jpg",
    "a b/c+d/e%20f/g%2Fh",
    "käse/\N{SNOWMAN}.jpg",
    "q?x=1&y=2#z",
    "-dash/~tilde/.hidden/..dots/dots..",
    "'\"\\;:*|<>",
]

BAD_NAMES = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a/./b", "a\0b"]


@pytest.mark.asyncio
class ObjectsConformance:
    """Every promise of the objects port. Fixture: ``objects``, new and empty."""

    @pytest.fixture
    def objects(self) -> Objects:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture objects")

    async def test_an_object_is_read_as_it_was_put(self, objects: Objects) -> None:
        for body in (b"", b"x", bytes(range(256)) * 1000):
            assert await objects.get(await objects.put("a/b", body)) == body

    async def test_an_object_with_an_odd_name_is_stored_and_read(self, objects: Objects) -> None:
        urls = {name: await objects.put(name, name.encode()) for name in ODD_NAMES}
        assert len(set(urls.values())) == len(ODD_NAMES)
        assert {name: await objects.get(url) for name, url in urls.items()} == {
            n: n.encode() for n in ODD_NAMES
        }

    async def test_the_url_of_a_name_is_that_of_its_object(self, objects: Objects) -> None:
        for name in ODD_NAMES:
            assert objects.url(name) == await objects.put(name, b"x")
        for name in BAD_NAMES:
            with pytest.raises(InvalidMessage):
                objects.url(name)

    async def test_the_url_of_an_odd_name_is_plain_ascii(self, objects: Objects) -> None:
        for name in ODD_NAMES:
            url = await objects.put(name, b"x")
            assert url.isascii()
            assert url.isprintable()
            assert " " not in url
            assert "://" in url

    async def test_a_missing_object_is_not_found(self, objects: Objects) -> None:
        url = await objects.put("a/b.jpg", b"x")
        for missing in (url.replace("b.jpg", "c.jpg"), url + "/c", url.replace("/b.jpg", "")):
            with pytest.raises(FileNotFoundError):
                await objects.get(missing)

    async def test_names_that_climb_or_are_empty_are_refused(self, objects: Objects) -> None:
        for name in BAD_NAMES:
            with pytest.raises(InvalidMessage):
                await objects.put(name, b"x")

    async def test_what_is_below_a_name_is_listed(self, objects: Objects) -> None:
        below = [f"a b/{name}" for name in ODD_NAMES]
        listed = {await objects.put(name, b"x") for name in below}
        for other in ("a bc/d", "a", "c/a b/d"):
            await objects.put(other, b"x")
        assert {url async for url in objects.urls("a b")} == listed
        assert [url async for url in objects.urls("a b/cam-1")] == [
            await objects.put("a b/cam-1/0/000001.jpg", b"x")
        ]
        assert [url async for url in objects.urls("none")] == []
        for bad in BAD_NAMES:
            with pytest.raises(InvalidMessage):
                [url async for url in objects.urls(bad)]

    async def test_a_url_that_climbs_out_of_its_folder_is_refused(self, objects: Objects) -> None:
        url = await objects.put("a/b", b"x")
        for climbing in ("a/../a/b", "../a/b", "a/%2e%2e/a/b", "%2e%2e%2fb", "..", "a/..%2fb", "a%00b"):
            with pytest.raises((InvalidMessage, FileNotFoundError)):
                await objects.get(url.removesuffix("a/b") + climbing)

    async def test_what_is_no_url_of_this_store_is_refused(self, objects: Objects) -> None:
        for url in (
            "",
            "frame.jpg",
            "/etc/passwd",
            "gopher://example.test/x",
            "://",
            "memory:",
            "s3:/",
            "file:x",
        ):
            with pytest.raises(InvalidMessage):
                await objects.get(url)

    async def test_putting_again_never_shows_a_part(self, objects: Objects) -> None:
        bodies = [bytes([i]) * 200_000 for i in range(4)]
        url = await objects.put("a", bodies[0])

        async def put(body: bytes) -> None:
            for _ in range(5):
                assert await objects.put("a", body) == url

        async def get() -> None:
            for _ in range(10):
                assert await objects.get(url) in bodies

        await asyncio.gather(*(put(body) for body in bodies), get(), get())
        assert await objects.get(url) in bodies
