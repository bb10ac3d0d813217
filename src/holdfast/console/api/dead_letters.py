"""Dead letters of a queue: listed, which is also the preview of what is done to them, redriven, purged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.common.message import KEY_BYTES_MAX
from holdfast.console.api.known import check_queue
from holdfast.console.api.lists import LIMIT, Cursor, Limit, Next, cursor, place_in, shown
from holdfast.console.api.operations import Call, Operation, described
from holdfast.console.parts import ConsoleParts
from holdfast.operate import dead_letters
from holdfast.operate.actions import NoFields
from holdfast.operate.dead_letters import Act, DeadLettersDone, dead_letter_record

ACT_MAX = 1000
DETAIL_CHARS = 8_000

QueueName = Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX, description="The name of the queue.")]
DeadLetterId = Annotated[str, Meta(min_length=1, max_length=4 * KEY_BYTES_MAX)]


class DeadLettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose dead letters."""

    queue: QueueName
    key: Annotated[str | None, Meta(description="Only dead letters of this key.")] = None
    reason: Annotated[
        str, Meta(max_length=1000, description="Only dead letters whose reason contains this.")
    ] = ""
    limit: Limit = LIMIT
    cursor: Cursor = ""


class DeadLetterList(msgspec.Struct):
    """Some dead letters of a queue, with their ``ids`` in the same order: give these to redrive or purge
    exactly them. With ``hides``, reading dead letters of this queue hides them from other readers for a
    while, so some may be missing here. ``warning`` names dead letters that would come back if they were
    redriven, because their streams have passed them; it is empty for none, and for a queue that
    ``hides``."""

    letters: list[dict[str, Any]]
    ids: list[str]
    next: Next
    hides: bool
    warning: str


class ChosenDeadLetters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters of a queue, by their ids."""

    queue: QueueName
    ids: Annotated[list[DeadLetterId], Meta(min_length=1, max_length=ACT_MAX)]


class DeadLetterOperations:
    """Operations on dead letters."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._services = parts.services

    def all(self) -> Sequence[Operation]:
        """Return all of them."""
        return [
            described(self._list, "GET", "/dead-letters", "listDeadLetters"),
            described(
                self._redrive,
                "POST",
                "/dead-letters/redrive",
                "redriveDeadLetters",
                action=dead_letters.REDRIVE_ACTION,
                subject=lambda call: str(call.body.queue),
            ),
            described(
                self._purge,
                "POST",
                "/dead-letters/purge",
                "purgeDeadLetters",
                action=dead_letters.PURGE_ACTION,
                subject=lambda call: str(call.body.queue),
            ),
        ]

    async def _list(self, call: Call[DeadLettersQuery, None]) -> DeadLetterList:
        """List some dead letters of a queue, each with its reason."""
        query = call.query
        await check_queue(self._parts, query.queue)
        (after,) = place_in(query.cursor, (str,)) or ("",)
        found = await dead_letters.find(
            self._services,
            query.queue,
            limit=query.limit,
            key=query.key,
            holds=(lambda letter: query.reason in letter.reason) if query.reason else None,
            after=after,
        )
        records = [dead_letter_record(letter, shown) for letter in found.letters]
        for record in records:
            record["detail"] = record["detail"][:DETAIL_CHARS]
        ids = [letter.id for letter in found.letters]
        following = cursor(found.next) if found.next else ""
        hides = self._services.queue(query.queue).hides_dead_letters
        warning = "" if hides else (await dead_letters.passed(self._services, ids)).warning
        return DeadLetterList(records, ids, following, hides, warning)

    async def _redrive(self, call: Call[NoFields, ChosenDeadLetters]) -> DeadLettersDone:
        """Send exactly these dead letters again, in the order of their messages."""
        return await self._act(call, dead_letters.redrive_dead_letters)

    async def _purge(self, call: Call[NoFields, ChosenDeadLetters]) -> DeadLettersDone:
        """Remove exactly these dead letters for good."""
        return await self._act(call, dead_letters.purge_dead_letters)

    async def _act(self, call: Call[NoFields, ChosenDeadLetters], act: Act) -> DeadLettersDone:
        done = await dead_letters.act_on_ids(self._services, call.body.queue, call.body.ids, act)
        call.outcome = "; ".join([f"{done.done} of {done.asked}", *done.failed])
        return done
