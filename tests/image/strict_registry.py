"""A registry that does what specifications allow and Docker's registry doesn't.

It demands tokens that soon expire, keeps the bytes of a broken upload, sends URLs without its address, has
blobs elsewhere, and keeps track of what refers to an image.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import msgspec
from aiohttp import web

from holdfast.image.oci import digest_of


class StrictRegistry:
    """``uses_a_token`` requests are served for a token. ``cut_at`` cuts the connection once, after a number
    of bytes of uploads. ``unanswered`` has the methods by which uploads get no answer. ``elsewhere`` has the
    Authorization of each request to the other storage."""

    def __init__(self, *, uses_a_token: int = 1 << 30, identity_token: str = "") -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.cut_at = 0
        self.unanswered: set[str] = set()
        self.received = 0
        self.scopes: list[str] = []
        self.elsewhere: list[str | None] = []
        self._identity_token = identity_token
        self._uses = uses_a_token
        self._tokens: dict[str, tuple[set[str], int]] = {}
        self._begun = 0
        self._uploads: dict[str, bytearray] = {}

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(
            [
                web.route("*", "/token", self._token),
                web.get("/elsewhere/{digest}", self._stored),
                web.route("*", "/v2/{name:.+}/blobs/uploads/{id:.*}", self._upload),
                web.route("*", "/v2/{name:.+}/blobs/{digest}", self._blob),
                web.route("*", "/v2/{name:.+}/manifests/{reference}", self._manifest),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        self._sites = [web.TCPSite(self._runner, "127.0.0.1", 0) for _ in range(2)]
        for site in self._sites:
            await site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def _token(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            form = await request.post()
            if form["refresh_token"] != self._identity_token:
                return web.Response(status=401)
            scopes = str(form["scope"]).split()
        else:
            scopes = request.query.getall("scope")
        self.scopes += scopes
        token = f"token-{len(self._tokens)}"
        self._tokens[token] = (set(scopes), self._uses)
        return web.json_response({"token": token, "expires_in": 300})

    def _allowed(self, request: web.Request, scope: str) -> bool:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        scopes, uses = self._tokens.get(token, (set(), 0))
        if scope not in scopes or not uses:
            return False
        self._tokens[token] = scopes, uses - 1
        return True

    def _challenge(self) -> web.Response:
        realm = f'Bearer realm="http://{self.address}/token",service="strict"'
        return web.Response(status=401, headers={"WWW-Authenticate": realm})

    async def _upload(self, request: web.Request) -> web.Response:
        name, place = request.match_info["name"], request.match_info["id"]
        if not self._allowed(request, f"repository:{name}:pull,push"):
            return self._challenge()
        if request.method in self.unanswered:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if request.method == "POST":
            if (source := request.query.get("from")) is not None:
                held = self.blobs.get((source, request.query["mount"]))
                if held is not None and any(scope == f"repository:{source}:pull" for scope in self.scopes):
                    self.blobs[name, request.query["mount"]] = held
                    return web.Response(status=201)
            self._begun += 1
            place = f"upload-{self._begun}"
            self._uploads[place] = bytearray()
            return self._accepted(name, place, 202)
        if place not in self._uploads:
            return web.Response(status=404)
        upload = self._uploads[place]
        if request.method == "PATCH":
            if int(request.headers["Content-Range"].partition("-")[0]) != len(upload):
                return web.Response(status=416)
            async for data in request.content.iter_chunked(1 << 14):
                upload += data
                self.received += len(data)
                if self.cut_at and self.received >= self.cut_at:
                    self.cut_at = 0
                    assert request.transport is not None
                    request.transport.abort()
                    await asyncio.sleep(0)
                    return web.Response(status=500)
        if request.method == "PUT":
            if digest_of(bytes(upload)) != request.query["digest"]:
                return web.Response(status=400)
            self.blobs[name, request.query["digest"]] = bytes(self._uploads.pop(place))
            return web.Response(status=201)
        return self._accepted(name, place, 202 if request.method == "PATCH" else 204)

    def _accepted(self, name: str, place: str, status: int) -> web.Response:
        last = max(0, len(self._uploads[place]) - 1)
        headers = {"Location": f"/v2/{name}/blobs/uploads/{place}?state=a%2Fb", "Range": f"0-{last}"}
        return web.Response(status=status, headers=headers)

    async def _blob(self, request: web.Request) -> web.Response:
        name, digest = request.match_info["name"], request.match_info["digest"]
        if not any(self._allowed(request, f"repository:{name}:{right}") for right in ("pull", "pull,push")):
            return self._challenge()
        if (name, digest) not in self.blobs:
            return web.Response(status=404)
        if request.method == "HEAD":
            return web.Response(headers={"Content-Length": str(len(self.blobs[name, digest]))})
        port = self._runner.addresses[1][1]
        return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{port}/elsewhere/{digest}"})

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        self.elsewhere.append(request.headers.get("Authorization"))
        digest = request.match_info["digest"]
        data = next(data for (_, each), data in self.blobs.items() if each == digest)
        begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
        response = web.StreamResponse(status=206 if begin else 200)
        await response.prepare(request)
        if len(self.elsewhere) == 1:
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(data[begin:])
        return response

    async def _manifest(self, request: web.Request) -> web.Response:
        name, reference = request.match_info["name"], request.match_info["reference"]
        if not any(self._allowed(request, f"repository:{name}:{right}") for right in ("pull", "pull,push")):
            return self._challenge()
        if request.method == "PUT":
            data = await request.read()
            held: dict[str, Any] = msgspec.json.decode(data)
            for key in (reference, digest_of(data)):
                self.manifests[name, key] = request.headers["Content-Type"], data
            subject = {"OCI-Subject": held["subject"]["digest"]} if "subject" in held else {}
            return web.Response(status=201, headers=subject)
        if (name, reference) not in self.manifests:
            return web.Response(status=404)
        kind, data = self.manifests[name, reference]
        return web.Response(body=data, content_type=kind)
