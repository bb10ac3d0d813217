"""URLs of queues."""

import pytest

from holdfast.errors import ConfigError
from holdfast.services.aws.url import SqsUrl, parse

OWN = "https://sqs.eu-west-1.amazonaws.com/123456789012/frames"
LOCAL = "http://localhost:4566/000000000000/frames"


@pytest.mark.parametrize(
    "url, parsed, queue",
    [
        ("sqs://", SqsUrl(None, None, "{stream}"), "cams"),
        ("sqs:///", SqsUrl(None, None, "{stream}"), "cams"),
        ("sqs://eu-west-1", SqsUrl("eu-west-1", None, "{stream}"), "cams"),
        ("sqs://eu-west-1/{stream}.fifo", SqsUrl("eu-west-1", None, "{stream}.fifo"), "cams.fifo"),
        ("sqs:///prod-%7Bstream%7D", SqsUrl(None, None, "prod-{stream}"), "prod-cams"),
        ("sqs:///one", SqsUrl(None, None, "one"), "one"),
        (OWN, SqsUrl("eu-west-1", None, OWN), OWN),
        (
            "https://eu-west-1.queue.amazonaws.com/1/q",
            SqsUrl("eu-west-1", None, "https://eu-west-1.queue.amazonaws.com/1/q"),
            None,
        ),
        (
            "https://sqs.cn-north-1.amazonaws.com.cn/1/q",
            SqsUrl("cn-north-1", None, "https://sqs.cn-north-1.amazonaws.com.cn/1/q"),
            None,
        ),
        (
            "https://sqs.us-gov-west-1.api.aws/1/q",
            SqsUrl("us-gov-west-1", None, "https://sqs.us-gov-west-1.api.aws/1/q"),
            None,
        ),
        (LOCAL, SqsUrl(None, "http://localhost:4566", LOCAL), LOCAL),
    ],
)
def test_region_endpoint_and_queue_are_read_from_a_url(url: str, parsed: SqsUrl, queue: str | None) -> None:
    assert parse(url) == parsed
    assert parsed.queue("cams") == queue or queue is None


@pytest.mark.parametrize(
    "url", ["sqs:///a/b", "sqs:///a?b=c", "http://localhost", "redis://x/y", "sqs:///a#b"]
)
def test_a_url_without_a_queue_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="queue_url"):
        parse(url)


@pytest.mark.parametrize("stream", ["käse", "a b", "x" * 81])
def test_refuses_a_stream_that_names_no_queue(stream: str) -> None:
    with pytest.raises(ConfigError, match="queue_url"):
        parse("sqs:///").queue(stream)
