"""The places of sources: files by URL, listed in a stated order, opened for reading."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from holdfast.errors import InvalidMessage, Unavailable
from holdfast.extend.tools import OWN_FAILURES, redact_url
from holdfast.reports import deliver_root
from holdfast.reports.faults import UnreadableSource
from holdfast.reports.sources.http import HttpFile

Secrets = Callable[[str], Mapping[str, str]]
"""The secret of a name. For S3: ``access_key_id``, ``secret_access_key``, ``session_token``, ``region``,
``endpoint_url``; for HTTP: ``authorization``, the header's value; for all: ``root``, a URL that sources which
it opens must lie below. All are optional."""

_PASSING = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)"
    r"|AWS Error THROTTLING|curlCode|[Tt]imeout|HTTP status (408|425|429|5\d\d)"
)
# A name that isn't known may be known again: a resolver without a network says the same.
_PASSING_KINDS = (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_PASSING_NUMBERS = OWN_FAILURES | {errno.EHOSTDOWN, errno.EHOSTUNREACH}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its URL, its size in bytes, and a version that changes when its content does.

    ``path``: what is opened of a file system: of this machine without links, of S3 with the bucket.
    ``partition``: the columns that its folders name, as ``key=value``.
    """

    url: str
    size: int
    version: str
    remote: bool
    open: Callable[[], pa.NativeFile] = field(repr=False)
    path: str = ""
    partition: Mapping[str, str | None] = field(default_factory=dict)


def list_places(url: str, secret: Mapping[str, str], roots: Sequence[str] = ()) -> list[SourceFile]:
    """The files that a source URL names, ordered by name. Raises UnreadableSource if there is none.

    No link and no redirect leads out of ``roots``, if there are some; nor does the secret go with a redirect
    out of its own root, or to another server."""
    parts = _parts(url)
    if parts.password is not None:
        raise InvalidMessage(f"sources: {shown(url)} holds a password; name it in credentials", "sources")
    _check_whole(url, parts)
    with readable(shown(url)):
        if parts.scheme in ("http", "https"):
            return [_http_place(url, secret, roots)]
        places = listed(url, secret)
    limits = [limit for limit in (roots, _own_root(secret)) if limit]
    for place in places:
        if not all(any(_opens_below(place, root) for root in limit) for limit in limits):
            raise UnreadableSource(f"{place.url} leads out of the folders that may be read")
    return places


def _opens_below(place: SourceFile, root: str) -> bool:
    """Return whether what is opened lies below ``root``, wherever links led when the place was listed."""
    limit = _parts(root)
    if not place.remote:
        folder = _local(root, limit)
        return folder is not None and Path(place.path).is_relative_to(folder)
    start = f"{limit.netloc}{unquote(limit.path)}".rstrip("/")
    return limit.scheme == "s3" and (place.path == start or place.path.startswith(f"{start}/"))


def _check_whole(url: str, parts: SplitResult) -> None:
    """Raises InvalidMessage for what would be read at another place than the one that is checked."""
    if parts.scheme in ("s3", "file") and {"?", "#"} & set(url):
        raise InvalidMessage(
            f"sources: {shown(url)} holds a ? or #, which such a URL can't; write %3F or %23",
            "sources",
        )


def listed(url: str, secret: Mapping[str, str]) -> list[SourceFile]:
    """Return the files at a URL, wherever they lead."""
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


def check_root(url: str, secret: Mapping[str, str], field: str) -> None:
    """Raises InvalidMessage for a source that doesn't lie below the root of its credential."""
    if (root := _own_root(secret)) and not is_below(url, root):
        raise InvalidMessage(f"{field}: {shown(url)} doesn't lie below the root of its credential", field)


def _own_root(secret: Mapping[str, str]) -> Sequence[str]:
    return [secret["root"]] if secret.get("root") else ()


def is_below(url: str, roots: Sequence[str]) -> bool:
    """Return whether a source URL is one of ``roots`` or lies below it, wherever links in folders of this
    machine lead. One that climbs (``..``) lies nowhere. A root without a query says nothing of queries."""
    if ".." in re.split(r"[/\\]", unquote(url)):
        return False
    return any(_is_below(url, root) for root in roots)


def _is_below(url: str, root: str) -> bool:
    parts, limit = _parts(url), _parts(root)
    if parts.scheme in ("", "file"):
        here, there = _local(url, parts), _local(root, limit)
        return here is not None and there is not None and here.is_relative_to(there)
    if parts.scheme == "s3":
        key, prefix = unquote(parts.path), unquote(limit.path).rstrip("/")
        same = limit.scheme == "s3" and parts.netloc == limit.netloc
        return same and (key == prefix or key.startswith(f"{prefix}/"))
    if limit.query and limit.query != parts.query:
        return False
    plain = (each._replace(query="").geturl() for each in (parts, limit))
    return deliver_root.is_below(*plain)


def _local(url: str, parts: SplitResult) -> Path | None:
    """The file of this machine that a URL names, links followed; None for another URL."""
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path)).resolve()
    return None if parts.scheme else Path(url).resolve()


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidMessage(f"sources: {shown(url)} is no URL: {error}", "sources") from None


@contextmanager
def readable(url: str) -> Iterator[None]:
    """Raise the errors of reading ``url`` as UnreadableSource, or as Unavailable if it can't be reached."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableSource(f"there is no file {url}; check its name") from error
    except PermissionError as error:
        raise UnreadableSource(f"{url} may not be read; check its permissions") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, EOFError) as error:
        raise UnreadableSource(f"{url} can't be read: {_first_line(error)}") from error
    except OSError as error:
        if _passes(error):
            raise Unavailable(f"{url} can't be reached: {_first_line(error)}") from error
        raise UnreadableSource(f"{url} can't be read: {_first_line(error)}") from error


def _passes(error: OSError) -> bool:
    """Return whether another try may succeed."""
    if isinstance(error, _PASSING_KINDS) or error.errno in _PASSING_NUMBERS:
        return True
    # Arrow says OSError of a damaged file too; only a service's own words tell the two apart.
    return _PASSING.search(str(error)) is not None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _file_system(url: str, secret: Mapping[str, str]) -> tuple[pafs.FileSystem, str, str]:
    """The file system, the path in it, and what stands before a path in its URL."""
    parts = _parts(url)
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
    raise InvalidMessage(f"sources: {shown(url)!r} is no URL of file, s3, http or https", "sources")


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


def _below(url: str, system: pafs.FileSystem, prefix: str, start: str) -> list[SourceFile]:
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
) -> SourceFile:
    remote = prefix == "s3://"
    # A link is followed once: to change it later leads nowhere else.
    path = info.path if remote else os.path.realpath(info.path)
    return SourceFile(
        url=f"{prefix}{info.path}",
        size=info.size,
        version=f"{info.size}-{info.mtime_ns}",
        remote=remote,
        open=lambda: system.open_input_file(path),
        path=path,
        partition=partition,
    )


def shown(url: str) -> str:
    """The URL without what may be secret: a name and password, or the query, which holds a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return redact_url(url)
    if parts.scheme not in ("http", "https"):
        return redact_url(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _http_place(url: str, secret: Mapping[str, str], roots: Sequence[str]) -> SourceFile:
    limits, own = list(roots), _own_root(secret)

    def opened(version: str = "") -> HttpFile:
        return HttpFile(
            url,
            secret.get("authorization"),
            version,
            trusts=lambda to: not own or is_below(to, own),
            may_ask=lambda to: not limits or is_below(to, limits),
        )

    first = opened()
    first.close()
    return SourceFile(
        url=shown(url),
        size=first.size,
        version=f"{first.size}-{first.version}",
        remote=True,
        open=lambda: pa.PythonFile(opened(first.version), mode="r"),
    )
