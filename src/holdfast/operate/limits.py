"""The limits of an app: how many of its tasks may run at once, and how many begin per second."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.rules.tasks import concurrency as rules
from holdfast.rules.tasks.concurrency import ConcurrencyLimits
from holdfast.tasks.concurrency import PREFIX, document_name
from holdfast.tasks.documents import change, record_in
from holdfast.wiring.services import Services

SET_ACTION = "set limits"
"""The name of the action in the audit log."""


class LimitRecord(msgspec.Struct, rename={"maximum": "global", "per_node": "node"}):
    """The limits of an app; 0 means no limit. ``granted``: how many tasks its nodes may run at present under
    the global one, of the ``wanted``. ``rates``: attempts per second that operators have set, by type."""

    app: str
    maximum: int
    per_node: int
    strict: bool
    granted: int
    wanted: int
    nodes: int
    rates: dict[str, float]


async def listed(services: Services, app: str = "") -> list[LimitRecord]:
    """Return the limits of an app, or of all apps that have some."""
    documents = await services.registry().list(PREFIX)
    return [
        _record(name, record_in(document, ConcurrencyLimits))
        for document in documents
        if (name := document.name.removeprefix(PREFIX)) == app or not app
    ]


async def change_limits(
    services: Services,
    app: str,
    *,
    maximum: int | None = None,
    per_node: int | None = None,
    strict: bool | None = None,
    rates: Mapping[str, float | None] | None = None,
) -> LimitRecord:
    """Change the limits of an app. None leaves a limit as it is, and a rate of None is the declared one
    again."""
    limits = await change(
        services.registry(),
        services.clock,
        document_name(app),
        ConcurrencyLimits,
        lambda limits: rules.limit(limits, maximum, per_node, strict, rates),
    )
    return _record(app, limits)


def _record(app: str, limits: ConcurrencyLimits) -> LimitRecord:
    return LimitRecord(
        app=app,
        maximum=limits.maximum,
        per_node=limits.per_node,
        strict=limits.strict,
        granted=sum(grant.count for grant in limits.grants.values()),
        wanted=sum(grant.wants for grant in limits.grants.values()),
        nodes=len(limits.grants),
        rates=dict(sorted(limits.rates.items())),
    )
