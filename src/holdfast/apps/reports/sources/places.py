"""Where sources are: files by URL, listed in a stated order, opened for reading."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from holdfast.apps.reports.faults import UnreadableSource
from holdfast.apps.reports.sources.http import HttpFile
from holdfast.errors import InvalidMessage, Unavailable

Secrets = Callable[[str], Mapping[str, str]]
"""The secret of a name. For S3: ``access_key_id``, ``secret_access_key``, ``session_token``, ``region``,
``endpoint_url``; for HTTP: ``authorization``, the header's value. All are optional."""

_PASSING = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)"
    r"|AWS Error THROTTLING|curlCode|[Tt]imeout|HTTP status 5\d\d"
)


@dataclass(frozen=True, slots=True)
class Place:
    """One file: its URL, its size in bytes, and a version that changes when its content does.

    ``partition``: the columns that its folders name, as ``key=value``.
    """

    url: str
    size: int
    version: str
    remote: bool
    open: Callable[[], pa.NativeFile] = field(repr=False)
    partition: Mapping[str, str | None] = field(default_factory=dict)


def list_places(url: str, secret: Mapping[str, str]) -> list[Place]:
    """The files that a source URL names, ordered by name. Raises UnreadableSource if there is none."""
    if urlsplit(url).password is not None:
        raise InvalidMessage(f"sources: {_shown(url)} holds a password; name it in credentials", "sources")
    with readable(_shown(url)):
        if urlsplit(url).scheme in ("http", "https"):
            return [_http_place(url, secret)]
        system, path, prefix = _file_system(url, secret)
        if url.endswith("*"):
            return _below(url, system, prefix, path.removesuffix("*"))
        if url.endswith("/"):
            return _below(url, system, prefix, path)
        info = system.get_file_info(path)
        if info.type == pafs.FileType.Directory:
            return _below(f"{url}/", system, prefix, f"{path}/")
        if info.type != pafs.FileType.File:
            raise UnreadableSource(f"there is no file {url}; check its name")
        return [_place(system, prefix, info, {})]


def is_below(url: str, roots: Sequence[str]) -> bool:
    """Whether a source URL lies in a folder of ``roots``. One that climbs (``..``) lies nowhere."""
    if ".." in re.split(r"[/\\]", unquote(url)):
        return False
    whole = _whole(url)
    return any(whole.startswith(f"{_whole(root).rstrip('/')}/") for root in roots)


def _whole(url: str) -> str:
    if urlsplit(url).scheme:
        return url.replace("file:///", "/", 1)
    return url if url.startswith("/") else f"{Path.cwd()}/{url}"


@contextmanager
def readable(url: str) -> Iterator[None]:
    """What goes wrong while ``url`` is read, as errors of this project."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableSource(f"there is no file {url}; check its name") from error
    except PermissionError as error:
        raise UnreadableSource(f"{url} may not be read; check its permissions") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, EOFError) as error:
        raise UnreadableSource(f"{url} can't be read: {_first_line(error)}") from error
    except OSError as error:
        # Arrow says OSError of a damaged file too; only a service's own words tell the two apart.
        if _PASSING.search(str(error)) or isinstance(error, (ConnectionError, TimeoutError)):
            raise Unavailable(f"{url} can't be reached: {_first_line(error)}") from error
        raise UnreadableSource(f"{url} can't be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _file_system(url: str, secret: Mapping[str, str]) -> tuple[pafs.FileSystem, str, str]:
    """The file system, the path in it, and what stands before a path in its URL."""
    parts = urlsplit(url)
    match parts.scheme:
        case "s3":
            return _s3(secret), f"{parts.netloc}{unquote(parts.path)}", "s3://"
        case "file":
            return pafs.LocalFileSystem(), unquote(parts.path), "file://"
        case "":
            path = f"{Path(url.rstrip('*/')).absolute()}" if not url.startswith("/") else url
            return (
                pafs.LocalFileSystem(),
                path + (url[-1] if url[-1] in "*/" and path[-1] != url[-1] else ""),
                "",
            )
    raise InvalidMessage(f"sources: {url!r} is no URL of file, s3, http or https", "sources")


def _s3(secret: Mapping[str, str]) -> pafs.FileSystem:
    environment = os.environ
    region = secret.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    endpoint = (
        secret.get("endpoint_url")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    return pafs.S3FileSystem(
        access_key=secret.get("access_key_id"),
        secret_key=secret.get("secret_access_key"),
        session_token=secret.get("session_token"),
        region=region,
        endpoint_override=endpoint,
        connect_timeout=10,
        request_timeout=60,
    )


def _below(url: str, system: pafs.FileSystem, prefix: str, start: str) -> list[Place]:
    """All data files whose paths begin with ``start``; names that begin with ``_`` or ``.`` are left out."""
    folder = start if start.endswith("/") else start.rpartition("/")[0] + "/"
    infos = system.get_file_info(
        pafs.FileSelector(folder.rstrip("/") or "/", recursive=True, allow_not_found=True)
    )
    places = []
    for info in sorted(infos, key=lambda info: info.path):
        if info.type != pafs.FileType.File or not info.path.startswith(start):
            continue
        folders = info.path[len(folder) :].split("/")
        if any(name.startswith(("_", ".")) for name in folders):
            continue
        places.append(_place(system, prefix, info, _partition(folders[:-1])))
    if not places:
        raise UnreadableSource(f"there are no data files in {url}; check its name")
    return places


def _partition(folders: list[str]) -> dict[str, str | None]:
    pairs = (folder.partition("=") for folder in folders)
    return {
        unquote(key): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
        for key, equals, value in pairs
        if equals
    }


def _place(
    system: pafs.FileSystem, prefix: str, info: pafs.FileInfo, partition: Mapping[str, str | None]
) -> Place:
    return Place(
        url=f"{prefix}{info.path}",
        size=info.size,
        version=f"{info.size}-{info.mtime_ns}",
        remote=prefix == "s3://",
        open=lambda: system.open_input_file(info.path),
        partition=partition,
    )


def _shown(url: str) -> str:
    """The URL without what may be secret: a name and password, or the query, which holds a signature."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _http_place(url: str, secret: Mapping[str, str]) -> Place:
    first = HttpFile(url, secret.get("authorization"))
    first.close()
    return Place(
        url=_shown(url),
        size=first.size,
        version=f"{first.size}-{first.version}",
        remote=True,
        open=lambda: pa.PythonFile(HttpFile(url, secret.get("authorization"), first.version), mode="r"),
    )
