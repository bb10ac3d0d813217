"""Brings a client's request to the owner of its stream, and to the next owner if that fails, until there is
an answer.

Sending a request again is harmless: by its seq or request id, the owner sees that it is the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from holdfast.cluster.view import View
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.gateway.assigner import Assigner, CoordinatorSilent
from holdfast.gateway.request_format import TIMEOUT
from holdfast.http.problem import EPOCH, OWNER, TARGET_AWAY
from holdfast.http.tls import NO_TLS, PeerTls, PeerTrust
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.rules.cluster.gateway import Routes

CONNECT_TIMEOUT_S = 1.0
LATE_S = 1.0
"""Seconds after the client's timeout in which a node must answer: it answers itself when the timeout is
over."""

ASK_S = 0.5
"""Seconds to wait for the coordinator before a node is asked instead."""

DOUBT_S = 0.25
"""Seconds that a request waits for the probe of an unreachable node: the gateway itself may be cut off."""

AGAIN = frozenset({421, 502, 503})
"""The status codes after which another node, or the same a moment later, may succeed."""


class Reply(msgspec.Struct, frozen=True):
    """The answer of ``member`` for the client."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    member: str


class NodeUnreachable(Unavailable):
    """The node of ``member`` can't be reached from here."""

    def __init__(self, text: str, member: str) -> None:
        super().__init__(text)
        self.member = member


class Forwarder:
    """Forwards requests. ``secret`` is the nodes' ``peer_secret``; with ``tls``, nodes speak TLS."""

    def __init__(
        self,
        assigner: Assigner,
        routes: Routes,
        view: View,
        clock: Clock,
        *,
        secret: str | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self._assigner = assigner
        self._routes = routes
        self._view = view
        self._clock = clock
        self._authorization = f"Bearer {secret}" if secret else ""
        self._tls_name = tls.name if tls is not None else None
        self._trust = PeerTrust(tls) if tls is not None else None
        self._backoff = Backoff(0.005, 0.25)
        self._session: aiohttp.ClientSession | None = None
        self._under_way: dict[str, set[asyncio.Task[Reply]]] = {}
        self._probing: set[asyncio.Task[None]] = set()
        self.retries = 0
        self.answers: Counter[int] = Counter()

    async def forward(
        self,
        key: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        *,
        query: str = "",
    ) -> Reply:
        """Return the owner's answer, or the last error answer if no better one comes within ``timeout_s``.
        ``query`` is the method of a query; "" for a message. Any node may answer a query, and no node gets
        the key for it. ``path`` is as the client wrote it.

        Raises Unavailable or OutcomeUnknown, from the last try."""
        deadline = self._clock.monotonic() + timeout_s
        failures, lost = 0, ""
        while True:
            outcome: Reply | HoldfastError
            left_s = deadline - self._clock.monotonic()
            try:
                if query:
                    member = self._assigner.placing.reader(key, failures)
                else:
                    member = await self._find(key, lost, left_s)
                lost = ""
                outcome = reply = await self._try(member, path, headers, body, left_s, query or "POST")
                if reply.status not in AGAIN or TARGET_AWAY.encode() in reply.body:
                    self._learn(key, reply)
                    self.answers[reply.status] += 1
                    return reply
                moved = not query and self._redirected(key, member, reply)
            except HoldfastError as error:
                outcome, moved = error, False
                lost = error.member if isinstance(error, NodeUnreachable) else ""
            failures += 1
            pause_s = (
                0.0 if moved and failures == 1 else self._backoff.delay_s(failures, self._clock.random())
            )
            if self._clock.monotonic() + pause_s >= deadline:
                if isinstance(outcome, HoldfastError):
                    raise outcome
                if outcome.status == 421:
                    raise Unavailable(f"{key}: its owner could not be reached in time")
                return outcome
            self.retries += 1
            await self._clock.sleep(pause_s)

    async def _find(self, key: str, lost: str, left_s: float) -> Member:
        """Return the owner. If the owner is the unreachable ``lost``, or the coordinator doesn't answer,
        return another node: one that isn't cut off knows the owner or takes the stream."""
        if lost in self._view.members and (other := self._assigner.placing.another(key, lost)):
            return other
        try:
            return await self._resolve(key, left_s)
        except CoordinatorSilent:
            if other := self._assigner.placing.another(key, lost):
                return other
            raise

    async def _resolve(self, key: str, left_s: float) -> Member:
        try:
            async with asyncio.timeout(max(0.0, min(left_s, ASK_S))):
                return await self._assigner.resolve(key)
        except TimeoutError:
            raise CoordinatorSilent(f"{key}: the coordinator does not answer in time") from None

    async def _try(
        self, member: Member, path: str, headers: Mapping[str, str], body: bytes, left_s: float, method: str
    ) -> Reply:
        if self._trust is not None and not member.foreign and not member.address.startswith("https://"):
            raise NodeUnreachable(f"{member.name} is not called without TLS: {NO_TLS}", member.id)
        sent = {**headers, TIMEOUT: str(max(1, int(left_s * 1000)))}
        if self._authorization and not member.foreign:  # the nodes' secret is for nodes only
            sent["Authorization"] = self._authorization
        try:
            url = URL(f"{member.address}{path}", encoded=True)
        except ValueError as error:
            raise NodeUnreachable(f"{member.name} has no address that can be reached", member.id) from error
        timeout = aiohttp.ClientTimeout(total=left_s + LATE_S, sock_connect=CONNECT_TIMEOUT_S)
        post = asyncio.create_task(self._post(member, method, url, sent, body, timeout))
        self._under_way.setdefault(member.id, set()).add(post)
        try:
            return await post
        except aiohttp.ClientConnectorError as error:
            await self._doubt(member)
            raise NodeUnreachable(f"can't reach {member.name}", member.id) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await self._doubt(member)
            raise OutcomeUnknown(f"lost {member.name} before its answer") from error
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise  # the client has left
            raise OutcomeUnknown(f"{member.name} left before its answer") from None
        finally:
            post.cancel()
            self._under_way.get(member.id, set()).discard(post)

    async def _post(
        self,
        member: Member,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes,
        timeout: aiohttp.ClientTimeout,
    ) -> Reply:
        # Follow no redirects: the headers hold the nodes' secret. Only an owner's 421 sends a request
        # elsewhere.
        async with self._client().request(
            method,
            url,
            data=body or None,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            server_hostname=self._tls_name if not member.foreign else None,  # it is the name of nodes
        ) as response:
            return Reply(response.status, CIMultiDict(response.headers), await response.read(), member.id)

    def left(self, member: str) -> None:
        """Note that a membership has ended: requests that wait for its answer go to the next owner."""
        self._routes.left(member)
        for post in self._under_way.pop(member, ()):
            post.cancel()

    async def _doubt(self, member: Member) -> None:
        """Probe a member after a failed connection. On evidence of its death, its membership ends at once."""
        probing = asyncio.create_task(self._view.suspect(member.id))
        self._probing.add(probing)
        probing.add_done_callback(self._probing.discard)
        await asyncio.wait((probing,), timeout=DOUBT_S)

    def _learn(self, key: str, reply: Reply) -> None:
        if reply.headers.get(OWNER) == reply.member:
            self._routes.answered(key, reply.member, _epoch(reply))

    def _redirected(self, key: str, member: Member, reply: Reply) -> bool:
        """Return True if the answer names another owner, at an epoch that isn't below the known one. Without
        an epoch, the coordinator has just named the owner to that node."""
        owner, epoch = reply.headers.get(OWNER, ""), _epoch(reply)
        if reply.status == 421 and owner and owner != member.id:
            if not epoch:
                self._routes.claimed(key, owner)
                return True
            if self._routes.answered(key, owner, epoch):
                return True
        self._routes.forget(key, member.id)
        return False

    def _client(self) -> aiohttp.ClientSession:
        if self._trust is not None:
            self._trust.look()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._trust.context if self._trust else True),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        for probing in self._probing:
            probing.cancel()
        if self._session is not None:
            await self._session.close()


def _epoch(reply: Reply) -> int:
    text = reply.headers.get(EPOCH, "")
    return int(text) if text.isdigit() else 0
