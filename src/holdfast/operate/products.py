"""The tables that products add to the status of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from holdfast.ports.coordinator import Claim, Member
    from holdfast.wiring.services import Services


class StatusTable(NamedTuple):
    """A table that a product adds to ``holdfast status``.

    Attributes:
        name: the things in the table, such as ``outboxes``: the title of the table, and the key in the JSON.
        records: what ``--json`` prints under that key.
        columns: the titles of the columns.
        rows: the rows. A table without rows isn't shown.
    """

    name: str
    records: Sequence[Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class StatusPart:
    """The status of a product, for operators."""

    async def status(
        self, services: Services, members: Sequence[Member], claims: Sequence[Claim]
    ) -> StatusTable | None:
        """Return the table that ``holdfast status`` shows. ``members`` are the living memberships, and
        ``claims`` those with the product's ``claim_label``. Return an empty table if nothing of it runs, so
        that its key is in the JSON."""
        return None
