"""Reports: read a query's result, format it as the customer ordered, deliver it to the customer's server.

``order`` says what was ordered, ``report`` turns it into streams of bytes: ``sources`` read, ``formats``
write. Memory stays flat whatever the size, no temporary file is made, and the same order of the same sources
gives the same bytes. ``names`` makes the files' remote names.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.reports.opening import open_sink, publish_reports
else:  # Formats and sources need no services.
    __getattr__ = exports(__name__, {"open_sink": "opening", "publish_reports": "opening"})

__all__ = ["open_sink", "publish_reports"]
