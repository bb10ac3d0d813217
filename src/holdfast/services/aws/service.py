"""The services that URLs of SQS and S3 open: ``sqs://eu-west-1/``, a queue's own ``https://…``,
``s3://bucket/prefix``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.extend import Meter, Objects, Opening, Service, SystemClock, extra
from holdfast.extend.tools import redact_url

if TYPE_CHECKING:
    from holdfast.services.aws.client import AwsClient
    from holdfast.services.aws.queue import SqsQueue
    from holdfast.services.aws.setup import SqsSetup
    from holdfast.services.aws.url import SqsUrl


class SqsService(Service):
    """Queues."""

    example = "sqs://eu-west-1/"
    cuts_receives = False

    def queue(self, opening: Opening, name: str) -> SqsQueue:
        url = _parsed(opening)
        with extra("sqs", opening.setting):
            from holdfast.services.aws.message import MAX_BYTES  # noqa: PLC0415
            from holdfast.services.aws.queue import SqsQueue  # noqa: PLC0415
        queue, sqs = url.queue(name), _sqs(opening, url)
        sharing = sqs.streams.setdefault(queue, name) if name else ""
        if sharing != name:
            raise ConfigError(
                f"{opening.setting} is {redact_url(opening.url)!r}: the streams {sharing!r} and {name!r}"
                " would share a queue; put '{stream}' into the queue's name, as in"
                " 'sqs://eu-west-1/frames-{stream}'"
            )
        max_bytes = min(opening.max_message_bytes, MAX_BYTES)
        return SqsQueue(sqs.sqs, queue, opening.clock, max_bytes=max_bytes)

    def queue_name(self, url: str) -> tuple[str, str]:
        from holdfast.services.aws.url import STREAM, parse  # noqa: PLC0415

        service, _, name = url.partition("#")
        if name or STREAM in parse(service, "target").pattern:
            return super().queue_name(url)
        return url, ""

    def queue_setup(self, opening: Opening) -> SqsSetup:
        url = _parsed(opening)
        with extra("sqs", opening.setting):
            from holdfast.services.aws.setup import SqsSetup  # noqa: PLC0415
        return SqsSetup(_sqs(opening, url).sqs, url)

    def prices(self, url: str) -> Mapping[tuple[str, str], float]:
        from holdfast.services.aws import prices  # noqa: PLC0415
        from holdfast.services.aws.url import parse  # noqa: PLC0415

        named = parse(url)
        return {} if named.endpoint else prices.sqs(named.pattern)

    async def iam_statements(self, opening: Opening, streams: Iterable[str]) -> list[dict[str, Any]]:
        return [await self.queue_setup(opening).statement(streams)]


class _Sqs:
    """The client of a region or an endpoint, and which stream has which queue there."""

    def __init__(self, client: AwsClient) -> None:
        from holdfast.services.aws.sqs import Sqs  # noqa: PLC0415

        self.sqs = Sqs(client)
        self.streams: dict[str, str] = {}
        self.close = client.close


def _parsed(opening: Opening) -> SqsUrl:
    with extra("sqs", opening.setting):
        from holdfast.services.aws.url import parse  # noqa: PLC0415
    return parse(opening.url, opening.setting)


def _sqs(opening: Opening, url: SqsUrl) -> _Sqs:
    with extra("sqs", opening.setting):
        from holdfast.services.aws.client import AwsClient  # noqa: PLC0415
    return opening.shared(
        ("sqs", url.region, url.endpoint),
        lambda: _Sqs(
            AwsClient("sqs", opening.clock, opening.meter, region=url.region, endpoint=url.endpoint)
        ),
    )


class S3Service(Service):
    """Objects in a bucket."""

    example = "s3://bucket/prefix"

    def objects(self, opening: Opening) -> Objects:
        return self._objects(opening.setting, opening.url, opening.meter)

    def slot_objects(self, url: str, meter: Meter) -> Objects:
        return self._objects("objects_url", url, meter)

    def _objects(self, setting: str, url: str, meter: Meter) -> Objects:
        with extra("s3", setting):
            importlib.import_module("botocore")  # the adapter itself does so at its first call
        from holdfast.services.aws.objects import S3Objects  # noqa: PLC0415

        return S3Objects(url, SystemClock(), meter, setting=setting)

    def prices(self, url: str) -> Mapping[tuple[str, str], float]:
        from holdfast.services.aws.prices import S3  # noqa: PLC0415

        return S3

    async def iam_statements(self, opening: Opening, streams: Iterable[str]) -> list[dict[str, Any]]:
        with extra("s3", opening.setting):
            from holdfast.services.aws.setup import object_statements  # noqa: PLC0415
        parts = urlsplit(opening.url)
        return object_statements(parts.netloc, parts.path)


sqs = SqsService()
s3 = S3Service()
