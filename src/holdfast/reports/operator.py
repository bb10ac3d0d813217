"""Reports for operators: a page of the console, and an operation of its API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.extend.products import OperatorPart

if TYPE_CHECKING:
    from holdfast.extend.api import Operation
    from holdfast.extend.pages import ProductPages
    from holdfast.extend.products import Services


class ReportsOperator(OperatorPart):
    """Reports that were ordered."""

    def operations(self, services: Services) -> Sequence[Operation]:
        from holdfast.reports.api import operations  # noqa: PLC0415

        return operations(services)

    def pages(self) -> ProductPages:
        from holdfast.extend.pages import ProductPages  # noqa: PLC0415
        from holdfast.reports.report_pages import groups  # noqa: PLC0415

        return ProductPages("reports", Path(__file__).parent / "pages", [("/reports", "Reports")], groups)


operator = ReportsOperator()
