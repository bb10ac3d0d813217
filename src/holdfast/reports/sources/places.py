"""Source files by URL, listed in a fixed order."""

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
"""A function from a name to its secret. Its fields for S3: ``access_key_id``, ``secret_access_key``,
``session_token``, ``region``, ``endpoint_url``; for HTTP: ``authorization``, the header's value; for all:
``root``, a URL that the sources must lie below. All are optional."""

_TEMPORARY = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)"
    r"|AWS Error THROTTLING|curlCode|[Tt]imeout|HTTP status (408|425|429|5\d\d)"
)
# An unknown host may be known later: a resolver without a network has the same error.
_TEMPORARY_KINDS = (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_TEMPORARY_NUMBERS = OWN_FAILURES | {errno.EHOSTDOWN, errno.EHOSTUNREACH}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its URL, its size in bytes, and a version that changes when its content does.

    ``path``: the opened path: on this machine without links, on S3 with the bucket.
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
    """Return the files of a source URL, by name. Raises UnreadableSource without a file.

    No link and no redirect may lead out of ``roots``. A redirect out of the secret's own root, or to another
    server, doesn't get the secret."""
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
            raise UnreadableSource(f"{place.url} leads out of the roots")
    return places


def _opens_below(place: SourceFile, root: str) -> bool:
    """Return whether the opened path lies below ``root``, after links."""
    limit = _parts(root)
    if not place.remote:
        folder = _local(root, limit)
        return folder is not None and Path(place.path).is_relative_to(folder)
    start = f"{limit.netloc}{unquote(limit.path)}".rstrip("/")
    return limit.scheme == "s3" and (place.path == start or place.path.startswith(f"{start}/"))


def _check_whole(url: str, parts: SplitResult) -> None:
    """Raise InvalidMessage for a URL whose checked path isn't the one that would be read."""
    if parts.scheme in ("s3", "file") and {"?", "#"} & set(url):
        raise InvalidMessage(
            f"sources: {shown(url)} holds a ? or #, which such a URL can't; write %3F or %23",
            "sources",
        )


def listed(url: str, secret: Mapping[str, str]) -> list[SourceFile]:
    """Return the files of a URL, without checking where links lead."""
    system, path, prefix = _file_system(url, secret)
    if url.endswith("*"):
        return _below(url, system, prefix, path.removesuffix("*"))
    if url.endswith("/"):
        return _below(url, system, prefix, path)
    info = system.get_file_info(path)
    if info.type == pafs.FileType.Directory:
        return _below(f"{url}/", system, prefix, f"{path}/")
    if info.type != pafs.FileType.File:
        raise UnreadableSource(f"no file {url}; check its name")
    return [_place(system, prefix, info, {})]


def check_root(url: str, secret: Mapping[str, str], field: str) -> None:
    """Raise InvalidMessage for a source that doesn't lie below the root of its credential."""
    if (root := _own_root(secret)) and not is_below(url, root):
        raise InvalidMessage(f"{field}: {shown(url)} doesn't lie below the root of its credential", field)


def _own_root(secret: Mapping[str, str]) -> Sequence[str]:
    return [secret["root"]] if secret.get("root") else ()


def is_below(url: str, roots: Sequence[str]) -> bool:
    """Return whether a source URL is one of ``roots`` or lies below it, after links on this machine. A URL
    with ``..`` lies below none. A root without a query allows any query."""
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
    """Return the file of this machine that a URL names, after links; None for another URL."""
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path)).resolve()
    return None if parts.scheme else Path(url).resolve()


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidMessage(f"sources: {shown(url)} isn't a URL: {error}", "sources") from None


@contextmanager
def readable(url: str) -> Iterator[None]:
    """Raise UnreadableSource for the errors of reading ``url``, or Unavailable if the service can't be
    reached."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableSource(f"no file {url}; check its name") from error
    except PermissionError as error:
        raise UnreadableSource(f"{url} may not be read; check its permissions") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, EOFError) as error:
        raise UnreadableSource(f"{url} can't be read: {_first_line(error)}") from error
    except OSError as error:
        if _is_temporary(error):
            raise Unavailable(f"{url} can't be reached: {_first_line(error)}") from error
        raise UnreadableSource(f"{url} can't be read: {_first_line(error)}") from error


def _is_temporary(error: OSError) -> bool:
    """Return whether another try may succeed."""
    if isinstance(error, _TEMPORARY_KINDS) or error.errno in _TEMPORARY_NUMBERS:
        return True
    # Arrow raises OSError for a damaged file too; only the service's text shows the difference.
    return _TEMPORARY.search(str(error)) is not None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _file_system(url: str, secret: Mapping[str, str]) -> tuple[pafs.FileSystem, str, str]:
    """Return the file system, the path in it, and the prefix of its URLs."""
    parts = _parts(url)
    match parts.scheme:
        case "s3":
            return _s3(secret), f"{parts.netloc}{unquote(parts.path)}", "s3://"
        case "file":
            return pafs.LocalFileSystem(), unquote(parts.path), "file://"
        case "":
            path = f"{Path(url.rstrip('*/')).absolute()}" if not url.startswith("/") else url
            end = url[-1] if url[-1] in "*/" and path[-1] != url[-1] else ""
            return pafs.LocalFileSystem(), path + end, ""
    raise InvalidMessage(f"sources: {shown(url)!r} must be a URL of file, s3, http or https", "sources")


def _s3(secret: Mapping[str, str]) -> pafs.FileSystem:
    get = os.environ.get
    region = secret.get("region") or get("AWS_REGION") or get("AWS_DEFAULT_REGION")
    endpoint = secret.get("endpoint_url") or get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL")
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
    """Return all data files whose paths begin with ``start``, without names that begin with ``_`` or
    ``.``."""
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
        raise UnreadableSource(f"no data files in {url}; check its name")
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
    # Links are followed once: a later change of a link has no effect.
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
    """Return the URL without possible secrets: user and password, and the query of HTTP with its
    signature."""
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
