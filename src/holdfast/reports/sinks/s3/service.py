"""The service that URLs of buckets open: ``s3://bucket/prefix``."""

from __future__ import annotations

import importlib

from holdfast.extend import extra
from holdfast.reports.ports.destination import SinkOpening, SinkService
from holdfast.reports.ports.sink import Sink


class S3SinkService(SinkService):
    """S3, and what speaks as it does. Needs the extra ``s3``."""

    example = "s3://bucket/prefix"

    def sink(self, opening: SinkOpening) -> Sink:
        with extra("s3", "destination"):
            from holdfast.extend.s3 import Keys  # noqa: PLC0415
        from holdfast.reports.sinks.s3.sink import S3Sink, S3SinkUrl  # noqa: PLC0415

        told, keys = opening.credential, None
        if told.access_key_id:
            keys = Keys(told.access_key_id, told.secret_access_key, told.session_token)
        where = S3SinkUrl.parse(opening.url, region=told.region or None)
        endpoint = told.endpoint_url or None
        return S3Sink(where, opening.clock, opening.meter, endpoint=endpoint, keys=keys)

    def preload(self) -> None:
        with extra("s3", "destination"):
            from holdfast.extend.s3 import S3, AwsClient  # noqa: F401, PLC0415

            importlib.import_module("botocore.client")


service = S3SinkService()
