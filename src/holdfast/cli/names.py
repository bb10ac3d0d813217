"""Names that a shell completes, read from the coordinator while the user types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from holdfast.cli.options import Options

if TYPE_CHECKING:
    from holdfast.ports.coordinator import Member

ANSWER_S = 2.0
"""Seconds to wait for names after Tab is pressed."""


def stream_names(context: Any) -> list[str]:
    """Return the streams that living nodes run."""
    return _of_members(lambda member: member.load.serves)


def node_names(context: Any) -> list[str]:
    """Return the names of living nodes."""
    return _of_members(lambda member: (member.name,))


def _of_members(names: Callable[[Member], Iterable[str]]) -> list[str]:
    import asyncio  # noqa: PLC0415

    async def ask() -> list[Member]:
        from holdfast.wiring.services import Services  # noqa: PLC0415

        async with (
            asyncio.timeout(ANSWER_S),
            Services(Options().load(logs=False), reads_only=True) as services,
        ):
            return list(await services.coordinator().members())

    return sorted({name for member in asyncio.run(ask()) for name in names(member)})


StreamName = Annotated[str, Parameter(completer=stream_names)]
NodeName = Annotated[str, Parameter(completer=node_names)]
