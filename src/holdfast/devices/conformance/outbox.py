"""The conformance suite of outbox stores."""

from __future__ import annotations

import pytest

from holdfast.devices.conformance.outbox_answers import AnswersConformance
from holdfast.devices.conformance.outbox_limits import LimitsConformance
from holdfast.devices.conformance.outbox_operators import OperatorsConformance
from holdfast.devices.conformance.outbox_order import OrderConformance
from holdfast.devices.conformance.outbox_owners import OwnersConformance
from holdfast.devices.conformance.outbox_results import ResultsConformance


@pytest.mark.asyncio
class OutboxConformance(
    OrderConformance,
    AnswersConformance,
    LimitsConformance,
    OwnersConformance,
    ResultsConformance,
    OperatorsConformance,
):
    """Every promise of the outbox store. Fixtures: ``store``, new and empty; ``begin``, which begins
    transactions of the business in the store's database."""
