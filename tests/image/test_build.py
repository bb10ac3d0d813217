"""What an image holds, and that it is the same wherever it is built."""

import base64
import errno
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.image import layout, requirements
from holdfast.image.blobs import Blobs
from holdfast.image.layer import ImageFile, pack
from holdfast.image.oci import Descriptor
from tests.command_line import Holdfast, Outcome
from tests.image.conftest import AMD64, BaseFolder, archive, debian

APP = "from holdfast import App\napp = App('doors')\n"
SITE = "opt/holdfast/lib/python3.11/site-packages"

pytestmark = pytest.mark.usefixtures("wheels", "small_holdfast")


class Image:
    """A folder that a build wrote, as another program would read it."""

    def __init__(self, folder: Path, architecture: str = "amd64") -> None:
        self.folder = folder
        self.index = msgspec.json.decode((folder / "index.json").read_bytes())
        top = self.index["manifests"][0]
        self.digest = top["digest"]
        self.manifest = self.read(top["digest"])
        for each in self.manifest.get("manifests", []):
            if each["platform"]["architecture"] == architecture:
                self.manifest = self.read(each["digest"])
        self.config = self.read(self.manifest["config"]["digest"])
        self.layers = [self.files(each) for each in self.manifest["layers"]]

    def read(self, digest: str) -> Any:
        return msgspec.json.decode(self.path(digest).read_bytes())

    def path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def files(self, descriptor: dict[str, Any]) -> dict[str, tarfile.TarInfo]:
        with tarfile.open(self.path(msgspec.convert(descriptor, Descriptor).digest)) as layer:
            return {member.name: member for member in layer}

    @property
    def ours(self) -> dict[str, tarfile.TarInfo]:
        """The files of all layers but the base's."""
        return {name: member for layer in self.layers[1:] for name, member in layer.items()}

    def content(self, path: str) -> bytes:
        for descriptor in self.manifest["layers"]:
            with tarfile.open(self.path(descriptor["digest"])) as layer:
                if path in layer.getnames():
                    file = layer.extractfile(path)
                    assert file is not None
                    return file.read()
        raise AssertionError(f"no {path}")


@pytest.fixture
def project(place: Path) -> Path:
    (place / "doors.py").write_text(APP)
    (place / "requirements.txt").write_text("native\nchooser\nlarge\n")
    return place


@pytest.fixture
def build(holdfast: Holdfast, base: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    cache = tmp_path_factory.mktemp("images")

    def run(*options: str, kept: Path = cache, architecture: str = "amd64", code: int = 0) -> Any:
        folder = tmp_path_factory.mktemp("out") / "layout"
        given = [*options]
        for name, value in (("--base", base), ("--platform", "linux/amd64")):
            given += [] if name in options else [name, value]
        where = ("-t", "doors:1", "-o", str(folder), "--cache", str(kept))
        outcome = holdfast("image", "build", "doors:app", *where, *given)
        assert outcome.code == code, outcome.err
        return outcome if code else Image(folder, architecture)

    return run


@pytest.mark.slow
def test_layers_go_from_what_changes_rarely_to_what_changes_often(project: Path, build: Any) -> None:
    (project / "people.onnx").write_bytes(bytes(4 << 20))
    image = build()
    what = [each["created_by"].removeprefix("holdfast image build: ") for each in image.config["history"]]
    assert what == ["large 1.0", "packages", "holdfast", "model people.onnx", "app"]
    assert f"{SITE}/large.bin" in image.layers[1]
    assert f"{SITE}/plain.py" in image.layers[2]
    assert f"{SITE}/holdfast/__init__.py" in image.layers[3]
    assert "app/people.onnx" in image.layers[4]
    assert "app/doors.py" in image.layers[5]


@pytest.mark.slow
def test_only_our_folders_are_written_by_root_for_all_to_read(project: Path, build: Any) -> None:
    image = build()
    for name, member in image.ours.items():
        assert name.split("/")[:2] in (["opt", "holdfast"], ["app"]) or name.startswith("app/")
        assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0)
        assert member.issym() or member.mode == (0o755 if member.isdir() else 0o644)


@pytest.mark.slow
def test_the_image_runs_a_node_as_nobody_in_particular_instead_of_what_the_base_ran(
    project: Path, build: Any
) -> None:
    config = build("--label", "team=doors").config["config"]
    assert config["Entrypoint"] == ["/opt/holdfast/bin/python", "-m", "holdfast"]
    assert config["Cmd"] == ["node", "doors:app"]
    assert config["User"] == "10001:10001"
    assert {"LANG=C.UTF-8", "PATH=/opt/holdfast/bin:/usr/bin", "HOME=/tmp", "PYTHONPATH=/app"} <= {
        *config["Env"]
    }
    assert config["Labels"]["holdfast.app"] == "doors:app"
    assert config["Labels"]["team"] == "doors"
    assert config["Labels"]["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert "/healthz" in config["Healthcheck"]["Test"][-1]


@pytest.mark.nightly
def test_python_of_the_base_runs_in_an_environment_of_its_own(project: Path, build: Any) -> None:
    image = build()
    assert image.ours["opt/holdfast/bin/python"].linkname == "/usr/bin/python3.11"
    assert b"include-system-site-packages = false" in image.content("opt/holdfast/pyvenv.cfg")


CANARIES = (
    "holdfast.toml", ".env", ".env.production", "prod.env", ".git/config", ".aws/credentials", "id_rsa",
    "server.key", "tls.pem", "store.p12", "app.sqlite", "holdfast.db", "holdfast.db-wal",
    ".venv/pyvenv.cfg", "build/lib.py", "SERVER.KEY", "venv/pyvenv.cfg", "service-account.json",
    "secrets.toml", "__pycache__/x.pyc", "holdfast-objects/1", "deep/down/.env", "deep/id_ed25519",
    "other/pyvenv.cfg", "queue.sqlite3-wal", "kubeconfig", "deep/prod.kubeconfig", "netrc", "aws/credentials",
    "docker/config.json", "deep/docker/config.json", "prod.tfvars", "prod.auto.tfvars.json",
    "terraform.tfstate.backup", "secring.gpg", "streams.backup", "clients.keys", "console.tokens",
)  # fmt: skip


@pytest.mark.slow
def test_secrets_databases_and_what_begins_with_a_dot_stay_out(project: Path, build: Any) -> None:
    for name in CANARIES:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"canary {name}")
    wanted = ("deep/down/wanted.txt", "deep/build/parts.py", "env.py", "secrets.py")
    for name in wanted:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    image = build("--exclude", "deep/no*")
    held = [name for name in image.ours if name.startswith("app")]
    assert {f"app/{name}" for name in wanted} <= {*held}
    assert not [name for name in held if any(name.endswith(canary) for canary in CANARIES)]
    for path in (image.folder / "blobs/sha256").iterdir():
        assert b"canary" not in path.read_bytes()


@pytest.mark.slow
def test_a_private_key_by_any_other_name_is_refused(project: Path, build: Any) -> None:
    pem = "-----BEGIN EC PRIVATE KEY-----\nMHc\n"
    for content in (
        pem.encode(),
        b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQ",
        pem.encode("utf-16"),
        pem.encode("utf-16-be"),
        *(b"client-key-data: " + base64.b64encode(b"#" * before + pem.encode()) for before in range(3)),
    ):
        (project / "notes.txt").write_bytes(content)
        outcome = build(code=2)
        assert "notes.txt holds a private key" in outcome.err, content
    build("--exclude", "notes.txt")


def test_a_link_out_of_the_project_is_refused(project: Path, build: Any, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside") / "data.txt"
    outside.write_text("elsewhere")
    for target in (outside, outside.parent):
        (project / "data.txt").symlink_to(target)
        assert f"data.txt is a link to {target}, outside the project" in build(code=2).err
        (project / "data.txt").unlink()


@pytest.mark.slow
def test_a_link_to_a_folder_of_the_image_is_a_link_there_too(project: Path, build: Any) -> None:
    (project / "releases/v1").mkdir(parents=True)
    (project / "releases/v1/one.txt").write_text("1")
    (project / "releases/current").symlink_to(project / "releases/v1")
    (project / "deep").mkdir()
    (project / "deep/latest").symlink_to("../releases/current")
    (project / "round").symlink_to(".")
    image = build()
    links = {name: member.linkname for name, member in image.layers[-1].items() if member.issym()}
    assert links == {"app/releases/current": "v1", "app/deep/latest": "../releases/v1", "app/round": "."}
    assert "app/releases/v1/one.txt" in image.ours


@pytest.mark.nightly
def test_the_same_project_has_the_same_digest_elsewhere(
    project: Path, build: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build()
    other = tmp_path_factory.mktemp("other") / "deeper"
    other.mkdir()
    umask = os.umask(0o077)
    try:
        for path in reversed([*project.iterdir()]):
            (other / path.name).write_bytes(path.read_bytes())
        monkeypatch.chdir(other)
        monkeypatch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        second = build(kept=tmp_path_factory.mktemp("another-cache"))
    finally:
        os.umask(umask)
        monkeypatch.undo()
        time.tzset()
    assert second.digest == first.digest
    assert second.index == first.index  # the bills are the same too


@pytest.mark.nightly
def test_the_digest_is_the_same_wherever_the_base_lies(
    project: Path, build: Any, base: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "another"
    shutil.copytree(base.removeprefix("oci:"), elsewhere)
    first, second = build(), build("--base", f"oci:{elsewhere}")
    assert second.index == first.index
    assert "org.opencontainers.image.base.name" not in first.config["config"]["Labels"]
    for path in (first.folder / "blobs/sha256").iterdir():
        assert base.removeprefix("oci:").encode() not in path.read_bytes()


@pytest.mark.nightly
def test_a_change_of_the_app_changes_its_layer_only(project: Path, build: Any) -> None:
    before = build()
    (project / "doors.py").write_text(APP + "# changed\n")
    after = build()
    assert before.manifest["layers"][:-1] == after.manifest["layers"][:-1]
    assert before.manifest["layers"][-1] != after.manifest["layers"][-1]


@pytest.mark.nightly
def test_packages_are_those_of_the_target_and_not_of_this_machine(project: Path, build: Any) -> None:
    image = build("--platform", "linux/arm64", architecture="arm64")
    assert f"{SITE}/onarm.py" in image.ours  # needed where platform_machine is aarch64
    assert image.content(f"{SITE}/native/_core.so")[18] == 183
    image = build()
    assert f"{SITE}/onarm.py" not in image.ours
    assert image.content(f"{SITE}/native/_core.so")[18] == 62


@pytest.mark.nightly
def test_a_wheel_needs_no_newer_c_library_than_the_base_has(
    project: Path, build: Any, bases: BaseFolder
) -> None:
    assert f"{SITE}/native-1.0.dist-info/METADATA" in build().ours  # 2.0 needs glibc 2.39
    newer = bases.top(bases.image([debian(glibc=41)], AMD64), "newer")
    assert f"{SITE}/native-2.0.dist-info/METADATA" in build("--base", newer).ours


@pytest.mark.slow
def test_a_shared_object_for_another_machine_is_refused_by_name(
    project: Path, build: Any, wheels: Path
) -> None:
    from tests.image.conftest import shared_object, wheel

    wheel(wheels, "wrong", "1.0", "py3-none-any", {"wrong/_core.so": shared_object("aarch64")})
    (project / "requirements.txt").write_text("wrong\n")
    assert "wrong 1.0: wrong/_core.so isn't for linux/amd64" in build(code=2).err


@pytest.mark.slow
def test_a_project_that_needs_another_projects_holdfast_is_refused(
    project: Path, build: Any, wheels: Path
) -> None:
    from tests.image.conftest import wheel

    wheel(wheels, "holdfast", "0.5.1", "py3-none-any", {"holdfast/other.py": b""})
    (project / "requirements.txt").write_text("holdfast>=0.2.0\n")
    assert "which is another project's: write 'holdfast-streams'" in build(code=2).err


@pytest.mark.nightly
def test_an_image_for_two_platforms_is_an_index_of_both(project: Path, build: Any) -> None:
    both = build("--platform", "linux/amd64", "--platform", "linux/arm64", architecture="arm64")
    assert [each["platform"]["architecture"] for each in both.read(both.digest)["manifests"]] == [
        "amd64",
        "arm64",
    ]
    assert both.config["architecture"] == "arm64"
    assert len(both.index["manifests"]) == 3  # and a bill of each


def test_a_base_is_read_for_its_python(project: Path, build: Any, bases: BaseFolder) -> None:
    without = archive({"usr/lib/libc.so.6": b"GNU C Library stable release version 2.36."})
    assert "no python3" in build("--base", bases.top(bases.image([without], AMD64)), code=2).err
    old = bases.top(bases.image([debian(minor=9)], AMD64))
    assert "has Python 3.9" in build("--base", old, code=2).err
    gone = archive({"usr/bin/.wh.python3": b""})
    assert "no python3" in build("--base", bases.top(bases.image([debian(), gone], AMD64)), code=2).err
    arm = bases.top(bases.image([debian()], {"os": "linux", "architecture": "arm", "variant": "v7"}))
    assert "has no image for linux/amd64; it has linux/arm/v7" in build("--base", arm, code=2).err


@pytest.mark.nightly
def test_byte_code_is_only_for_the_python_that_reads_it(project: Path, build: Any, bases: BaseFolder) -> None:
    assert "app/__pycache__/doors.cpython-311.pyc" in build().ours
    other = bases.top(bases.image([debian(minor=13)], AMD64))
    (project / "requirements.txt").unlink()
    image = build("--base", other)
    assert not [name for name in image.ours if name.endswith(".pyc")]
    assert "opt/holdfast/lib/python3.13/site-packages/plain.py" in image.ours


@pytest.mark.nightly
def test_nested_indexes_variants_and_what_attests_are_understood(
    project: Path, build: Any, bases: BaseFolder
) -> None:
    attested = bases.image([debian()], {"os": "unknown", "architecture": "unknown"})
    wanted = bases.image([debian()], AMD64)
    inner = bases.index(
        attested | {"platform": {"os": "unknown", "architecture": "unknown"}}, wanted | {"platform": AMD64}
    )
    docker = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    assert build("--base", bases.top(bases.index(inner))).layers[0]
    image = build("--base", bases.top(bases.image([debian()], AMD64, kind=docker)))
    assert image.manifest["layers"][0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"


@pytest.mark.slow
def test_the_bill_of_materials_refers_to_the_image_and_names_its_packages(project: Path, build: Any) -> None:
    image = build()
    refers = image.read(image.index["manifests"][1]["digest"])
    assert refers["subject"]["digest"] == image.digest
    assert refers["artifactType"] == "application/vnd.cyclonedx+json"
    bill = image.read(refers["layers"][0]["digest"])
    found = {component["name"]: component for component in bill["components"]}
    assert found["native"]["purl"] == "pkg:pypi/native@1.0"
    assert found["native"]["licenses"] == [{"license": {"name": "MIT"}}]
    assert {"plain", "large", "chooser", "holdfast-streams"} <= found.keys()
    assert bill["serialNumber"].startswith("urn:uuid:")


@pytest.mark.slow
def test_an_archive_holds_the_same_image_and_nothing_that_podman_would_not_load(
    project: Path, build: Any, holdfast: Holdfast, base: str, tmp_path: Path
) -> None:
    image = build()
    given = (
        "-o",
        "out/doors.tar",
        "--base",
        base,
        "--platform",
        "linux/amd64",
        "--cache",
        str(tmp_path / "c"),
    )
    assert holdfast("image", "build", "doors:app", "-t", "doors:1", "--exclude", "c", *given).code == 0
    with tarfile.open("out/doors.tar") as archive:
        file = archive.extractfile("index.json")
        assert file is not None
        assert msgspec.json.decode(file.read())["manifests"] == image.index["manifests"][:1]
        held = {name for name in archive.getnames() if name.startswith("blobs/sha256/")}
    assert len(held) == len(image.manifest["layers"]) + 2  # the config and the manifest


@pytest.mark.nightly
def test_an_archive_stays_whole_where_a_later_one_can_not_be_written(
    project: Path, holdfast: Holdfast, base: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, disk = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("disk")
    (disk / "named.tar").symlink_to(disk / "doors.tar")
    given = ("--base", base, "--platform", "linux/amd64", "--cache", str(folder))

    def built() -> Outcome:
        return holdfast("image", "build", "doors:app", "-t", "doors:1", *given, "-o", str(disk / "named.tar"))

    def full(entries: object, file: IO[bytes]) -> None:
        file.write(b"cut")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert built().code == 0
    whole = (disk / "doors.tar").read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "write_archive", full)
        refused = built()
    assert refused.code == 2
    assert "named.tar can't be written: [Errno 28] No space left on device" in refused.err
    assert (disk / "doors.tar").read_bytes() == whole
    assert {path.name for path in disk.iterdir()} == {"doors.tar", "named.tar"}


@pytest.mark.slow
def test_what_was_chosen_once_is_chosen_again_until_told_otherwise(
    project: Path, build: Any, wheels: Path
) -> None:
    from tests.image.conftest import wheel

    first = build()
    wheel(wheels, "plain", "1.1", "py3-none-any", {"plain.py": b""})
    assert build().digest == first.digest
    assert f"{SITE}/plain-1.1.dist-info/METADATA" in build("--upgrade").ours


def test_what_has_no_wheel_is_refused_by_name(project: Path, build: Any) -> None:
    (project / "lib").mkdir()
    (project / "lib/pyproject.toml").write_text('[project]\nname = "lib"\nversion = "1"\n')
    (project / "requirements.txt").write_text("nowhere-to-be-found\n")
    assert "nowhere-to-be-found" in build(code=2).err
    (project / "requirements.txt").write_text("./lib\n")
    assert "lib" in build(code=2).err


@pytest.mark.nightly
def test_only_what_builds_keep_is_deleted_from_the_folder_of_the_cache(project: Path, build: Any) -> None:
    long_ago = time.time() - 90 * 24 * 3600
    (project / "data/old").mkdir(parents=True)
    (project / "data/kept.csv").write_text("1")
    for path in (project / "data/kept.csv", project / "data/old"):
        os.utime(path, (long_ago, long_ago))
    first = build(kept=project)
    unused = project / "holdfast-images/blobs" / ("0" * 64)
    unused.write_text("")
    os.utime(unused, (long_ago, long_ago))
    assert build(kept=project).digest == first.digest
    assert (project / "data/kept.csv").read_text() == "1"
    assert not unused.exists()


@pytest.mark.nightly
def test_images_of_earlier_builds_stay_out_of_later_ones(
    project: Path, build: Any, holdfast: Holdfast, base: str
) -> None:
    first = build()
    for number, place in enumerate(("doors-1.tar", "out", "doors-2.tar", "other.tar")):
        given = ("--base", base, "--platform", "linux/amd64", "--cache", "cache", "-o", place)
        assert holdfast("image", "build", "doors:app", "-t", f"doors:{number}", *given).code == 0
    (project / "data.tar").write_bytes(archive({"data.csv": b"1"}))
    (project / "gone.tar").symlink_to("nowhere.tar")
    names = {name for name in build().ours if name.startswith("app/")}
    assert names - {name for name in first.ours if name.startswith("app/")} == {"app/data.tar"}
    (project / "data.tar").unlink()
    assert build().digest == first.digest


def test_a_private_key_among_a_models_files_is_refused(project: Path, build: Any) -> None:
    (project / "models").mkdir()
    (project / "models/notes.txt").write_text("-----BEGIN EC PRIVATE KEY-----\nMHc\n")
    assert "models/notes.txt holds a private key" in build("--model", "models", code=2).err


@pytest.mark.slow
def test_a_link_to_what_stays_out_is_refused(project: Path, build: Any) -> None:
    (project / ".env").write_text("SECRET=1")
    (project / "secret.txt").write_text("1")
    (project / "env").mkdir()
    (project / "env/pyvenv.cfg").write_text("")
    link = project / "settings.txt"
    for target, options in (
        (".env", ()),
        ("env", ()),
        ("env/pyvenv.cfg", ()),
        ("secret.txt", ("--exclude", "secret.txt")),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert f"settings.txt is a link to {target}, which stays out" in build(*options, code=2).err
    assert "app/settings.txt" in build().ours  # of a file that is in the image


@pytest.mark.slow
def test_a_model_that_matches_no_file_of_the_image_is_refused(project: Path, build: Any) -> None:
    (project / "models").mkdir()
    (project / "models/.hidden").write_text("")
    for model in ("models", "none.onnx", "../doors.py"):
        assert f"--model '{model}': the image gets no file" in build("--model", model, code=2).err
    (project / "models/a.onnx").write_text("")
    image = build("--model", "./models//", "--model", "models/../doors.py")
    assert "model models" in str(image.config["history"])
    assert "model doors.py" in str(image.config["history"])


@pytest.mark.slow
def test_a_folder_that_holds_images_of_others_is_not_written_to(
    project: Path, build: Any, holdfast: Holdfast, base: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("theirs")
    other = BaseFolder(folder / "layout")
    other.top(other.image([debian()], AMD64))
    index = msgspec.json.decode((other.folder / "index.json").read_bytes())
    del index["manifests"][0]["annotations"]
    (other.folder / "index.json").write_bytes(msgspec.json.encode(index))
    before = {path.name for path in (other.folder / "blobs/sha256").iterdir()}
    cache = ("--cache", str(folder / "cache"), "--base", base, "--platform", "linux/amd64")
    given = ("image", "build", "doors:app", "-t", "doors:1", *cache, "-o")
    refused = holdfast(*given, str(other.folder))
    assert refused.code == 2
    assert "holds images without a tag" in refused.err
    assert {path.name for path in (other.folder / "blobs/sha256").iterdir()} == before
    (other.folder / "index.json").write_text("[")
    assert "has other files" in holdfast(*given, str(other.folder)).err
    assert holdfast(*given, str(folder / "ours")).code == 0
    assert holdfast(*given, str(folder / "ours")).code == 0  # the same tag, with its bill


@pytest.mark.slow
def test_a_folder_with_the_image_of_another_app_keeps_it_though_their_tags_are_equal(
    project: Path, holdfast: Holdfast, base: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shared")
    given = ("--base", base, "--platform", "linux/amd64", "--cache", str(folder / "cache"))

    def built(name: str) -> Outcome:
        return holdfast("image", "build", "doors:app", "-t", name, *given, "-o", str(folder / "out"))

    assert built("windows:1").code == 0
    before = (folder / "out/index.json").read_bytes()
    refused = built("doors:1")
    assert refused.code == 2
    assert "holds images of other names: docker.io/library/windows:1; name a new folder" in refused.err
    assert (folder / "out/index.json").read_bytes() == before


@pytest.mark.slow
def test_folders_that_can_not_be_written_are_named(project: Path, holdfast: Holdfast, base: str) -> None:
    (project / "file").write_text("")
    given = ("image", "build", "doors:app", "-t", "doors:1", "--base", base, "--platform", "linux/amd64")
    for cache, output, found in (
        ("file", "out", "--cache"),
        ("file/cache", "out", "--cache"),
        ("cache", "file", "--output"),
        ("cache", "file/out", "--output"),
        ("cache", "file/out.tar", "--output"),
    ):
        outcome = holdfast(*given, "--cache", cache, "--output", output)
        assert outcome.code == 2, outcome.err
        assert found in outcome.err


def test_files_that_change_while_they_are_packed_leave_no_layer(tmp_path: Path, blobs: Blobs) -> None:
    source = tmp_path / "data.csv"
    source.write_bytes(b"before")

    class Saving(Blobs):
        """Somebody saves the file after the layer's digest is known."""

        content = b""

        def noted(self, note: Path) -> bytes | None:
            found = super().noted(note)
            source.write_bytes(self.content)
            return found

    saving = Saving(blobs.folder)
    for content in (b"after!", b"cut", b"longer than before"):
        source.write_bytes(b"before")
        saving.content = content
        with pytest.raises(ConfigError, match="build again"):
            pack([ImageFile("data.csv", source)], saving, "app")
    source.write_bytes(b"before")
    layer = pack([ImageFile("data.csv", source)], blobs, "app")
    with tarfile.open(blobs.path(layer.descriptor.digest)) as packed:
        file = packed.extractfile("data.csv")
        assert file is not None
        assert file.read() == b"before"


def test_a_file_that_vanishes_while_it_is_packed_is_told(tmp_path: Path, blobs: Blobs) -> None:
    with pytest.raises(ConfigError, match="build again"):
        pack([ImageFile("data.csv", tmp_path / "gone.csv")], blobs, "app")


@pytest.mark.parametrize(
    "name, text, fixed",
    [
        ("pyproject.toml", "[project]\nname = 'a'\ndependencies = ['b']\n", True),
        ("pyproject.toml", "[project]\nname = 'a'\ndynamic = ['version']\n", True),
        ("pyproject.toml", "[project]\nname = 'a'\ndynamic = ['dependencies']\n", False),
        ("pyproject.toml", "[project]\nname = 'a'\ndynamic = ['optional-dependencies']\n", False),
        ("pyproject.toml", "[project\n", False),
        ("requirements.txt", "a\n-r more.txt\n", False),
        ("requirements.txt", "a\n", True),
    ],
)
def test_what_is_needed_is_known_by_a_file_alone_unless_it_names_others(
    tmp_path: Path, name: str, text: str, fixed: bool
) -> None:
    (tmp_path / name).write_text(text)
    assert bool(requirements.fixed(tmp_path / name)) == fixed


@pytest.mark.slow
def test_a_shared_object_too_short_for_a_machine_is_a_plain_file(
    project: Path, build: Any, wheels: Path
) -> None:
    from tests.image.conftest import wheel

    wheel(wheels, "short", "1.0", "py3-none-any", {"short/stub.so": b"\x7fELF"})
    (project / "requirements.txt").write_text("short\n")
    assert f"{SITE}/short/stub.so" in build().ours


def test_a_folder_of_builds_that_takes_no_file_is_named(blobs: Blobs) -> None:
    (blobs.folder / "new").rmdir()
    with pytest.raises(ConfigError, match="name another folder with --cache"):
        blobs.add(b"")
