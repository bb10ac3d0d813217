"""The public API for pages that products add to the console.

:meth:`holdfast.extend.products.OperatorPart.pages` returns :class:`ProductPages`: where the product's
templates and files are, what stands in the navigation, and its routes, each with the right that it needs::

    def groups(parts: ConsoleParts) -> list[Group]:
        async def show(request: web.Request) -> web.Response:
            return parts.renderer.page(request, "crates/crates.html", title="Crates", crates=...)

        return [("read", [web.get("/crates", show)])]

Templates are Jinja's, with every value escaped. The content policy allows neither scripts nor styles in a
page: they are files, which :class:`ProductPages` serves. ``refreshed`` of ``macros.html`` has an element
loaded again each time the console has looked at what products tell. :func:`act` does what a form asks for: it
is audited and ends with a notice on a page; :func:`field` reads a field of the form, and :func:`whole_number`
a number that stands in one or in an address.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.console.access import Group, caller_of
    from holdfast.console.caching import SharedReads
    from holdfast.console.index import Question
    from holdfast.console.overview import stream_path
    from holdfast.console.pages.acting import act, field, whole_number
    from holdfast.console.parts import ConsoleParts
    from holdfast.console.product_pages import ProductPages
    from holdfast.http.problem import RequestRefused
    from holdfast.operate.streams import latest_results
else:  # A node needs no console.
    __getattr__ = exports(
        __name__,
        {
            "ConsoleParts": "holdfast.console.parts",
            "Group": "holdfast.console.access",
            "ProductPages": "holdfast.console.product_pages",
            "Question": "holdfast.console.index",
            "RequestRefused": "holdfast.http.problem",
            "SharedReads": "holdfast.console.caching",
            "act": "holdfast.console.pages.acting",
            "caller_of": "holdfast.console.access",
            "field": "holdfast.console.pages.acting",
            "latest_results": "holdfast.operate.streams",
            "stream_path": "holdfast.console.overview",
            "whole_number": "holdfast.console.pages.acting",
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
    "caller_of",
    "field",
    "latest_results",
    "stream_path",
    "whole_number",
]
