"""The reservations of keys in SQLite, and the messages that they keep.

A message that a reservation keeps is *set aside*: it is delayed, marked with its turn, and found by an index
of its own. A due message is shown by :meth:`Reservations.settle`, or set aside there if its key is reserved.
New messages are set aside when they are found among the ready ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.services.sqlite.database import Transaction
from holdfast.system.doorbell import SAFETY_S

SORT_MESSAGES = 1_000
"""The most messages that one call sets aside or shows again. It takes some milliseconds, in which all other
processes wait."""

ASIDE_S = 900.0
"""The seconds until a process of a version without reservations sees a message that was set aside. Later
versions put it off again in time."""

PUT_OFF_EVERY_S = 60.0
"""Seconds between two searches for messages that were set aside long ago."""

LIVING = "SELECT key FROM reservations WHERE queue = ? AND ends_at > ?"

ENDS = "SELECT min(ends_at), max(ends_at) FROM reservations WHERE queue = ?"

# Messages with a priority stay where receives look first.
SHOW_DUE = """
UPDATE messages SET state = 0, visible_at = 0, aside = NULL
WHERE queue = ? AND state IN (1, 2) AND visible_at BETWEEN 0 AND ?"""

KEEP_DUE = f"""
UPDATE messages SET state = 2, visible_at = ?, aside = coalesce(turn, id)
WHERE queue = ? AND state IN (1, 2) AND visible_at <= ? AND key IN ({LIVING})"""  # noqa: S608

# In the order of the index by time: with the index of set-aside messages, all of them would be read.
PUT_OFF = f"""
UPDATE messages SET visible_at = ? WHERE id IN (
    SELECT id FROM messages INDEXED BY messages_in_turn
    WHERE queue = ? AND state = 2 AND visible_at <= ? AND aside IS NOT NULL AND key IN ({LIVING})
    ORDER BY visible_at LIMIT ?)"""  # noqa: S608

ENDED = "SELECT key FROM reservations WHERE queue = ? AND ends_at <= ?"

SHOW_KEPT = """
UPDATE messages SET state = 0, visible_at = 0, aside = NULL WHERE id IN (
    SELECT id FROM messages WHERE queue = ? AND state = 2 AND key = ? AND aside IS NOT NULL
    ORDER BY aside, id LIMIT ?)"""

FORGET = "DELETE FROM reservations WHERE queue = ? AND key = ?"

READY_AFTER = """
    SELECT id FROM messages WHERE queue = ? AND state = 0 AND visible_at = 0 AND id > ?
    ORDER BY id LIMIT ?"""

SET_ASIDE = f"""
UPDATE messages SET state = 2, visible_at = ?, aside = coalesce(turn, id)
WHERE id IN ({READY_AFTER}) AND key IN ({LIVING})"""  # noqa: S608

READY_SPAN = f"SELECT count(*), max(id) FROM ({READY_AFTER})"  # noqa: S608

LOOKED = "SELECT looked FROM reservations WHERE queue = ? AND key = ? AND holder = ? AND ends_at > ?"

NOTE_LOOKED = "UPDATE reservations SET looked = ? WHERE queue = ? AND key = ?"

RESERVE = """
INSERT INTO reservations (queue, key, holder, epoch, ends_at, looked)
VALUES (:queue, :key, :holder, :epoch, :ends_at, 0)
ON CONFLICT (queue, key) DO UPDATE SET
    epoch = iif(ends_at > :now AND holder = :holder, max(epoch, :epoch), :epoch),
    looked = iif(ends_at > :now AND holder = :holder, looked, 0), holder = :holder, ends_at = :ends_at
WHERE ends_at <= :now OR holder = :holder OR epoch <= :epoch"""

KEEP = """
UPDATE reservations SET ends_at = ?
WHERE queue = ? AND key = ? AND holder = ? AND ends_at > ?"""

END = """
UPDATE reservations SET ends_at = 0 WHERE queue = ? AND holder = ? AND (? IS NULL OR key = ?)"""


class Reservations:
    """The reservations of one queue. Every method is a part of the caller's transaction.

    Args:
        topic: the topic of the queue's receivers.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._put_off_at = 0.0

    def settle(self, transaction: Transaction, queue: int, now: float) -> bool:
        """Show due messages, or set them aside; show some messages of ended reservations. Returns whether any
        key is reserved."""
        first_end, last_end = transaction.execute(ENDS, (queue,)).fetchone()
        reserved = last_end is not None and last_end > now
        if reserved:
            living = (queue, now)
            transaction.execute(KEEP_DUE, (now + ASIDE_S, queue, now, *living))
            if now >= self._put_off_at:
                old = (now + ASIDE_S, queue, now + ASIDE_S / 2, *living, SORT_MESSAGES)
                if transaction.execute(PUT_OFF, old).rowcount < SORT_MESSAGES:
                    self._put_off_at = now + PUT_OFF_EVERY_S
        transaction.execute(SHOW_DUE, (queue, now))
        if first_end is not None and first_end <= now:
            self._show_kept(transaction, queue, now)
        return reserved

    def _show_kept(self, transaction: Transaction, queue: int, now: float) -> None:
        room = SORT_MESSAGES
        for (key,) in transaction.execute(ENDED, (queue, now)).fetchall():
            room -= transaction.execute(SHOW_KEPT, (queue, key, room)).rowcount
            if room <= 0:
                break
            transaction.execute(FORGET, (queue, key))
        if room < SORT_MESSAGES:
            transaction.ring(self._topic)

    def sort_out(self, transaction: Transaction, queue: int, now: float, limit: int) -> int:
        """Set aside messages of reserved keys among the next ones. Returns how many ready messages, from the
        first on, have no reserved key; at most ``limit``."""
        if not self._set_aside(transaction, queue, now, 0, limit):
            return limit
        moved = self._set_aside(transaction, queue, now, 0, SORT_MESSAGES)
        return min(limit, SORT_MESSAGES - moved)

    def gather(self, transaction: Transaction, queue: int, now: float, key: str, holder: str) -> bool | None:
        """Set aside further messages of a reserved key among the ready ones. Returns True if all ready ones
        are checked; until then, some set-aside messages may have a higher turn than others that are still
        ready. Returns None if ``holder`` has no reservation of the key."""
        standing = transaction.execute(LOOKED, (queue, key, holder, now)).fetchone()
        if standing is None:
            return None
        [looked] = standing
        count, last = transaction.execute(READY_SPAN, (queue, looked, SORT_MESSAGES)).fetchone()
        if count:
            self._set_aside(transaction, queue, now, looked, count)
            transaction.execute(NOTE_LOOKED, (last, queue, key))
        return bool(count < SORT_MESSAGES)

    def _set_aside(self, transaction: Transaction, queue: int, now: float, after: int, limit: int) -> int:
        return transaction.execute(SET_ASIDE, (now + ASIDE_S, queue, after, limit, queue, now)).rowcount

    def reserve(
        self,
        transaction: Transaction,
        queue: int,
        now: float,
        key: str,
        holder: str,
        epoch: int,
        for_s: float,
    ) -> bool:
        """Reserve a key, or renew that; returns whether it could be."""
        asked = {"queue": queue, "key": key, "holder": holder, "epoch": epoch, "now": now}
        if for_s < SAFETY_S:  # sooner than waiters check by themselves
            transaction.ring(self._topic)
        return bool(transaction.execute(RESERVE, {**asked, "ends_at": now + for_s}).rowcount)

    def keep(
        self, transaction: Transaction, queue: int, now: float, keys: Sequence[str], holder: str, for_s: float
    ) -> list[str]:
        """Renew reservations; returns the keys that the holder has lost."""
        return [
            key
            for key in keys
            if not transaction.execute(KEEP, (now + for_s, queue, key, holder, now)).rowcount
        ]

    def end(self, transaction: Transaction, queue: int, holder: str, key: str | None = None) -> None:
        """End the reservation of a key, or all of a holder's."""
        if transaction.execute(END, (queue, holder, key, key)).rowcount:
            transaction.ring(self._topic)
