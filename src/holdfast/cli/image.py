"""``holdfast image``: container images of apps."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from holdfast.cli import exits, output
from holdfast.cli.options import Json, pair
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.image.builder import Built
    from holdfast.image.pushing import Pushed

app = App(name="image", help="Container images of apps, built without a daemon and without a Dockerfile.")

MIB = 1 << 20


@app.command
async def build(
    place: str,
    /,
    *,
    tag: Annotated[str, Parameter(name=["--tag", "-t"])],
    push: bool = False,
    output_to: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    base: str | None = None,
    platform: tuple[str, ...] = (),
    requirements: Path | None = None,
    extra: tuple[str, ...] = (),
    upgrade: bool = False,
    model: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    label: tuple[str, ...] = (),
    insecure: bool = False,
    cache: Path | None = None,
    json: Json = False,
) -> int:
    """Build the image of the app MODULE:NAME, in the folder of its project. The app isn't imported.

    Requirements are read from the first of uv.lock, pylock.toml, requirements.txt and pyproject.toml, and
    fetched for the image's platform. The image has the same Holdfast as this command.

    ```
    holdfast image build myproject.streams:app -t registry.example.com/cameras:1.4 --push
    holdfast image build myproject.streams:app -t cameras:1.4 --output cameras.tar
    ```

    Args:
        place: The app, MODULE:NAME.
        tag: Name of the image, REGISTRY/NAME:TAG.
        push: Push it to its registry.
        output_to: Write it to this folder in OCI's layout, or to this archive if the name ends with .tar.
        base: Image to build on: REGISTRY/NAME:TAG, oci:FOLDER, oci-archive:FILE or docker-archive:FILE.
            Default: Docker Hub's slim image of this Python.
        platform: Platform such as linux/arm64; may be repeated, which makes an index. Default: this
            machine's.
        requirements: File with the requirements, instead of those above.
        extra: Optional dependencies of the project to install; may be repeated.
        upgrade: Take the newest packages that the requirements allow, instead of the packages of an earlier
            build here.
        model: File or folder in the project that gets its own layer; may be repeated. Files from 4 MiB have
            one anyway.
        exclude: Pattern of paths to leave out; may be repeated. Names that begin with a dot, keys and
            databases are always left out.
        label: Label of the image, as NAME=VALUE; may be repeated.
        insecure: Use registries without TLS, as those on this machine always are.
        cache: Folder for the cache `holdfast-images`, instead of the user's.
        json: Print one JSON line.
    """
    from holdfast.image import base as bases  # noqa: PLC0415 - a page of help needs none
    from holdfast.image import blobs, builder, layout, pushing, reference  # noqa: PLC0415
    from holdfast.image import platform as platforms  # noqa: PLC0415
    from holdfast.image.registry import RegistryClient  # noqa: PLC0415

    if not push and output_to is None:
        raise ConfigError("say where the image goes: --push, or --output FOLDER or FILE.tar")
    target = reference.parse(tag)
    if target.digest:
        raise ConfigError(f"--tag {tag!r} has a digest, which only the image itself can give: name a tag")
    base = base or f"docker.io/library/python:3.{sys.version_info[1]}-slim"
    kept = blobs.Blobs(blobs.folder_of(cache))
    kept.tidy()
    source = bases.local(base, kept)
    base_at = reference.parse(base) if source is None else None
    async with contextlib.AsyncExitStack() as stack:
        registries: dict[str, RegistryClient] = {}
        for host in {each.registry for each in (base_at, target if push else None) if each is not None}:
            registries[host] = await stack.enter_async_context(RegistryClient(host, kept, insecure=insecure))
        if base_at is not None:
            source = pushing.RegistryBase(base_at, registries[base_at.registry], kept)
        assert source is not None, "local, or in a registry"
        options = builder.BuildOptions(
            place,
            Path.cwd(),
            source,
            [platforms.parse(each) for each in platform] or [platforms.own()],
            target.tag,
            requirements,
            extra,
            upgrade,
            model,
            exclude,
            dict(pair("--label", each, "team=video") for each in label),
        )
        built = await builder.build(options, kept, output.remark)
        if output_to is not None:
            await layout.write(built, target, output_to, kept)
        pushed = None
        if push:
            registry = registries[target.registry]
            pushed = await pushing.push(built, target, registry, kept, base_at)
    _show(built, str(target), pushed, json=json)
    return exits.OK


def _show(built: Built, name: str, pushed: Pushed | None, *, json: bool) -> None:
    if json:
        output.json_line(
            {
                "image": name,
                "digest": built.top.digest,
                "pushed": dataclasses.asdict(pushed) if pushed else None,
                "platforms": [
                    {
                        "platform": image.manifest.platform,
                        "digest": image.manifest.digest,
                        "base": image.base.digest,
                        "layers": [
                            {
                                "what": layer.what,
                                "digest": layer.descriptor.digest,
                                "size": layer.descriptor.size,
                            }
                            for layer in (*image.base.layers, *image.layers)
                        ],
                        "sbom": image.bill.manifest.digest,
                    }
                    for image in built.images
                ],
            }
        )
        return
    for image in built.images:
        target = image.manifest.platform
        rows = [
            (layer.what, layer.descriptor.size / MIB, layer.descriptor.digest)
            for layer in (*image.base.layers, *image.layers)
        ]
        output.console().print(
            output.table(f"{target['os']}/{target['architecture']}", ["layer", "MiB", "digest"], rows)
        )
        output.say(f"base {image.base.name} is {image.base.digest}")
    if pushed:
        output.say(
            f"{pushed.sent} blobs were sent, {pushed.bytes / 1000:,.0f} kB in all; {pushed.mounted} came from"
            f" another repository, {pushed.there} were there"
        )
    output.say(f"{name} is {built.top.digest}")
