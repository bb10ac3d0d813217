"""The service that FTP URLs open: ``ftpes://host/folder``, ``ftps://…``, ``ftp://…``."""

from __future__ import annotations

import importlib

from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class FtpService(SinkService):
    """FTP, with TLS or without."""

    example = "ftpes://host/folder"

    def sink(self, opening: SinkOpening) -> Sink:
        from holdfast.reports.sinks.ftp.sink import FtpSink  # noqa: PLC0415
        from holdfast.reports.sinks.ftp.url import FtpUrl  # noqa: PLC0415

        login = opening.credential
        return FtpSink(FtpUrl.parse(opening.url), login.user or "anonymous", login.password)

    def preload(self) -> None:
        importlib.import_module("holdfast.reports.sinks.ftp.sink")


service = FtpService()
