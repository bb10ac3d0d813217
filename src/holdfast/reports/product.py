"""Reports as a product: they add nothing to a node."""

from holdfast.extend.products import Product


class ReportsProduct(Product):
    """Reports that were ordered."""

    operator = "holdfast.reports.operator:operator"


product = ReportsProduct()
