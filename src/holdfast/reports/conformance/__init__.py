"""The conformance suite of sinks, the destinations of reports: a test class to inherit from.

``SinkConformance`` needs the fixtures ``sink`` and ``other_sink``, another connection to the same
destination. See also :mod:`holdfast.testing.conformance`.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.sink")  # before it is imported

from holdfast.reports.conformance.sink import SinkConformance  # noqa: E402

__all__ = ["SinkConformance"]
