"""Objects as files."""

from pathlib import Path

import pytest

from holdfast.errors import ConfigError, InvalidMessage, Unavailable
from holdfast.services.file.objects import FileObjects
from holdfast.testing.conformance import ObjectsConformance
from tests.power import Disk


@pytest.fixture
def objects(tmp_path: Path) -> FileObjects:
    return FileObjects(tmp_path / "frames")


class TestFileObjects(ObjectsConformance):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> FileObjects:
        return FileObjects(tmp_path / "frames", durable=False)


class TestFileObjectsReadInline(ObjectsConformance):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> FileObjects:
        return FileObjects(tmp_path / "frames", durable=False, read_in_thread=False)


async def test_the_url_of_an_object_names_its_file(objects: FileObjects) -> None:
    url = await objects.put("cam 1/000.jpg", b"x")
    assert url == f"file://{objects.root}/cam%201/000.jpg"
    assert (objects.root / "cam 1" / "000.jpg").read_bytes() == b"x"


async def test_a_host_of_localhost_is_ours(objects: FileObjects) -> None:
    url = await objects.put("a", b"x")
    assert await objects.get(url.replace("file://", "file://localhost")) == b"x"


async def test_urls_out_of_the_directory_are_refused(objects: FileObjects, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (objects.root / "link").symlink_to(tmp_path / "secret")
    for path in (
        f"{tmp_path}/secret",
        f"{objects.root}/../secret",
        f"{objects.root}/%2e%2e/secret",
        f"{objects.root}/link",
    ):
        with pytest.raises(InvalidMessage):
            await objects.get(f"file://{path}")


async def test_a_power_failure_takes_no_object_whose_url_was_returned(
    objects: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for name in ("cam/1/000.jpg", "cam/1/001.jpg", "cam/2/000.jpg"):
        await objects.put(name, name.encode())
        assert disk.found(objects.root / name, objects.root) == name.encode()


async def test_a_failed_put_leaves_nothing(objects: FileObjects) -> None:
    (objects.root / "a").mkdir()
    with pytest.raises(Unavailable, match="'a' can't be written"):
        await objects.put("a", b"x")
    assert [path.name for path in objects.root.iterdir()] == ["a"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/frames"):
        FileObjects(tmp_path / "file" / "frames")


async def test_what_is_no_whole_object_is_not_listed(objects: FileObjects, tmp_path: Path) -> None:
    url = await objects.put("a/b", b"x")
    (objects.root / "a" / ".put-1234").write_bytes(b"a part")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "c").write_bytes(b"secret")
    (objects.root / "a" / "link").symlink_to(tmp_path / "secret")
    (objects.root / "a" / "file").symlink_to(tmp_path / "secret" / "c")
    assert [each async for each in objects.urls("a")] == [url]


async def test_a_store_that_is_only_read_makes_no_folder(tmp_path: Path) -> None:
    store = FileObjects(tmp_path / "none", makes=False)
    assert [each async for each in store.urls("a")] == []
    assert not (tmp_path / "none").exists()
