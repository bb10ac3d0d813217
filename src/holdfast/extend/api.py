"""The public API for operations that products add to the JSON API of the console.

:meth:`holdfast.extend.products.OperatorPart.operations` returns them. Each is an :class:`Operation`: its path
below ``/api/v1``, the structs of its parameters, body and answer, and the function that does it. The console
checks requests by these structs, describes them in its OpenAPI document, asks for the right, and notes
changes in the audit log::

    class Stock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        count: int

    async def set_stock(call: Call[NoFields, Stock]) -> Stock:
        ...
        call.outcome = f"{call.body.count} in stock"
        return call.body

    Operation(
        method="PUT", path="/stock/{article}", name="setStock", action="set stock",
        summary="Say how much of an article is in stock.", act=set_stock, answer=Stock, body=Stock,
    )

``shown`` shows a body as a field of a record. A function may raise the errors of Holdfast: they become
problem details.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.console.api.lists import Limit, shown
    from holdfast.console.api.operations import Call, Operation
    from holdfast.operate.actions import NoFields
else:  # A node needs no console.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.console.api.lists": "Limit shown",
            "holdfast.console.api.operations": "Call Operation",
            "holdfast.operate.actions": "NoFields",
        },
    )

__all__ = ["Call", "Limit", "NoFields", "Operation", "shown"]
