"""The service that URLs of web servers open: ``https://host/folder``."""

from __future__ import annotations

import importlib

from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class HttpSinkService(SinkService):
    """Web servers that take files by PUT."""

    example = "https://host/folder"

    def sink(self, opening: SinkOpening) -> Sink:
        from holdfast.reports.sinks.http.sink import HttpSink  # noqa: PLC0415

        told = opening.credential
        headers = {"Authorization": told.authorization} if told.authorization else {}
        return HttpSink(opening.url, headers, user=told.user, password=told.password)

    def preload(self) -> None:
        importlib.import_module("holdfast.reports.sinks.http.sink")


service = HttpSinkService()
