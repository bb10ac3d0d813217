"""The completion of a console's answers: headers that bind browsers, and errors as pages or as problem
details."""

from __future__ import annotations

from aiohttp import web

from holdfast.console.rendering import Renderer
from holdfast.errors import HoldfastError
from holdfast.http import problem
from holdfast.http.problem import Problem
from holdfast.http.serving import FAILED, Handler, log_failure, problem_response, problems
from holdfast.system.log import get_logger

SOURCES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "worker-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
"""Nothing but files of this console is loaded, no script or style stands in a page, and no other site may
show a page in a frame."""

HEADERS = {
    "Content-Security-Policy": "; ".join(f"{kind} {source}" for kind, source in SOURCES.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers would then send "Origin: null" with forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

log = get_logger(__name__)


class Responses:
    """Completes the answers of one console."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    async def protect(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers that every answer has."""
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")

    @web.middleware
    async def explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that answers errors: as a page where a browser asks for one, else as problem details."""
        try:
            return await self._explain(request, handler)
        except HoldfastError as error:
            found, more = problem.of(error), problem.headers(error)
            return self._page(request, found) or problem_response(found, more)

    async def _explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            title = "Page not found" if error.status == 404 else error.reason
            found = Problem("urn:holdfast:page", title, error.status, "")
            return self._page(request, found) or await problems(request, _raising(error))
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 - of any kind
            log_failure(request, error)
            return self._page(request, FAILED) or problem_response(FAILED)

    def _page(self, request: web.Request, found: Problem) -> web.Response | None:
        """Return the error as a page, if a browser asks for one."""
        if "text/html" not in request.headers.get("Accept", "") or request.path.startswith("/api/"):
            return None
        if found.status == 401:
            return self._renderer.page(request, "enter.html", status=401, wrong=False, title="Enter")
        return self._renderer.page(
            request, "error.html", status=found.status, problem=found, title=found.title
        )


def _raising(error: web.HTTPException) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        raise error

    return handler
