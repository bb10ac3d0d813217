"""The service that URLs of files open: ``file:/srv/reports``."""

from __future__ import annotations

from holdfast.extend import path_in
from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class FileSinkService(SinkService):
    """Folders of this machine, or on shares that are mounted."""

    example = "file:/srv/reports"

    def sink(self, opening: SinkOpening) -> Sink:
        from holdfast.reports.sinks.file.sink import FileSink  # noqa: PLC0415

        return FileSink(path_in("destination", opening.url, self.example), access=opening.access)


service = FileSinkService()
