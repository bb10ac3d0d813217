"""The public API of small tools that do no I/O, for packages that extend Holdfast.

* Settings: the field types (:data:`Seconds`, :data:`Count` and so on) say which values are allowed.
  :func:`check_settings` raises ConfigError for others and names the setting.
* Pauses and rates: :class:`Backoff` gives the delay after failures, :class:`Limiter` holds token buckets.
* JSON: :func:`encode_json` and :func:`decode_json` raise an error for what JSON can't represent.
* Redaction: :func:`redact` hides secrets in texts, :func:`redact_url` hides them in a URL, and
  :func:`storable` escapes what UTF-8 can't carry.
* User code: :func:`run_user_code` calls it so that it ends no node, and :func:`kind_and_place` says what it
  raised, and where.
* :func:`describe_http_error` says in words why a request of ``aiohttp`` failed.
* ``OWN_FAILURES`` has the numbers of errors of connections that this host is the cause of.
"""

from holdfast.common.codec import decode_plain as decode_json
from holdfast.common.codec import encode as encode_json
from holdfast.common.http_errors import OWN_FAILURES, describe_http_error
from holdfast.common.message import check_key
from holdfast.common.rate import Limiter, Rate
from holdfast.common.recent import Once
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
from holdfast.common.text import storable
from holdfast.common.user_code import kind_and_place, run_user_code

__all__ = [
    "OWN_FAILURES",
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
    "describe_http_error",
    "encode_json",
    "fault",
    "faults",
    "kind_and_place",
    "redact",
    "redact_url",
    "run_user_code",
    "storable",
    "unsaid_port",
]
