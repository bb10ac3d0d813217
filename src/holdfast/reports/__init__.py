"""Reports: read a query's result, format it as the customer ordered, deliver it to the customer's server.

``order`` says what was ordered, ``report`` turns it into streams of bytes: ``sources`` read, ``formats``
write. Memory stays flat whatever the size, no temporary file is made, and the same order of the same sources
gives the same bytes. ``names`` makes the files' remote names.

What users need stands here: ``from holdfast import reports``, then ``reports.ReportOrder``.
"""

from typing import TYPE_CHECKING

from holdfast.extend import exports

if TYPE_CHECKING:
    from holdfast.extend.tools import Rate
    from holdfast.reports.assembly import open_sink, publish_reports
    from holdfast.reports.deliver import Delivered, deliver_file
    from holdfast.reports.deliver_credentials import Credential, Credentials
    from holdfast.reports.deliver_plan import Companion, FileToDeliver
    from holdfast.reports.deliver_pool import PoolLimits, SinkPool
    from holdfast.reports.order import Column, Condition, Csv, ReportDelivery, ReportOrder, Sort, Table, Xlsx
    from holdfast.reports.ports.destination import SinkOpening, SinkService
    from holdfast.reports.ports.sink import Sink
    from holdfast.reports.report import Report
else:  # Each needs libraries of its own, which are imported with it.
    __getattr__ = exports(
        __name__,
        {
            "Column": "holdfast.reports.order",
            "Companion": "holdfast.reports.deliver_plan",
            "Condition": "holdfast.reports.order",
            "Credential": "holdfast.reports.deliver_credentials",
            "Credentials": "holdfast.reports.deliver_credentials",
            "Csv": "holdfast.reports.order",
            "Delivered": "holdfast.reports.deliver",
            "FileToDeliver": "holdfast.reports.deliver_plan",
            "PoolLimits": "holdfast.reports.deliver_pool",
            "Rate": "holdfast.extend.tools",
            "Report": "holdfast.reports.report",
            "ReportDelivery": "holdfast.reports.order",
            "ReportOrder": "holdfast.reports.order",
            "Sink": "holdfast.reports.ports.sink",
            "SinkOpening": "holdfast.reports.ports.destination",
            "SinkPool": "holdfast.reports.deliver_pool",
            "SinkService": "holdfast.reports.ports.destination",
            "Sort": "holdfast.reports.order",
            "Table": "holdfast.reports.order",
            "Xlsx": "holdfast.reports.order",
            "deliver_file": "holdfast.reports.deliver",
            "open_sink": "holdfast.reports.assembly",
            "publish_reports": "holdfast.reports.assembly",
        },
    )

__all__ = [
    "Column",
    "Companion",
    "Condition",
    "Credential",
    "Credentials",
    "Csv",
    "Delivered",
    "FileToDeliver",
    "PoolLimits",
    "Rate",
    "Report",
    "ReportDelivery",
    "ReportOrder",
    "Sink",
    "SinkOpening",
    "SinkPool",
    "SinkService",
    "Sort",
    "Table",
    "Xlsx",
    "deliver_file",
    "open_sink",
    "publish_reports",
]
