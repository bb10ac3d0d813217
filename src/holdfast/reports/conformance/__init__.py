"""The conformance suite of sinks, the destinations of reports: a test class to inherit from.

``SinkConformance`` asks for the fixtures ``sink`` and ``other_sink``: another connection to the same
destination. The rest is as :mod:`holdfast.testing.conformance` says.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.sink")  # before it is imported

from holdfast.reports.conformance.sink import SinkConformance  # noqa: E402

__all__ = ["SinkConformance"]
