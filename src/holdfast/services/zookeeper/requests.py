"""The requests of one membership to another through ZooKeeper: to claim a key, or to take a claim over.

Only a membership's own session can make znodes that end with it, so a claim for another member is made by
that member. The caller creates a request and rings; the member answers in the same transaction that makes
the claim. A request that is withdrawn before its answer never has an effect.
"""

from __future__ import annotations

import asyncio

import msgspec
from kazoo.exceptions import BadVersionError, NoNodeError

from holdfast.errors import ClaimLost, MembershipLost, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, membership_lost
from holdfast.services.zookeeper import claims, layout
from holdfast.services.zookeeper.membership import ZooKeeperMembership
from holdfast.services.zookeeper.records import ClaimAnswer, Request, decode_answer, decode_path
from holdfast.services.zookeeper.session import ZooKeeperSession, create, write

ANSWER_S = 5.0
LOOK_S = 0.5
"""Seconds between checks of a member that hasn't answered yet."""

_errors = {error.__name__: error for error in (ClaimLost, MembershipLost, Unavailable)}


async def ask(session: ZooKeeperSession, clock: Clock, member: str, request: Request) -> Claim:
    """Ask ``member`` to make a claim; returns the present claim. Raises what the member raises, and
    Unavailable if it doesn't answer; the request then never takes effect."""
    inbox = layout.member(member)
    found = await session.get_or_none(inbox)
    if found is None:
        raise membership_lost(member)
    service = decode_path(inbox, found[0])
    path = f"{layout.REQUESTS}/{layout.basename(service)}.{clock.new_id()}"
    missing = Unavailable(f"{layout.REQUESTS} is missing; the next node that joins creates it")
    leave = create(path, msgspec.json.encode(request), missing)
    try:
        await session.commit([write(inbox, found[0], membership_lost(member)), leave])
        data, zxid = await _answered(session, clock, member, service, path)
    finally:
        session.discard(path)
    answer = decode_answer(path, data)
    if answer.done:
        return Claim(request.key, member, zxid)
    if answer.claim is not None:
        return answer.claim
    raise _errors.get(answer.error, Unavailable)(answer.text)


async def serve(mine: ZooKeeperMembership, clock: Clock, path: str, request: Request) -> None:
    """Do what a request asks of ``mine``, and answer."""
    try:
        if request.claim is None:
            await claims.claim(mine, request.key, clock, path)
        else:
            await claims.take(mine, request.claim, clock, path)
    except tuple(_errors.values()) as error:
        answer = ClaimAnswer(error=type(error).__name__, text=str(error))
        await mine.session.set(path, msgspec.json.encode(answer), version=0)


async def _answered(
    session: ZooKeeperSession, clock: Clock, member: str, service: str, path: str
) -> tuple[bytes, int]:
    """Wait for the answer; returns it with its zxid."""
    changed = asyncio.Event()
    deadline = clock.monotonic() + ANSWER_S
    gone = False
    try:
        while True:
            data, stat = await session.get(path, changed.set)
            if stat.version:
                return data, stat.mzxid
            if gone:
                raise membership_lost(member)
            if await clock.wait(changed, LOOK_S):
                changed.clear()
                continue
            gone = await session.exists(service) is None  # if so, look once more: it may have answered before
            if not gone and clock.monotonic() >= deadline and await _taken_back(session, path):
                break
    except (NoNodeError, Unavailable) as error:
        raise OutcomeUnknown(f"{member} was asked, but then: {error}") from error
    raise Unavailable(f"{member} doesn't answer at the coordinator")


async def _taken_back(session: ZooKeeperSession, path: str) -> bool:
    try:
        await session.delete(path, version=0)
    except BadVersionError:
        return False
    return True
