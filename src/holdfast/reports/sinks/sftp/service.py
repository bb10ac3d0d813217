"""The service that URLs of SFTP open: ``sftp://host/folder``."""

from __future__ import annotations

import importlib

from holdfast.extend import extra
from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class SftpService(SinkService):
    """SFTP. Needs the extra ``reports``."""

    example = "sftp://host/folder"

    def sink(self, opening: SinkOpening) -> Sink:
        with extra("reports", "destination"):
            from holdfast.reports.sinks.sftp.session import Login  # noqa: PLC0415
            from holdfast.reports.sinks.sftp.sink import SftpSink  # noqa: PLC0415
        from holdfast.reports.sinks.sftp.url import SftpUrl  # noqa: PLC0415

        user = opening.credential
        login = Login(user.user, user.password, user.key, user.passphrase, user.known_hosts)
        return SftpSink(SftpUrl.parse(opening.url), login)

    def preload(self) -> None:
        with extra("reports", "destination"):
            importlib.import_module("holdfast.reports.sinks.sftp.sink")


service = SftpService()
