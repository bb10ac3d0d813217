"""Dead letters on SQS: messages in the dead-letter queue, each with its reason and place in an attribute.

SQS can't find a single message. So each listing, redrive or purge receives all dead letters and gives back
the others: one call for every ten, and one more to give them back. Meanwhile they are hidden from other
readers. One scan reads ``SCAN_MAX`` dead letters at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.common.progress import chunks
from holdfast.common.record import UNREADABLE
from holdfast.errors import HoldfastError, TooLarge
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter
from holdfast.services.aws.channel import OWN, Channel
from holdfast.services.aws.message import MESSAGE_BYTES, Entry, decode, encode, size
from holdfast.services.aws.sqs import SqsMessage
from holdfast.system.log import get_logger

log = get_logger(__name__)

SCAN_MAX = 10_000
SCAN_WAIT_S = 1
SCAN_VISIBILITY_S = 120.0
IN_VAIN_MAX = 3
"""Calls in a row with only known dead letters, after which the scan ends."""

SCAN_CALLS = 8
"""Calls under way at once to give letters back."""

RETENTION_MAX_S = 14 * 24 * 3600
"""Seconds after which SQS itself drops messages."""


@dataclass(frozen=True, slots=True)
class HeldDeadLetter:
    """A received dead letter: one delivery from the dead-letter queue. ``group`` is its FIFO group, if the
    queue itself moved it there."""

    letter: DeadLetter
    receipt: str
    group: str


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, clock: Clock, queue: Channel, dead: Channel, receives_max: int) -> None:
        self.dead = dead
        self._clock = clock
        self._queue = queue
        self._receives_max = receives_max

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Add dead letters. A letter that is already there is added again, but listed once."""
        at = self._clock.wall()
        await self.dead.send([_entry(letter, at) for letter in letters], [""] * len(letters))

    async def page(self, limit: int, after: str, key: str | None) -> list[DeadLetter]:
        """Return dead letters in order of id, after the id ``after``; only of ``key`` if given."""
        listed: dict[str, DeadLetter] = {}

        def see(found: HeldDeadLetter) -> bool:
            letter = found.letter
            if letter.id > after and key in (None, letter.key):
                known = listed.get(letter.id)
                if known is None or letter.at < known.at:
                    listed[letter.id] = letter
                if len(listed) > limit:
                    del listed[max(listed)]
            return False

        async with self._taken(see):
            return [listed[name] for name in sorted(listed)]

    async def redrive(self, ids: Sequence[str]) -> int:
        """Send dead letters to the queue again, in that order, and remove them, ten by ten; returns how many.
        If this is interrupted, up to ten come twice."""
        wanted = dict.fromkeys(ids)
        async with self._taken(lambda found: found.letter.id in wanted) as taken:
            same: dict[str, list[HeldDeadLetter]] = {}
            for item in taken:
                same.setdefault(item.letter.id, []).append(item)
            for names in chunks([name for name in wanted if name in same], 10):
                again = [same[name][0] for name in names]
                entries = [encode(item.letter.body, item.letter.attributes) for item in again]
                await self._queue.send(entries, [item.group or item.letter.key for item in again])
                await self._drop([item for name in names for item in same[name]])
            return len(same)

    async def purge(self, ids: Sequence[str]) -> int:
        """Remove letters for good; returns how many."""
        wanted = {*ids}
        async with self._taken(lambda found: found.letter.id in wanted) as taken:
            return await self._drop(taken)

    async def expire(self, before: float) -> int:
        """Remove letters older than this wall time; returns how many."""
        if before < self._clock.wall() - RETENTION_MAX_S:
            return 0
        async with self._taken(lambda found: found.letter.at < before) as taken:
            return await self._drop(taken)

    async def count(self) -> int:
        """Return the approximate number of dead letters."""
        counts = await self.dead.attributes(*COUNTS)
        return sum(int(counts.get(name, 0)) for name in COUNTS)

    async def _drop(self, taken: Sequence[HeldDeadLetter]) -> int:
        for some in chunks(taken, 10):
            await self.dead.delete([item.receipt for item in some])
        return len({item.letter.id for item in taken})

    @contextlib.asynccontextmanager
    async def _taken(self, wanted: Callable[[HeldDeadLetter], bool]) -> AsyncIterator[list[HeldDeadLetter]]:
        """Receive all dead letters, and keep the ``wanted`` ones. The others are given back at the end;
        if that fails, they become visible after their visibility."""
        taken: list[HeldDeadLetter] = []
        others: list[str] = []
        try:
            async for found in self._scan():
                if wanted(found):
                    taken.append(found)
                else:
                    others.append(found.receipt)
            yield taken
        except BaseException:
            others += [item.receipt for item in taken]
            raise
        finally:
            with contextlib.suppress(HoldfastError):
                await asyncio.shield(self._give_back(others))

    async def _scan(self) -> AsyncIterator[HeldDeadLetter]:
        """Receive every letter once."""
        seen: set[str] = set()
        in_vain = 0
        while len(seen) < SCAN_MAX:
            messages = await self.dead.receive(10, SCAN_WAIT_S, SCAN_VISIBILITY_S)
            new = [message for message in messages if message.message_id not in seen]
            in_vain = 0 if new else in_vain + 1
            if not messages or in_vain == IN_VAIN_MAX:
                return
            for message in new:
                seen.add(message.message_id)
                yield self._read(message)
        log.warning("scan limit of dead letters reached", queue=self.dead.name, seen=len(seen))

    async def _give_back(self, receipts: Sequence[str]) -> None:
        limit = asyncio.Semaphore(SCAN_CALLS)

        async def give_back(some: Sequence[str]) -> None:
            async with limit:
                await self.dead.hide(some, 0)

        await asyncio.gather(*(give_back(some) for some in chunks(receipts, 10)))

    def _read(self, message: SqsMessage) -> HeldDeadLetter:
        body, attributes, reply = decode(message)
        try:
            record = msgspec.json.decode(reply, type=dict[str, Any])
            letter = msgspec.convert({"body": body, "attributes": attributes} | record, DeadLetter)
            return HeldDeadLetter(letter, message.receipt_handle, "")
        except (*UNREADABLE, TypeError):
            pass  # the queue itself moved it here, or another program
        group = message.attributes.get("MessageGroupId", "")
        number = message.attributes.get("SequenceNumber", "")
        letter = DeadLetter(
            # Letters without a seq are sorted by id: letters of one group keep the order of the queue.
            id=f"sqs/{number:0>20}/{message.message_id}" if number else f"sqs/{message.message_id}",
            body=body,
            attributes=attributes,
            reason=f"moved by the queue after {self._receives_max} receives",
            key="" if group.startswith(OWN) else group,
            at=int(message.attributes.get("SentTimestamp", 0)) / 1000,
        )
        return HeldDeadLetter(letter, message.receipt_handle, group)


COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def _entry(letter: DeadLetter, at: float) -> Entry:
    """Return a letter as a message; its detail is cut from the front to what fits."""
    reply = {
        name: getattr(letter, name) for name in letter.__struct_fields__ if name not in ("body", "attributes")
    } | {"at": at}
    entry = encode(letter.body, letter.attributes, json.dumps(reply))
    while (over := size(entry) - MESSAGE_BYTES) > 0:
        if not reply["detail"]:
            raise TooLarge(
                f"a body of {len(letter.body)} bytes leaves no room for what a dead letter says beside it;"
                " it stays in the queue, which itself moves it to the dead letters in the end"
            )
        kept = len(reply["detail"]) - max(over // 12, 1000)
        reply["detail"] = reply["detail"][-kept:] if kept > 0 else ""
        entry = encode(letter.body, letter.attributes, json.dumps(reply))
    return entry
