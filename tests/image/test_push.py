"""Images pushed to a registry by the command line, and built on images of the registry."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.image import registry as registries
from simulator.servers import DockerRegistryServer, programs
from tests.command_line import Holdfast
from tests.image.conftest import BaseFolder
from tests.image.strict_registry import StrictRegistry
from tests.image.test_registry import Cutting

APP = "from holdfast import App\napp = App('doors')\n"

pytestmark = pytest.mark.usefixtures("wheels", "small_holdfast")


@pytest.fixture
def server() -> Iterator[DockerRegistryServer]:
    server = DockerRegistryServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def push(place: Path, holdfast: Holdfast, base: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    (place / "doors.py").write_text(APP)
    (place / "requirements.txt").write_text("native\nlarge\n")
    cache = tmp_path_factory.mktemp("images")

    def run(address: str, *options: str, name: str = "team/doors:1", code: int = 0) -> Any:
        given = [*options, *(() if "--base" in options else ("--base", base))]
        given += [] if "--platform" in options else ["--platform", "linux/amd64"]
        outcome = holdfast("image", "build", "doors:app", "-t", f"{address}/{name}", "--push", "--json",
                           "--cache", str(cache), *given)  # fmt: skip
        assert outcome.code == code, outcome.err
        return outcome.err if code else outcome.lines[0]

    return run


def skopeo(*arguments: str) -> Any:
    command = [str(programs.find("skopeo")), *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.mark.slow
def test_an_image_is_pushed_for_others_to_pull(server: DockerRegistryServer, push: Any) -> None:
    pushed = push(server.address)
    seen = skopeo("inspect", "--tls-verify=false", f"docker://{server.address}/team/doors:1")
    assert seen["Digest"] == pushed["digest"]
    assert seen["Labels"]["holdfast.app"] == "doors:app"


@pytest.mark.slow
def test_a_push_that_fails_says_why_in_one_line(push: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "PAUSE_S", 0.05)
    guarded = DockerRegistryServer(login=True)
    asyncio.run(guarded.start())
    try:
        refused = push(guarded.address, code=2)
    finally:
        asyncio.run(guarded.stop())
    unreachable = push(guarded.address, code=3)
    assert f"{guarded.address} demands a login for team/doors: docker login" in refused
    assert f"{guarded.address} can't be reached" in unreachable
    assert "Traceback" not in refused + unreachable


@pytest.mark.nightly
def test_a_change_of_code_pushes_less_than_100_kb(
    server: DockerRegistryServer, push: Any, place: Path
) -> None:
    first = push(server.address)
    assert first["pushed"]["bytes"] > 5_000_000
    again = push(server.address)
    assert (again["digest"], again["pushed"]["sent"]) == (first["digest"], 0)
    (place / "doors.py").write_text(APP + "# changed\n")
    changed = push(server.address)
    assert changed["digest"] != first["digest"]
    assert changed["pushed"]["bytes"] < 100_000


@pytest.mark.nightly
def test_a_base_of_the_same_registry_is_not_sent(
    server: DockerRegistryServer, push: Any, bases: BaseFolder
) -> None:
    subprocess.run(
        [programs.find("skopeo"), "copy", "--insecure-policy", "--all", "--dest-tls-verify=false",
         f"oci:{bases.folder}:latest", f"docker://{server.address}/base:12"],
        check=True, capture_output=True,
    )  # fmt: skip
    pushed = push(server.address, "--base", f"{server.address}/base:12", "--platform", "linux/arm64")
    assert pushed["pushed"]["mounted"] == 1
    assert pushed["platforms"][0]["platform"]["architecture"] == "arm64"


@pytest.mark.nightly
def test_platforms_and_what_refers_to_them_are_found_by_the_fallback_tag(
    server: DockerRegistryServer, push: Any
) -> None:
    pushed = push(server.address, "--platform", "linux/amd64", "--platform", "linux/arm64")
    raw = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{server.address}/team/doors:1")
    assert [each["platform"]["architecture"] for each in raw["manifests"]] == ["amd64", "arm64"]
    tag = ""
    for each in pushed["platforms"]:
        tag = each["digest"].replace(":", "-")
        refers = skopeo(
            "inspect", "--raw", "--tls-verify=false", f"docker://{server.address}/team/doors:{tag}"
        )
        assert [one["digest"] for one in refers["manifests"]] == [each["sbom"]]
        assert refers["manifests"][0]["artifactType"] == "application/vnd.cyclonedx+json"
    push(
        server.address, "--platform", "linux/amd64", "--platform", "linux/arm64"
    )  # and once more: no second entry
    refers = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{server.address}/team/doors:{tag}")
    assert len(refers["manifests"]) == 1


@pytest.mark.nightly
def test_a_registry_that_keeps_what_refers_to_an_image_gets_no_fallback_tag(push: Any) -> None:
    async def pushed() -> StrictRegistry:
        async with StrictRegistry() as strict:
            await asyncio.to_thread(push, strict.address)
        return strict

    strict = asyncio.run(pushed())
    assert {reference for _, reference in strict.manifests if not reference.startswith("sha256:")} == {"1"}


@pytest.mark.nightly
def test_an_interrupted_push_goes_on_without_sending_all_again(
    server: DockerRegistryServer, push: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "PAUSE_S", 0.05)
    for number in range(4):
        (place / f"model-{number}.bin").write_bytes(os.urandom(4 << 20))

    async def cut() -> tuple[Any, int]:
        async with Cutting(server.port) as proxy:
            proxy.cut_after = [8 << 20]
            pushed = await asyncio.to_thread(push, f"127.0.0.1:{proxy.port}")
            assert not proxy.cut_after
            return pushed, proxy.sent

    pushed, sent = asyncio.run(cut())
    seen = skopeo("inspect", "--tls-verify=false", f"docker://{server.address}/team/doors:1")
    assert seen["Digest"] == pushed["digest"]
    sizes = [layer["size"] for layer in pushed["platforms"][0]["layers"]]
    assert sent < sum(sizes) + max(sizes) + (1 << 20)  # only the blob under way goes again
