"""The conformance suite of outbox stores."""

from __future__ import annotations

import pytest

from holdfast.devices.conformance.outbox_ends import EndsConformance
from holdfast.devices.conformance.outbox_turns import TurnsConformance


@pytest.mark.asyncio
class OutboxConformance(TurnsConformance, EndsConformance):
    """Every promise of the outbox store. Fixtures: ``store``, new and empty; ``begin``, which begins
    transactions of the business in the store's database."""
