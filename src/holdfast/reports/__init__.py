"""Reports: read a query's result, format it as the customer ordered, deliver it to the customer's server.

``order`` has the orders, ``report`` turns one into streams of bytes: ``sources`` read, ``formats`` write.
Memory stays flat at any size, no temporary file is made, and equal orders of equal sources give equal bytes.
``names`` makes the files' remote names.

The public names: ``from holdfast import reports``, then ``reports.ReportOrder``.
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
            "holdfast.extend.tools": "Rate",
            "holdfast.reports.assembly": "open_sink publish_reports",
            "holdfast.reports.deliver": "Delivered deliver_file",
            "holdfast.reports.deliver_credentials": "Credential Credentials",
            "holdfast.reports.deliver_plan": "Companion FileToDeliver",
            "holdfast.reports.deliver_pool": "PoolLimits SinkPool",
            "holdfast.reports.order": "Column Condition Csv ReportDelivery ReportOrder Sort Table Xlsx",
            "holdfast.reports.ports.destination": "SinkOpening SinkService",
            "holdfast.reports.ports.sink": "Sink",
            "holdfast.reports.report": "Report",
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
