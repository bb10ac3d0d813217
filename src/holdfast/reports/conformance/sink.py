"""The tests that every sink must pass."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from holdfast.errors import AlreadyThere, Damaged, HoldfastError, InvalidMessage, Unavailable
from holdfast.reports.ports.sink import Sink, Upload
from holdfast.reports.rules.remote_name import temporary

BAD_NAMES = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a\0b",
    "a\r\nDELE b",
    "a\\b",
    "x" * 300,
]
ODD_NAMES = ["report 1.csv", "2026/11/21/a+b.csv", "käse/\N{SNOWMAN}.csv", "-rf", "a'b\"c;d", "x" * 200]

NAME = "reports/daily.csv"
OLD, NEW = temporary(NAME, "1"), temporary(NAME, "2")


def part(number: int, size: int = 300_000) -> bytes:
    """Return bytes that differ between parts, and between places in a part."""
    return hashlib.sha256(str(number).encode()).digest() * (size // 32)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def held(sink: Sink, name: str) -> bytes | None:
    """Return a finished file's bytes, or None."""
    try:
        return b"".join([chunk async for chunk in sink.read(name)])
    except FileNotFoundError:
        return None


async def put(sink: Sink, name: str, data: bytes, *, attempt: str = "0", replace: bool = True) -> None:
    upload = await sink.open(name, temporary(name, attempt), replace=replace)
    await upload.write(data)
    await upload.commit(sha256(data))


@pytest.mark.asyncio
class SinkConformance:
    """Tests of all promises of the sink port. Fixtures: ``sink``, with an empty destination, and
    ``other_sink``, another connection to it.

    ``grain``: the bytes that must be written for the service to hold a part of a file.
    """

    grain = 100_000

    @pytest.fixture
    def sink(self) -> Sink:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture sink")

    @pytest.fixture
    def other_sink(self) -> Sink:
        """Override: another connection to the same destination."""
        raise NotImplementedError("define the fixture other_sink")

    async def arrived(self, upload: Upload) -> None:
        """Override if a write may end before the service has the bytes: wait until it has some of them."""

    async def test_a_file_is_there_once_it_is_committed(self, sink: Sink, other_sink: Sink) -> None:
        parts = [part(n) for n in range(5)]
        upload = await sink.open(NAME, NEW)
        assert upload.held == 0
        for each in parts:
            await upload.write(each)
            assert await other_sink.stat(NAME) is None
            assert await held(other_sink, NAME) is None
        body = b"".join(parts)
        made = await upload.commit(sha256(body))
        assert (made.name, made.size) == (NAME, len(body))
        assert await other_sink.stat(NAME) == made
        assert await held(other_sink, NAME) == body

    async def test_a_committed_file_leaves_no_temporary_beside_it(self, sink: Sink) -> None:
        await put(sink, NAME, b"x")
        assert await sink.stat(temporary(NAME, "0")) is None

    async def test_files_of_few_bytes_or_none_arrive_whole(self, sink: Sink) -> None:
        for size in (0, 1, 10):
            await put(sink, NAME, b"x" * size, attempt=str(size))
            found = await sink.stat(NAME)
            assert found is not None
            assert found.size == size
            assert await held(sink, NAME) == b"x" * size

    async def test_a_file_of_no_writes_is_empty(self, sink: Sink) -> None:
        upload = await sink.open(NAME, NEW)
        assert (await upload.commit(sha256(b""))).size == 0
        assert await held(sink, NAME) == b""

    async def test_memory_views_are_written_as_bytes_are(self, sink: Sink) -> None:
        body = part(1)
        upload = await sink.open(NAME, NEW)
        await upload.write(memoryview(body)[:100_000])
        await upload.write(memoryview(body)[100_000:])
        await upload.commit(sha256(body))
        assert await held(sink, NAME) == body

    async def test_a_file_with_an_odd_name_is_written_and_read(self, sink: Sink) -> None:
        for name in ODD_NAMES:
            await put(sink, name, name.encode())
            assert await held(sink, name) == name.encode()

    async def test_unsafe_names_are_refused_and_the_connection_still_works(self, sink: Sink) -> None:
        for name in BAD_NAMES:
            with pytest.raises(InvalidMessage):
                await sink.open(name, NEW)
            with pytest.raises(InvalidMessage):
                await sink.stat(name)
            with pytest.raises(InvalidMessage):
                await held(sink, name)
        await put(sink, NAME, b"x")

    async def test_a_missing_file_is_not_found(self, sink: Sink) -> None:
        for name in ("nowhere.csv", "no/such/folder/a.csv"):
            assert await sink.stat(name) is None
            with pytest.raises(FileNotFoundError):
                await anext(aiter(sink.read(name)))

    async def test_files_are_written_one_after_the_other(self, sink: Sink) -> None:
        for n in range(5):
            await put(sink, f"many/{n}.csv", part(n))
        for n in range(5):
            assert await held(sink, f"many/{n}.csv") == part(n)

    async def test_a_file_is_replaced_at_once(self, sink: Sink, other_sink: Sink) -> None:
        await put(sink, NAME, part(1))
        upload = await sink.open(NAME, NEW)
        await upload.write(part(2))
        assert await held(other_sink, NAME) == part(1)
        await upload.commit(sha256(part(2)))
        assert await held(other_sink, NAME) == part(2)

    async def test_the_version_changes_with_the_content(self, sink: Sink) -> None:
        await put(sink, NAME, b"one")
        first = await sink.stat(NAME)
        await put(sink, NAME, b"one", attempt="1")
        assert await sink.stat(NAME) == first
        await put(sink, NAME, b"two", attempt="2")
        second = await sink.stat(NAME)
        assert first is not None
        assert second is not None
        assert (first.version != second.version) == bool(first.version)

    async def test_an_existing_file_is_not_replaced_against_orders(self, sink: Sink) -> None:
        await put(sink, NAME, part(1))
        with pytest.raises(AlreadyThere):
            await put(sink, NAME, part(2), attempt="1", replace=False)
        assert await held(sink, NAME) == part(1)
        await put(sink, "reports/other.csv", part(2), replace=False)
        assert await held(sink, "reports/other.csv") == part(2)

    async def test_of_two_uploads_that_must_not_replace_the_first_is_kept(
        self, sink: Sink, other_sink: Sink
    ) -> None:
        first = await sink.open(NAME, OLD, replace=False)
        second = await other_sink.open(NAME, NEW, replace=False)
        await first.write(part(1))
        await second.write(part(2))
        await first.commit(sha256(part(1)))
        with pytest.raises(AlreadyThere):
            await second.commit(sha256(part(2)))
        await second.abort()
        assert await held(sink, NAME) == part(1)

    async def test_two_uploads_at_once_leave_one_whole_file(self, sink: Sink, other_sink: Sink) -> None:
        uploads = [await sink.open(NAME, OLD), await other_sink.open(NAME, NEW)]

        async def send(upload: Upload, number: int) -> None:
            for _ in range(10):
                await upload.write(part(number))
            await upload.commit(sha256(part(number) * 10))

        ends = await asyncio.gather(
            *(send(upload, n) for n, upload in enumerate(uploads)), return_exceptions=True
        )
        assert None in ends
        assert all(end is None or isinstance(end, Unavailable) for end in ends), ends
        assert await held(sink, NAME) in (part(0) * 10, part(1) * 10)

    async def test_an_aborted_upload_leaves_nothing(self, sink: Sink, other_sink: Sink) -> None:
        upload = await sink.open(NAME, NEW)
        await upload.write(part(1, 2 * self.grain))
        await upload.abort()
        await upload.abort()
        assert await sink.stat(NAME) is None
        assert await other_sink.resume(NAME, OLD, upload.token) is None
        await put(sink, NAME, part(2))
        assert await held(other_sink, NAME) == part(2)

    async def test_abort_after_a_commit_does_nothing(self, sink: Sink) -> None:
        upload = await sink.open(NAME, NEW)
        await upload.write(part(1))
        await upload.commit(sha256(part(1)))
        await upload.abort()
        await upload.leave()
        assert await held(sink, NAME) == part(1)

    async def test_an_upload_that_was_left_is_resumed(self, sink: Sink, other_sink: Sink) -> None:
        if not sink.can_resume:
            pytest.skip("this sink can't resume uploads")
        body = part(1, 3 * self.grain + 200_000)
        first = await sink.open(NAME, OLD)
        await first.write(body[: 2 * self.grain + 100_000])
        await first.leave()
        second = await other_sink.resume(NAME, NEW, first.token)
        assert second is not None
        assert 2 * self.grain <= second.held <= 2 * self.grain + 100_000
        at = self.grain - self.grain % second.grain
        await second.skip(at)
        await second.write(body[at:])
        assert await sink.stat(NAME) is None
        await second.commit(sha256(body))
        assert await held(other_sink, NAME) == body

    async def test_a_resumed_upload_is_not_committed_by_its_former_owner(
        self, sink: Sink, other_sink: Sink
    ) -> None:
        if not sink.can_resume:
            pytest.skip("this sink can't resume uploads")
        body = part(1, 3 * self.grain)
        first = await sink.open(NAME, OLD)
        await first.write(body)
        await self.arrived(first)
        second = await other_sink.resume(NAME, NEW, first.token)
        assert second is not None
        at = self.grain - self.grain % second.grain
        await second.skip(at)
        await second.write(body[at : 2 * self.grain])
        try:
            await first.commit(sha256(body))
        except (Damaged, Unavailable):
            await first.abort()
            assert await held(sink, NAME) is None
        else:  # a service that completes uploads by their parts may accept the first one
            assert await held(sink, NAME) == body
        try:
            await second.write(body[2 * self.grain :])
            await second.commit(sha256(body))
        except Unavailable:
            await second.abort()
            await put(other_sink, NAME, body, attempt="3")
        assert await held(other_sink, NAME) == body

    async def test_an_unknown_upload_is_not_resumed(self, sink: Sink) -> None:
        assert await sink.resume(NAME, NEW, OLD) is None
        await put(sink, NAME, b"x")
        assert await held(sink, NAME) == b"x"

    async def test_an_upload_that_was_left_can_be_discarded(self, sink: Sink, other_sink: Sink) -> None:
        first = await sink.open(NAME, OLD)
        await first.write(part(1, 2 * self.grain))
        await first.leave()
        await other_sink.discard(NAME, first.token)
        await other_sink.discard(NAME, first.token)
        await other_sink.discard(NAME, OLD)
        assert await other_sink.resume(NAME, NEW, first.token) is None
        assert await other_sink.stat(NAME) is None

    async def test_a_file_that_differs_when_read_back_is_damaged(self, sink: Sink) -> None:
        upload = await sink.open(NAME, NEW)
        await upload.write(part(1))
        await upload.commit(sha256(part(1)), read_back=True)
        if not sink.can_rename:
            return
        upload = await sink.open("other.csv", temporary("other.csv", "1"))
        await upload.write(part(1))
        with pytest.raises(Damaged):
            await upload.commit(sha256(part(2)), read_back=True)
        await upload.abort()
        assert await sink.stat("other.csv") is None

    async def test_a_file_may_be_written_in_place(self, sink: Sink, other_sink: Sink) -> None:
        for number, replace in ((1, False), (2, True)):
            upload = await sink.open(NAME, NAME, replace=replace)
            await upload.write(part(number, 300_000 // number))
            await upload.commit(sha256(part(number, 300_000 // number)))
            assert await held(other_sink, NAME) == part(number, 300_000 // number)
        with pytest.raises(AlreadyThere):
            await sink.open(NAME, NAME, replace=False)
        assert await held(sink, NAME) == part(2, 150_000)

    async def test_a_folder_is_not_taken_for_a_file(self, sink: Sink) -> None:
        await put(sink, "folder/a.csv", b"x")
        assert await sink.stat("folder") is None

    async def test_cancelled_writes_leave_nothing_once_aborted(self, sink: Sink, other_sink: Sink) -> None:
        upload = await sink.open(NAME, NEW)
        began = asyncio.Event()

        async def send() -> None:
            while True:
                await upload.write(part(1))
                began.set()
                await asyncio.sleep(0)

        task = asyncio.create_task(send())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upload.abort()
        assert await other_sink.stat(NAME) is None
        assert await other_sink.resume(NAME, OLD, upload.token) is None

    async def test_a_closed_sink_refuses_and_may_close_again(self, sink: Sink) -> None:
        await put(sink, NAME, b"x")
        await sink.close()
        await sink.close()
        if hasattr(sink, "root"):
            return  # a folder of this machine has no connection
        with pytest.raises(HoldfastError):
            await sink.stat(NAME)
