"""Bases in their other forms, and what is read of them."""

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import ConfigError, Damaged
from holdfast.image import base as bases_module
from holdfast.image import contents
from holdfast.image.base import open_base
from holdfast.image.blobs import Blobs
from holdfast.image.oci import CONFIG, MANIFEST
from holdfast.image.platform import Libc, Platform, parse
from tests.image.conftest import AMD64, BaseFolder, archive, debian

AMD = Platform("amd64")


async def facts_of(name: str, blobs: Blobs) -> contents.Facts:
    source = bases_module.local(name, blobs)
    assert source is not None
    return await contents.facts(await open_base(source, AMD), blobs)


def docker_archive(path: Path, layer: bytes, diff_id: str = "") -> str:
    """What `docker save` writes, before it wrote OCI's layout too."""
    named = diff_id or f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = msgspec.json.encode(AMD64 | {"config": {}, "rootfs": {"type": "layers", "diff_ids": [named]}})
    manifest = msgspec.json.encode([{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l/layer.tar"]}])
    with tarfile.open(path, "w") as tar:
        for name, data in (("c.json", config), ("l/layer.tar", layer), ("manifest.json", manifest)):
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return f"docker-archive:{path}"


async def test_an_archive_of_docker_is_a_base(tmp_path: Path, blobs: Blobs) -> None:
    found = await facts_of(docker_archive(tmp_path / "base.tar", debian()), blobs)
    assert found == contents.Facts("/usr/bin/python3.11", 11, Libc("glibc", 36))


async def test_a_layer_that_is_not_what_its_image_names_is_refused(tmp_path: Path, blobs: Blobs) -> None:
    name = docker_archive(tmp_path / "base.tar", debian(), f"sha256:{'0' * 64}")
    with pytest.raises(Damaged, match="is not what its image names"):
        await facts_of(name, blobs)


async def test_a_blob_that_is_damaged_is_refused(bases: BaseFolder, blobs: Blobs) -> None:
    name = bases.top(bases.image([debian()], AMD64))
    for path in (bases.folder / "blobs/sha256").iterdir():
        path.write_bytes(path.read_bytes().replace(b"amd64", b"amd65"))
    with pytest.raises(Damaged):
        await facts_of(name, blobs)


async def test_layers_of_a_base_packed_by_zstd_are_read(bases: BaseFolder, blobs: Blobs) -> None:
    from backports import zstd

    system = debian()
    packed = bases.put(zstd.compress(system), "application/vnd.oci.image.layer.v1.tar+zstd")
    image = bases.of_layers([packed], [f"sha256:{hashlib.sha256(system).hexdigest()}"], AMD64)
    assert (await facts_of(bases.top(image), blobs)).python_minor == 11


async def test_a_base_with_musl_gets_packages_for_musl(bases: BaseFolder, blobs: Blobs) -> None:
    alpine = archive(
        {
            "lib/ld-musl-x86_64.so.1": b"ELF",
            "usr/local/bin/python3.13": b"ELF",
            "usr/local/bin/python3": "python3.13",
        }
    )
    found = await facts_of(bases.top(bases.image([alpine], AMD64)), blobs)
    assert (found.python, found.libc) == ("/usr/local/bin/python3.13", Libc("musl"))
    assert AMD.for_uv(found.libc) == "x86_64-unknown-linux-musl"


async def test_a_layer_that_hides_a_folder_hides_what_was_in_it(bases: BaseFolder, blobs: Blobs) -> None:
    newer = archive(
        {"usr/bin/.wh..wh..opq": b"", "usr/bin/python3.12": b"ELF", "usr/bin/python3": "python3.12"}
    )
    found = await facts_of(bases.top(bases.image([debian(), newer], AMD64)), blobs)
    assert found.python == "/usr/bin/python3.12"


async def test_what_is_no_image_is_told(tmp_path: Path, blobs: Blobs) -> None:
    for name in (
        f"oci:{tmp_path}",
        f"oci-archive:{tmp_path}/none.tar",
        f"docker-archive:{tmp_path}/none.tar",
    ):
        with pytest.raises(ConfigError, match="can't be read as an image"):
            await facts_of(name, blobs)


async def test_a_tag_chooses_among_the_images_of_a_folder(bases: BaseFolder, blobs: Blobs) -> None:
    name = bases.top(bases.image([debian()], AMD64), "bookworm")
    assert (await facts_of(f"{name}:bookworm", blobs)).python_minor == 11
    with pytest.raises(ConfigError, match="tags are bookworm"):
        await facts_of(f"{name}:trixie", blobs)


def test_platforms_and_variants_are_told_apart() -> None:
    assert parse("linux/arm64") == Platform("arm64")
    assert Platform("arm64").fits({"os": "linux", "architecture": "arm64", "variant": "v8"})
    assert Platform("arm64", "v8").fits({"os": "linux", "architecture": "arm64"})
    assert not Platform("arm64", "v9").fits({"os": "linux", "architecture": "arm64"})
    with pytest.raises(ConfigError, match="windows/amd64"):
        parse("windows/amd64")


def test_wheels_are_for_no_newer_glibc_than_the_base_has() -> None:
    assert AMD.for_uv(Libc("glibc", 30)) == "x86_64-manylinux_2_28"
    assert AMD.for_uv(Libc("glibc", 99)) == "x86_64-manylinux_2_40"
    with pytest.raises(ConfigError, match="newer base"):
        AMD.for_uv(Libc("glibc", 12))


@pytest.mark.parametrize(
    "links", [{"a/layer.tar": "layer.tar"}, {"a/layer.tar": "../b/l", "b/l": "../a/layer.tar"}]
)
async def test_links_that_lead_in_a_circle_end(
    tmp_path: Path, blobs: Blobs, links: dict[str, bytes | str]
) -> None:
    config = msgspec.json.encode(AMD64 | {"rootfs": {"diff_ids": ["sha256:0"]}})
    manifest = msgspec.json.encode([{"Config": "c.json", "Layers": ["a/layer.tar"]}])
    path = tmp_path / "base.tar"
    held: dict[str, bytes | str] = {"c.json": config, "manifest.json": manifest}
    path.write_bytes(archive(held | links))
    with pytest.raises(ConfigError, match="links follow one another"):
        await facts_of(f"docker-archive:{path}", blobs)


async def test_a_layer_that_is_a_link_to_that_of_another_image_is_read(tmp_path: Path, blobs: Blobs) -> None:
    system = debian()
    diff_id = f"sha256:{hashlib.sha256(system).hexdigest()}"
    config = msgspec.json.encode(AMD64 | {"config": None, "rootfs": {"diff_ids": [diff_id]}})
    manifest = msgspec.json.encode([{"Config": "c.json", "Layers": ["a/layer.tar"]}])
    path = tmp_path / "base.tar"
    held: dict[str, bytes | str] = {
        "c.json": config,
        "manifest.json": manifest,
        "a/layer.tar": "../b/layer.tar",
        "b/layer.tar": system,
    }
    path.write_bytes(archive(held))
    assert (await facts_of(f"docker-archive:{path}", blobs)).python_minor == 11


@pytest.mark.parametrize(
    "name, content",
    [
        ("index.json", b"["),
        ("index.json", b"{}"),
        ("index.json", b"[]"),
        ("index.json", b'{"manifests": [{"digest": 1}]}'),
        ("manifest", b"not JSON"),
        ("manifest", b'{"schemaVersion": 2}'),
        ("config", b'{"os": "linux", "architecture": "amd64"}'),
        ("config", b'{"os": 1, "architecture": "amd64", "rootfs": {"diff_ids": []}}'),
        ("layer", b"no archive"),
    ],
)
async def test_a_folder_with_a_document_that_is_none_is_told(
    bases: BaseFolder, blobs: Blobs, name: str, content: bytes
) -> None:
    held = {
        "layer": debian(),
        "config": msgspec.json.encode(AMD64 | {"rootfs": {"diff_ids": ["sha256:0"]}}),
    } | {name: content}
    packed = bases.put(held["layer"], "application/vnd.oci.image.layer.v1.tar+gzip")
    configured = bases.put(held["config"], CONFIG)
    manifest = msgspec.json.encode({"schemaVersion": 2, "config": configured, "layers": [packed]})
    place = bases.top(bases.put(held.get("manifest", manifest), MANIFEST))
    if name == "index.json":
        (bases.folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match="can't be read"):
        await facts_of(place, blobs)


@pytest.mark.parametrize("content", [b"{}", b"[{}]", b'[{"Config": "c.json", "Layers": 1}]'])
async def test_an_archive_of_docker_with_another_list_is_told(
    tmp_path: Path, blobs: Blobs, content: bytes
) -> None:
    path = tmp_path / "base.tar"
    path.write_bytes(archive({"manifest.json": content}))
    with pytest.raises(ConfigError, match="can't be read as an image"):
        await facts_of(f"docker-archive:{path}", blobs)


async def test_an_archive_that_is_cut_off_is_told(tmp_path: Path, blobs: Blobs) -> None:
    path = tmp_path / "base.tar.gz"
    path.write_bytes(gzip.compress(archive({"manifest.json": os.urandom(1 << 16)}))[:3000])
    with pytest.raises(ConfigError, match="can't be read as an image"):
        await facts_of(f"docker-archive:{path}", blobs)
