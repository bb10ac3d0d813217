"""A client of registries (OCI distribution specification), for pulls and pushes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec
from yarl import URL

from holdfast.common.http_errors import describe_http_error
from holdfast.common.record import UNREADABLE
from holdfast.errors import ConfigError, Damaged, LoginRefused, NotKnown, OperationRefused, Unavailable
from holdfast.image import credentials
from holdfast.image.blobs import CHUNK, Blobs
from holdfast.image.oci import INDEXES, MANIFESTS, Descriptor, digest_of

TRIES = 5
PAUSE_S = 0.5
CONNECT_S = 10.0
SILENT_S = 60.0
PART_BYTES = 32 << 20
"""Bytes of one part of an upload. After each part the registry reports how much it has."""
REDIRECTS_MAX = 5
TOKEN_S = 60.0
"""Lifetime in seconds of a token that doesn't state its own."""
TOKEN_MARGIN_S = 10.0
ERROR_CHARS = 500

_LOCAL = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class _Issued(msgspec.Struct, frozen=True):
    """A token, as a registry issues it."""

    token: str | None = None
    access_token: str | None = None
    expires_in: float | None = None


class _RegistryAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    url: URL

    @property
    def location(self) -> URL:
        """The URL of the next request. Raises OperationRefused if the answer has none."""
        return _joined(self.url, self.headers)


class RegistryClient:
    """One registry; use it with ``async with``. ``sent_bytes`` counts the bodies of requests."""

    def __init__(self, host: str, blobs: Blobs, *, insecure: bool = False) -> None:
        self.host = host
        self.sent_bytes = 0
        plain = insecure or _LOCAL.fullmatch(host) is not None
        try:
            self._root = URL(f"{'http' if plain else 'https'}://{host}")
        except ValueError as error:
            raise ConfigError(f"registry {host!r} must be HOST or HOST:PORT: {error}") from None
        self._blobs = blobs
        self._http: aiohttp.ClientSession | None = None
        self._basic: dict[str, str] = {}
        self._tokens: dict[tuple[str, ...], tuple[str, float]] = {}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        # Without trust_env, which would send the logins of ~/.netrc, also after redirects.
        self._http = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None, "used with async with"
        await self._http.close()

    # --- manifests

    async def manifest(self, repository: str, reference: str) -> tuple[Descriptor, bytes]:
        """Return the manifest of a tag or a digest. Raises NotKnown."""
        accept = ", ".join((*INDEXES, *MANIFESTS))
        url = self._url(repository, "manifests", reference)
        answer = await self._retried("GET", url, _pull(repository), headers={"Accept": accept})
        if answer.status == 404:
            raise NotKnown(f"{self.host} has no {repository}:{reference}")
        self._check(answer, repository, 200)
        digest = digest_of(answer.body)
        if reference.startswith("sha256:") and digest != reference:
            raise Damaged(f"{self.host} answered {reference} of {repository} with {digest}")
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        return Descriptor(media_type=kind, digest=digest, size=len(answer.body)), answer.body

    async def put_manifest(self, repository: str, reference: str, media_type: str, data: bytes) -> bool:
        """Put a manifest under a tag or its digest. Return whether the registry lists artifacts that refer to
        it."""
        url, headers = self._url(repository, "manifests", reference), {"Content-Type": media_type}
        answer = await self._retried("PUT", url, _push(repository), headers=headers, data=lambda: data)
        self._check(answer, repository, 201)
        return "OCI-Subject" in answer.headers

    # --- blobs

    async def has_blob(self, repository: str, digest: str) -> bool:
        answer = await self._retried("HEAD", self._url(repository, "blobs", digest), _push(repository))
        if answer.status not in (200, 307, 404):
            self._check(answer, repository, 200)
        return answer.status != 404

    async def pull_blob(self, repository: str, descriptor: Descriptor) -> None:
        """Fetch a blob into the folder of blobs. After a broken connection, the fetch goes on where it
        was."""
        if self._blobs.has(descriptor.digest):
            return
        with self._blobs.writing(descriptor.digest) as file:
            for left in reversed(range(TRIES)):
                try:
                    async for data in self._read(repository, descriptor, file.size):
                        file.write(data)
                    break
                except Unavailable:
                    if not left:
                        raise
                    await asyncio.sleep(PAUSE_S)

    async def mount(self, repository: str, digest: str, source: str) -> bool:
        """Take a blob from another repository of the registry. Return whether that was possible."""
        url = (self._url(repository, "blobs", "uploads") / "").with_query({"mount": digest, "from": source})
        try:
            answer = await self._retried("POST", url, (*_push(repository), *_pull(source)))
        except LoginRefused:
            return False  # the other repository refuses
        if answer.status == 202:  # it has begun an upload instead, which it drops some day anyway
            with contextlib.suppress(Unavailable, LoginRefused, OperationRefused):
                await self._ask("DELETE", answer.location, _push(repository))
        return answer.status == 201

    async def push_blob(self, repository: str, descriptor: Descriptor, path: Path) -> None:
        """Push a blob. An interrupted upload, also that of an earlier process, goes on where it was."""
        digest = descriptor.digest
        note = self._blobs.note("upload", f"{self.host}/{repository}@{digest}".encode())
        noted = self._blobs.noted(note)
        place: URL | None = None
        done = 0
        if noted:
            with contextlib.suppress(Unavailable):
                place, done = await self._continued(repository, URL(noted.decode(), encoded=True))
        failures = 0
        while True:
            try:
                if place is None:
                    place, done = await self._begin(repository), 0
                    note.write_text(str(place))
                while done < descriptor.size:
                    place, done = await self._send_part(repository, place, path, done, descriptor.size)
                    note.write_text(str(place))
                answer = await self._ask("PUT", place.update_query(digest=digest), _push(repository))
                if answer.status in (400, 404) and failures < TRIES:  # it has other bytes: from the start
                    failures, place = failures + 1, None
                    continue
                self._check(answer, repository, 201)
                note.unlink(missing_ok=True)
                return
            except Unavailable:
                failures += 1
                if failures > TRIES:
                    raise
                await asyncio.sleep(PAUSE_S * failures)
                if place is not None:
                    with contextlib.suppress(Unavailable):
                        place, done = await self._continued(repository, place)

    async def _begin(self, repository: str) -> URL:
        url = self._url(repository, "blobs", "uploads") / ""
        answer = await self._ask("POST", url, _push(repository))
        self._check(answer, repository, 202)
        return answer.location

    async def _continued(self, repository: str, place: URL) -> tuple[URL | None, int]:
        """Return an upload's URL and how many bytes the registry has; None and 0 if it must begin again."""
        answer = await self._ask("GET", place, _push(repository))
        if answer.status != 204:
            return None, 0
        return (answer.location if "Location" in answer.headers else place), _received(answer.headers)

    async def _send_part(
        self, repository: str, place: URL, path: Path, done: int, size: int
    ) -> tuple[URL, int]:
        end = min(done + PART_BYTES, size)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - done),
            "Content-Range": f"{done}-{end - 1}",
        }
        answer = await self._ask(
            "PATCH", place, _push(repository), headers=headers, data=lambda: self._part(path, done, end)
        )
        if answer.status in (404, 416):
            raise Unavailable(f"{self.host} has dropped an upload, or has other bytes of it than were sent")
        self._check(answer, repository, 202)
        received = _received(answer.headers) or end
        if received <= done:
            raise Unavailable(f"{self.host} has accepted no bytes of an upload's part")
        return answer.location, received

    async def _part(self, path: Path, begin: int, end: int) -> AsyncIterator[bytes]:
        with path.open("rb") as file:  # a local file, in small pieces
            file.seek(begin)
            while begin < end:
                data = file.read(min(CHUNK, end - begin))
                begin += len(data)
                self.sent_bytes += len(data)
                yield data

    async def _read(self, repository: str, descriptor: Descriptor, begin: int) -> AsyncIterator[bytes]:
        url = self._url(repository, "blobs", descriptor.digest)
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        authorization = await self._authorization(_pull(repository))
        for _ in range(REDIRECTS_MAX):
            # A storage service elsewhere must not get the registry's credentials.
            given = {"Authorization": authorization} if authorization and url.origin() == self._root else {}
            try:
                assert self._http is not None, "used with async with"
                async with self._http.get(
                    url, headers=headers | given, allow_redirects=False, proxy=_proxy(url)
                ) as response:
                    if response.status in (301, 302, 303, 307, 308):
                        url = _joined(url, response.headers)
                        continue
                    if response.status == 401 and url.origin() == self._root:
                        authorization = await self._log_in(
                            response.headers.get("WWW-Authenticate", ""), _pull(repository), authorization
                        )
                        continue
                    answer = _RegistryAnswer(response.status, response.headers, b"", url)
                    self._check(answer, repository, 206 if begin and response.status == 206 else 200)
                    skip = begin if response.status == 200 else 0
                    async for data in response.content.iter_chunked(CHUNK):
                        yield data[skip:]
                        skip = max(0, skip - len(data))
                    return
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise Unavailable(f"{self.host} broke off: {describe_http_error(error)}") from None
        raise Unavailable(f"{self.host} redirects too often for a blob of {repository}")

    # --- requests

    def _url(self, repository: str, kind: str, name: str) -> URL:
        return self._root / f"v2/{repository}/{kind}/{name}"

    async def _retried(self, *request: Any, **options: Any) -> _RegistryAnswer:
        """Send a request as ``_ask`` does, again after temporary errors."""
        for left in reversed(range(TRIES)):
            with contextlib.suppress(Unavailable) if left else contextlib.nullcontext():
                answer = await self._ask(*request, **options)
                if answer.status not in (429, 500, 502, 503, 504) or not left:
                    return answer
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _ask(
        self,
        method: str,
        url: URL,
        scopes: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        data: Callable[[], Any] | None = None,
    ) -> _RegistryAnswer:
        """Send one request, and log in if the registry demands it. Raises Unavailable without an answer."""
        ours = url.origin() == self._root
        authorization = await self._authorization(scopes) if ours else ""
        answer = await self._send(method, url, headers or {}, data, authorization)
        if answer.status == 401 and ours:
            authorization = await self._log_in(
                answer.headers.get("WWW-Authenticate", ""), scopes, authorization
            )
            answer = await self._send(method, url, headers or {}, data, authorization)
        return answer

    async def _send(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        data: Callable[[], Any] | None,
        authorization: str,
    ) -> _RegistryAnswer:
        assert self._http is not None, "used with async with"
        given = dict(headers) | ({"Authorization": authorization} if authorization else {})
        body = data() if data else None
        if isinstance(body, bytes):
            self.sent_bytes += len(body)
        try:
            async with self._http.request(
                method, url, headers=given, data=body, allow_redirects=False, proxy=_proxy(url)
            ) as response:
                return _RegistryAnswer(response.status, response.headers, await response.read(), url)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{self.host} can't be reached: {describe_http_error(error)}") from None

    def _check(self, answer: _RegistryAnswer, repository: str, expected: int) -> None:
        """Raise the error of an answer, unless it has the expected status."""
        if answer.status == expected:
            return
        body = answer.body[:ERROR_CHARS].decode(errors="replace").strip()
        text = f"{self.host} answers {answer.status} for {repository}{f': {body}' if body else ''}"
        if answer.status in (401, 403):
            raise LoginRefused(f"{text}; log in as another user, with docker login or podman login")
        if answer.status == 404:
            raise NotKnown(text)
        if answer.status == 429 or answer.status >= 500:
            raise Unavailable(text)
        raise OperationRefused(text)

    # --- logins

    async def _authorization(self, scopes: Sequence[str]) -> str:
        """Return the header for some scopes; empty if it is unknown yet."""
        token, until = self._tokens.get(tuple(scopes), ("", 0.0))
        if token and time.monotonic() < until:
            return f"Bearer {token}"
        return self._basic.get(scopes[0], "")

    async def _log_in(self, challenge: str, scopes: Sequence[str], refused: str) -> str:
        """Return the header for a registry's challenge. ``refused``: the header that was sent, or empty.
        Raises LoginRefused."""
        kind, _, rest = challenge.partition(" ")
        repository = scopes[0].split(":")[1]
        known = await asyncio.to_thread(credentials.find, self.host, repository)
        if kind.lower() == "basic":
            if known is None or known.basic == refused:
                raise LoginRefused(
                    f"{self.host} demands a login for {repository}"
                    + (", and refuses the stored one" if known else "")
                    + f": docker login {self.host}, or podman login"
                )
            self._basic[scopes[0]] = known.basic
            return known.basic
        wanted = dict(_PARAMETER.findall(rest))
        if kind.lower() != "bearer" or "realm" not in wanted:
            raise LoginRefused(
                f"{self.host} demands a login by {kind or 'an unknown way'}, which isn't supported"
            )
        token, lives_s = await self._token(wanted, scopes, known)
        self._tokens[tuple(scopes)] = token, time.monotonic() + lives_s - TOKEN_MARGIN_S
        return f"Bearer {token}"

    async def _token(
        self, wanted: Mapping[str, str], scopes: Sequence[str], known: credentials.RegistryLogin | None
    ) -> tuple[str, float]:
        try:
            realm = URL(wanted["realm"])
            realm.origin()
        except ValueError:
            raise OperationRefused(
                f"{self.host} demands a login at {wanted['realm']!r:.200}, which isn't a URL"
            ) from None
        if realm.scheme != "https" and self._root.scheme == "https":
            raise LoginRefused(f"{self.host} demands credentials at {realm.origin()}, without TLS: refused")
        if known is not None and known.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": wanted.get("service", ""),
                "scope": " ".join(scopes),
                "client_id": "holdfast",
                "refresh_token": known.identity_token,
            }
            answer = await self._send("POST", realm, {}, lambda: aiohttp.FormData(form), "")
        else:
            query = [("service", wanted["service"])] if "service" in wanted else []
            url = realm.update_query([*realm.query.items(), *query, *(("scope", scope) for scope in scopes)])
            answer = await self._send("GET", url, {}, None, known.basic if known else "")
        if answer.status != 200:
            raise LoginRefused(
                f"{realm.host} answers {answer.status} to the login for {self.host}: log in again, with"
                " docker login or podman login"
            )
        try:
            issued = msgspec.json.decode(answer.body, type=_Issued)
        except UNREADABLE as error:
            raise OperationRefused(
                f"{realm.host} answers the login for {self.host} without a token ({error})"
            ) from None
        if not (token := issued.token or issued.access_token):
            raise OperationRefused(f"{realm.host} answers the login for {self.host} without a token")
        return token, issued.expires_in or TOKEN_S


def _joined(url: URL, headers: Mapping[str, str]) -> URL:
    """Return the URL of an answer's header Location, whose scheme and host may be left out. Raises
    OperationRefused if it has none."""
    place = headers.get("Location", "")
    with contextlib.suppress(ValueError):
        found = url.join(URL(place, encoded=True))
        if place and found.scheme in ("http", "https") and found.host:
            return found
    raise OperationRefused(
        f"{url.host} should send a URL, and its header Location is {place!r:.200}: it isn't a registry, or a"
        " proxy changes its answers"
    )


def _received(headers: Mapping[str, str]) -> int:
    """Return how many bytes of an upload a registry has. Its header has the first and last, or ``0-0`` for
    none."""
    last = headers.get("Range", "").rpartition("-")[2]
    return int(last) + 1 if last.isdecimal() and int(last) else 0


def _proxy(url: URL) -> str | None:
    if urllib.request.proxy_bypass(f"{url.host}:{url.port}"):
        return None
    return urllib.request.getproxies().get(url.scheme)


def _pull(repository: str) -> tuple[str, ...]:
    return (f"repository:{repository}:pull",)


def _push(repository: str) -> tuple[str, ...]:
    return (f"repository:{repository}:pull,push",)
