"""The product ``vision``. It adds nothing to a node."""

from holdfast.extend.products import Product


class VisionProduct(Product):
    """Streams of frames."""

    operator = "holdfast.vision.operator:operator"


product = VisionProduct()
