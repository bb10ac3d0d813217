"""The part of a product that operators see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.console.products import ConsolePart

if TYPE_CHECKING:
    from holdfast.app.app import App
    from holdfast.cli.findings import Finding
    from holdfast.wiring.services import Services


class OperatorPart(ConsolePart):
    """Base class of the parts of products that operators see: a table of ``holdfast status``, findings of
    ``holdfast doctor``, operations and pages of the console. A product names an object of a subclass in
    ``operator``, and the subclass overrides the methods that it needs. Nodes don't import it."""

    async def examine(self, services: Services, app: App | None) -> list[Finding]:
        """Check what the product needs, and return what ``holdfast doctor`` shows. ``app`` is None if the
        command was given none."""
        return []

    async def examine_upgrade(self, services: Services) -> list[Finding]:
        """Look at what the product keeps, and return what ``holdfast doctor --upgrade`` shows. Change
        nothing."""
        return []
