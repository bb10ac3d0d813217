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

``described`` makes the operation of a function whose signature has its structs. An :class:`Action` is
declared once for the API and the console: ``derived`` makes its operation, and ``action_route`` of
:mod:`holdfast.extend.pages` the route of its form.

``shown`` shows a body as a field of a record. A function may raise the errors of Holdfast: they become
problem details.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.console.api.lists import Limit, shown
    from holdfast.console.api.operations import Call, Operation, derived, described
    from holdfast.operate.actions import Action, Done, NoFields
else:  # A node needs no console.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.console.api.lists": "Limit shown",
            "holdfast.console.api.operations": "Call Operation derived described",
            "holdfast.operate.actions": "Action Done NoFields",
        },
    )

__all__ = ["Action", "Call", "Done", "Limit", "NoFields", "Operation", "derived", "described", "shown"]
