"""Small tools that do no I/O, for what extends Holdfast: declared settings, pauses, rates, JSON, secrets.

* Settings: the types of their fields say what they may be (:data:`Seconds`, :data:`Count` and so on), and
  :func:`check_settings` refuses what they may not, naming the setting.
* Pauses and rates: :class:`Backoff` after failures, a :class:`Limiter` by token buckets.
* JSON: :func:`encode_json` and :func:`decode_json`, which refuse what JSON can't say.
* Names: :func:`exports` has a package import what it offers once that is asked for.
* Secrets: :func:`redact` hides them in texts, :func:`redact_url` in a URL.
"""

from holdfast.common.exact_json import decode_plain as decode_json
from holdfast.common.exact_json import encode as encode_json
from holdfast.common.lazy import exports
from holdfast.common.message import check_key
from holdfast.common.once import Once
from holdfast.common.rate import Limiter, Rate
from holdfast.common.record import UNREADABLE
from holdfast.common.redaction import redact, redact_url, unsaid_port
from holdfast.common.retry import Backoff
from holdfast.common.settings import (
    SECONDS_MAX,
    Count,
    Delay,
    Fraction,
    Int32,
    Limit,
    Positive,
    Seconds,
    Text,
    check_setting,
    check_settings,
    fault,
    faults,
)

__all__ = [
    "SECONDS_MAX",
    "UNREADABLE",
    "Backoff",
    "Count",
    "Delay",
    "Fraction",
    "Int32",
    "Limit",
    "Limiter",
    "Once",
    "Positive",
    "Rate",
    "Seconds",
    "Text",
    "check_key",
    "check_setting",
    "check_settings",
    "decode_json",
    "encode_json",
    "exports",
    "fault",
    "faults",
    "redact",
    "redact_url",
    "unsaid_port",
]
