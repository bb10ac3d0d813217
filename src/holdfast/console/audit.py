"""The audit log: who changed what, and the outcome.

An entry is written before an action, with its intent, and again after it, with its outcome. If the entry
can't be written, the action isn't done. An entry without an outcome means that the console ended, or lost
the registry, during the action. Entries are documents of the registry, so all consoles of a cluster share
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.common.redaction import redact
from holdfast.common.text import storable
from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.registry import Document, Registry

PREFIX = "audit/"
KEEP_S = 90 * 86_400.0
KEEP_MOST = 2_000
TRIM_EVERY_S = 3_600.0
TEXT_MAX = 500
"""The most characters of a text in an entry."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action. ``at`` and ``ended_at`` are wall times. ``outcome`` is empty until the action has ended,
    then ``done`` or ``failed`` with a ``text``."""

    at: float
    who: str
    action: str
    subject: str
    details: dict[str, str] = {}
    outcome: str = ""
    text: str = ""
    ended_at: float = 0.0


class Audited:
    """An action in progress. Its ``text`` becomes that of the entry."""

    def __init__(self) -> None:
        self.text = ""


class AuditLog:
    """The audit log of a cluster, in its registry. ``log`` gets each action too, unless it is None."""

    def __init__(self, registry: Registry, clock: Clock, log: Any | None) -> None:
        self._registry = registry
        self._clock = clock
        self._log = log

    @contextlib.asynccontextmanager
    async def doing(
        self, who: str, action: str, subject: str, details: Mapping[str, object] | None = None
    ) -> AsyncIterator[Audited]:
        """Write the intent before the block, and the outcome after it. Raises errors of the registry before
        the block begins."""
        entry = AuditEntry(
            at=self._clock.wall(),
            who=_short(who),
            action=action,
            subject=_short(subject),
            details={name: _short(value) for name, value in (details or {}).items()},
        )
        name = f"{PREFIX}{_moment(entry.at)}-{self._clock.new_id()}"
        document = await self._registry.put(name, msgspec.json.encode(entry), 0)
        under_way = Audited()
        outcome, text = "failed", ""
        try:
            yield under_way
            outcome, text = "done", under_way.text
        except BaseException as error:
            text = str(error) or type(error).__name__
            raise
        finally:
            ended = msgspec.structs.replace(
                entry, outcome=outcome, text=_short(text), ended_at=self._clock.wall()
            )
            if self._log is not None:
                self._log.info(
                    "operator action performed",
                    who=entry.who,
                    action=action,
                    subject=entry.subject,
                    outcome=outcome,
                    text=ended.text,
                )
            with contextlib.suppress(HoldfastError):  # the entry has the intent, and the log the outcome
                version = document.version if document is not None else 0
                await self._registry.put(name, msgspec.json.encode(ended), version)

    async def entries(self, most: int = 200) -> list[AuditEntry]:
        """Return the newest entries, newest first."""
        documents = await self._registry.list(PREFIX)
        return [entry for document in documents[::-1][:most] if (entry := _read(document)) is not None]

    async def trim(self) -> None:
        """Delete entries that are too old, and the oldest of too many."""
        documents = await self._registry.list(PREFIX)
        oldest = f"{PREFIX}{_moment(self._clock.wall() - KEEP_S)}"
        for place, document in enumerate(documents):
            if document.name < oldest or place < len(documents) - KEEP_MOST:
                await self._registry.drop(document.name, document.version)

    async def keep_trimmed(self) -> None:
        """Trim the log every hour, until cancelled."""
        while True:
            await self.trim()
            await self._clock.sleep(TRIM_EVERY_S)


def _read(document: Document) -> AuditEntry | None:
    try:
        return msgspec.json.decode(document.body, type=AuditEntry)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None  # one of a newer version


def _moment(at: float) -> str:
    return datetime.fromtimestamp(max(0.0, at), UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def _short(value: object) -> str:
    text = storable(redact(str(value)))
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
