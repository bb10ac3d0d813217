"""The service that web URLs open: ``https://host/folder``."""

from __future__ import annotations

import importlib

from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class HttpSinkService(SinkService):
    """Web servers that accept files by PUT."""

    example = "https://host/folder"

    def sink(self, opening: SinkOpening) -> Sink:
        from holdfast.reports.sinks.http.sink import HttpSink  # noqa: PLC0415

        login = opening.credential
        headers = {"Authorization": login.authorization} if login.authorization else {}
        return HttpSink(opening.url, headers, user=login.user, password=login.password)

    def preload(self) -> None:
        importlib.import_module("holdfast.reports.sinks.http.sink")


service = HttpSinkService()
