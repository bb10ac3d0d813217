"""URLs of SQS: ``sqs://[region]/[pattern]``, or a queue's own URL, which may begin with ``sqs+``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError

STREAM = "{stream}"
EXAMPLE = "sqs://eu-west-1/frames-{stream}"
AMAZON = re.compile(
    r"(?:sqs(?:-fips)?\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.(?:queue\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)"
)
NAME = re.compile(r"[A-Za-z0-9_-]{1,80}(\.fifo)?")


@dataclass(frozen=True, slots=True)
class SqsUrl:
    """The parts of a URL of SQS. ``endpoint`` is the server that a queue's own URL names; None for Amazon.
    ``pattern`` is the name of a stream's queue, or a queue's own URL."""

    region: str | None
    endpoint: str | None
    pattern: str

    def queue(self, stream: str) -> str:
        """Return the name, or the URL, of a stream's queue. Raises ConfigError if SQS allows no such name."""
        if self.pattern.startswith("http"):
            return self.pattern
        name = self.pattern.replace(STREAM, stream)
        if not NAME.fullmatch(name) or len(name) > 80:
            raise ConfigError(
                f"{name!r} can't be an SQS queue's name (up to 80 letters, digits, '-' and '_', then perhaps"
                f" '.fifo'): name the stream {stream!r} otherwise, or change the pattern in queue_url"
            )
        return name


def parse(url: str, setting: str = "queue_url") -> SqsUrl:
    """Parse the URL that ``setting`` holds. Raises ConfigError."""
    given, url = (
        url,
        url.removeprefix("sqs+"),
    )  # it marks a queue's own URL
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme in ("http", "https") and parts.path.strip("/"):
        amazon = AMAZON.fullmatch(parts.hostname or "")
        if amazon:
            return SqsUrl(amazon[1], None, url)
        return SqsUrl(None, f"{parts.scheme}://{parts.netloc}", url)
    if parts.scheme == "sqs" and not parts.query and not parts.fragment and "/" not in parts.path[1:]:
        return SqsUrl(parts.netloc or None, None, unquote(parts.path[1:]) or STREAM)
    raise ConfigError(
        f"{setting} is {redact_url(given)!r}: use one such as {EXAMPLE!r}, or a queue's own URL"
    )
