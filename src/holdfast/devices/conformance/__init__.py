"""The conformance suites of brokers of devices and of stores of outboxes: test classes to inherit from.

``DeviceConformance`` asks for the fixture ``bench``, a ``DeviceBench``: the other side, where devices are.
``OutboxConformance`` asks for ``store``, for ``begin``, which begins a business's transaction, and where two
processes may share the database for ``other_store``. The rest is as :mod:`holdfast.testing.conformance` says.
"""

import pytest

pytest.register_assert_rewrite(__name__)  # with all modules of it, before they are imported

from holdfast.devices.conformance.device import DeviceBench, DeviceConformance  # noqa: E402
from holdfast.devices.conformance.outbox import OutboxConformance  # noqa: E402

__all__ = ["DeviceBench", "DeviceConformance", "OutboxConformance"]
