"""Reads, makes, replaces and frees claims, each in one transaction.

A claim is a znode made by the owner's session. Its data is the owner's path, and its version is the zxid of
its last change: its creation, unless another program has written into it. It is valid while the owner's znode
exists.

ZooKeeper can delete a znode at a version of its data, but every new znode begins with version 0. So a version
doesn't show that a claim was replaced meanwhile. To replace or free a claim, a process therefore holds the
key's lock from before it reads until its transaction, which removes the lock. To claim a free key, a process
creates and deletes the lock in its transaction, which fails while another process holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from kazoo.exceptions import NodeExistsError, NoNodeError

from holdfast.errors import Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, claim_lost, membership_lost
from holdfast.services.zookeeper import layout
from holdfast.services.zookeeper.changes import note, noted
from holdfast.services.zookeeper.membership import ZooKeeperMembership
from holdfast.services.zookeeper.records import ClaimAnswer, LogEntry, decode_service, owner_path
from holdfast.services.zookeeper.session import (
    TransactionStep,
    ZooKeeperSession,
    check,
    create,
    delete,
    write,
)

TRIES = 50
LOCK_WAIT_S = 5.0
READ_TOGETHER = 500


class LivingClaim(NamedTuple):
    """A claim of a living membership, and the member's path in /services."""

    claim: Claim
    path: str


class _KeyTaken(Exception):
    """The key has a claim."""


class _KeyLocked(Exception):
    """The key's claim is being replaced at present."""


class _ClaimGone(Exception):
    """The claim that was read is gone, or its owner is."""


async def read(session: ZooKeeperSession, key: str) -> LivingClaim | None:
    """Return the claim that stands on ``key``, as ``session``'s server knows it."""
    try:
        data, stat = await session.get(layout.task(key))
    except NoNodeError:
        return None
    path = owner_path(data)
    service = await session.get_or_none(path) if path else None
    return _judge(key, path, stat, service)


async def read_all(session: ZooKeeperSession, keys: Iterable[str]) -> list[LivingClaim]:
    """Return the claims that stand on ``keys``, in their order. Asks once for each owner."""
    ordered = list(keys)
    services: dict[str, tuple[bytes, Any] | None] = {}
    standing = []
    for i in range(0, len(ordered), READ_TOGETHER):
        part = ordered[i : i + READ_TOGETHER]
        tasks = await session.get_all(layout.task(key) for key in part)
        paths = [owner_path(answer[0]) if answer else "" for answer in tasks]
        unknown = sorted(set(paths) - services.keys() - {""})
        services.update(zip(unknown, await session.get_all(unknown), strict=True))
        for key, path, answer in zip(part, paths, tasks, strict=True):
            found = _judge(key, path, answer[1], services.get(path)) if answer else None
            if found is not None:
                standing.append(found)
    return standing


async def claim(mine: ZooKeeperMembership, key: str, clock: Clock, request: str = "") -> Claim:
    """Claim ``key`` if it is free; returns the claim that stands. The answer goes to the znode ``request``,
    if given."""
    mine.keys.add(key)
    for _ in range(TRIES):
        steps = [
            check(mine.path, membership_lost(mine.member.id)),
            create(layout.lock(key), b"", _KeyLocked()),
            delete(layout.lock(key), _KeyLocked()),
        ]
        locked = False
        try:
            return await _put(mine, key, steps, request, events=1)
        except _KeyLocked:
            locked = True
        except _KeyTaken:
            pass
        standing = await read(mine.session, key)
        if standing is not None:
            break
        if locked:
            await _until_gone(mine.session, layout.lock(key))
        else:
            await _clear(mine.session, key, clock)
    else:
        raise Unavailable(f"{key}: too many claim it at once")
    if standing.path != mine.path:
        mine.keys.discard(key)
    if request:
        answer = ClaimAnswer(claim=standing.claim)
        await mine.session.set(request, msgspec.json.encode(answer), version=0)
    return standing.claim


async def take(mine: ZooKeeperMembership, claim: Claim, clock: Clock, request: str = "") -> Claim:
    """Replace ``claim`` by one of our own if it stands exactly so. Raises ClaimLost if it doesn't."""
    mine.keys.add(claim.key)
    try:
        async with _locked(mine.session, claim.key, clock) as unlock:
            path = await _exactly(mine.session, claim)
            steps = [
                check(path, _ClaimGone()),
                check(mine.path, membership_lost(mine.member.id)),
                delete(layout.task(claim.key), _ClaimGone()),
                unlock,
            ]
            return await _put(mine, claim.key, steps, request, events=2)
    except _ClaimGone:
        raise claim_lost(claim) from None


async def release(session: ZooKeeperSession, claim: Claim, clock: Clock) -> bool:
    """Free the key if ``claim`` stands exactly so."""
    try:
        async with _locked(session, claim.key, clock) as unlock:
            path = await _exactly(session, claim)
            steps = [check(path, _ClaimGone()), delete(layout.task(claim.key), _ClaimGone()), unlock]
            await noted(session, await session.commit([*steps, *note(LogEntry("claim", key=claim.key))]))
    except _ClaimGone:
        return False
    return True


# --- how it is done


def _judge(key: str, path: str, stat: Any, service: tuple[bytes, Any] | None) -> LivingClaim | None:
    if service is None:
        return None
    data, born = service
    if stat.ephemeralOwner != born.ephemeralOwner and stat.czxid < born.czxid:
        return None  # of an older session; a newer one has the same path
    return LivingClaim(Claim(key, decode_service(path, data).id, stat.mzxid), path)


async def _put(
    mine: ZooKeeperMembership, key: str, steps: list[TransactionStep], request: str, events: int
) -> Claim:
    """Make our claim in one transaction with ``steps``, which cause ``events`` events at its znode."""
    claim = create(layout.task(key), mine.path.encode(), _KeyTaken())
    entry = LogEntry("claim", key=key, owner=mine.member.id, events=events)
    answer = []
    if request:
        withdrawn = Unavailable(f"{request} was withdrawn")
        answer = [write(request, msgspec.json.encode(ClaimAnswer(done=True)), withdrawn, version=0)]
    results = await mine.session.commit([*steps, claim, *note(entry), *answer])
    return Claim(key, mine.member.id, await noted(mine.session, results))


async def _exactly(session: ZooKeeperSession, claim: Claim) -> str:
    """Return the owner's path, if ``claim`` is the present one. Raises _ClaimGone."""
    standing = await read(session, claim.key)
    if standing is None or standing.claim != claim:
        raise _ClaimGone
    return standing.path


async def _clear(session: ZooKeeperSession, key: str, clock: Clock) -> None:
    """Delete a dead claim: of a membership that was evicted, but whose session still lives."""
    with contextlib.suppress(_ClaimGone):
        async with _locked(session, key, clock) as unlock:
            if await read(session, key) is not None:
                raise _ClaimGone
            await session.commit([delete(layout.task(key), _ClaimGone()), unlock])


@asynccontextmanager
async def _locked(session: ZooKeeperSession, key: str, clock: Clock) -> AsyncIterator[TransactionStep]:
    """Hold a key's lock. Yields the step that removes it; the lock is removed here if anything is raised."""
    path, token = layout.lock(key), clock.new_id().encode()
    try:
        while True:
            try:
                await session.create(path, token)
                break
            except NodeExistsError:
                await _until_gone(session, path)
        yield delete(path, Unavailable(f"{key}: the lock was lost, with its session"))
    except BaseException:
        session.discard(path, token)
        raise


async def _until_gone(session: ZooKeeperSession, path: str) -> None:
    changed = asyncio.Event()
    try:
        async with asyncio.timeout(LOCK_WAIT_S):
            while await session.exists(path, changed.set) is not None:
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise Unavailable(f"{path}: another process has held this lock for {LOCK_WAIT_S:g} s") from None
