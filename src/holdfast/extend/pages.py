"""The public API for pages that products add to the console.

:meth:`holdfast.extend.products.OperatorPart.pages` returns :class:`ProductPages`: where the product's
templates and files are, what stands in the navigation, and its routes, each with the right that it needs::

    def groups(parts: ConsoleParts) -> list[Group]:
        async def show(request: web.Request) -> web.Response:
            return parts.renderer.page(request, "crates/crates.html", title="Crates", crates=...)

        return [("read", [web.get("/crates", show)])]

Templates are Jinja's, with every value escaped. The content policy allows neither scripts nor styles in a
page: they are files, which :class:`ProductPages` serves. ``refreshed`` of ``macros.html`` reloads an element
each time the console has read the products' data. :func:`act` performs an action of a form, writes it into
the audit log, and shows a notice; :func:`action_route` does so for an action of ``holdfast.extend.api``.
:func:`field` reads a field of the form, and :func:`whole_number` a number in a form or an address.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.console.access import Group, caller_of
    from holdfast.console.caching import SharedReads
    from holdfast.console.index import Question
    from holdfast.console.pages.acting import act, action_route, field, whole_number
    from holdfast.console.parts import ConsoleParts
    from holdfast.console.products import ProductPages
    from holdfast.console.rendering import stream_path
    from holdfast.http.problem import RequestRefused
    from holdfast.operate.streams import latest_results
else:  # A node needs no console.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.console.access": "Group caller_of",
            "holdfast.console.caching": "SharedReads",
            "holdfast.console.index": "Question",
            "holdfast.console.pages.acting": "act action_route field whole_number",
            "holdfast.console.parts": "ConsoleParts",
            "holdfast.console.products": "ProductPages",
            "holdfast.console.rendering": "stream_path",
            "holdfast.http.problem": "RequestRefused",
            "holdfast.operate.streams": "latest_results",
        },
    )

__all__ = [
    "ConsoleParts",
    "Group",
    "ProductPages",
    "Question",
    "RequestRefused",
    "SharedReads",
    "act",
    "action_route",
    "caller_of",
    "field",
    "latest_results",
    "stream_path",
    "whole_number",
]
