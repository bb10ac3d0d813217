"""What the back office knows: who may enter at which terminal, and what each terminal has said to that."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Index, Select, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """The tables of the business."""


class Entry(Base):
    """One person at one terminal. A row whose ``wanted`` is False is a person that was taken off.

    ``version`` counts changes, ``agreed`` is the last one that the terminal has confirmed.
    """

    __tablename__ = "whitelist"

    terminal: Mapped[str] = mapped_column(primary_key=True)
    person: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    wanted: Mapped[bool]
    version: Mapped[int] = mapped_column(default=0)
    agreed: Mapped[int] = mapped_column(default=0)


Index("whitelist_pending", Entry.terminal, sqlite_where=Entry.agreed < Entry.version)


def pending() -> Select[Entry]:
    """The entries that a terminal hasn't confirmed yet."""
    return select(Entry).where(Entry.agreed < Entry.version)


def whitelists(db: Session) -> Mapping[str, Mapping[str, str]]:
    """Who may enter, as the office has it: terminal → person → name."""
    found: dict[str, dict[str, str]] = {}
    for entry in db.scalars(select(Entry)):
        people = found.setdefault(entry.terminal, {})
        if entry.wanted:
            people[entry.person] = entry.name
    return found
