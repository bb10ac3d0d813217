"""The service that URLs of buckets open: ``s3://bucket/prefix``."""

from __future__ import annotations

import importlib

from holdfast.extend import extra
from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class S3SinkService(SinkService):
    """S3, and compatible services. Needs the extra ``s3``."""

    example = "s3://bucket/prefix"

    def sink(self, opening: SinkOpening) -> Sink:
        with extra("s3", "destination"):
            from holdfast.extend.s3 import Keys  # noqa: PLC0415
        from holdfast.reports.sinks.s3.sink import S3Sink, S3SinkUrl  # noqa: PLC0415

        login, keys = opening.credential, None
        if login.access_key_id:
            keys = Keys(login.access_key_id, login.secret_access_key, login.session_token)
        where = S3SinkUrl.parse(opening.url, region=login.region or None)
        endpoint = login.endpoint_url or None
        return S3Sink(where, opening.clock, opening.meter, endpoint=endpoint, keys=keys)

    def preload(self) -> None:
        with extra("s3", "destination"):
            from holdfast.extend.s3 import S3, AwsClient  # noqa: F401, PLC0415

            importlib.import_module("botocore.client")


service = S3SinkService()
