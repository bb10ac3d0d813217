"""The environment variables of older consumers, which take a Redis lock for each video.

They name such a consumer's SQS queue, its Redis and the times of its lock. If the queue or Redis is set, they
are the lowest source of settings, below all of Holdfast's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.errors import ConfigError

QUEUE = "SQS_QUEUE_URL"
HOST = "REDIS_HOST"
PORT = "REDIS_PORT"
TTL = "LOCK_TTL_SECONDS"
RENEWAL = "LOCK_RENEWAL_INTERVAL_SECONDS"
IDLE = "PROCESSING_IDLE_TIMEOUT_SECONDS"
NAMES = (QUEUE, HOST, PORT, TTL, RENEWAL, IDLE)

REDIS_PORT = "6379"
ANY_BUCKET = "s3://"
"""The value of ``objects_url`` that reads frames from the bucket that a message names, and writes none."""


class LegacyValue(NamedTuple):
    """A setting's value, with its variable and source."""

    value: str
    source: str


def settings(
    environment: Mapping[str, str], dotenv: Mapping[str, str], native: Collection[str]
) -> dict[str, LegacyValue]:
    """Return the settings from the older names that ``native``, Holdfast's own settings, leave open.

    The environment comes before ``.env``. Raises ConfigError, with the older names, for values that can't
    work.
    """
    given: dict[str, LegacyValue] = {}
    for name in NAMES:
        for place, source in ((environment, "the environment"), (dotenv, ".env")):
            if place.get(name) and name not in given:
                given[name] = LegacyValue(place[name].strip(), f"{name} in {source}")
    if not {QUEUE, HOST} & given.keys():
        return {}
    found = {**_services(given, native), **_times(given, native)}
    return {setting: value for setting, value in found.items() if setting not in native}


def is_legacy(source: str) -> bool:
    """Return True if a setting's source is one of these names."""
    return any(name in source for name in NAMES)


def _services(given: Mapping[str, LegacyValue], native: Collection[str]) -> dict[str, LegacyValue]:
    found: dict[str, LegacyValue] = {}
    if "url" in native:  # ``url`` sets queue, coordinator and state
        return found
    if QUEUE in given:
        if not given[QUEUE].value.startswith(("https://", "http://")):
            raise ConfigError(
                f"{QUEUE} is {given[QUEUE].value!r}: it must be a queue's URL, such as"
                " https://sqs.eu-west-1.amazonaws.com/123456789012/frames; Holdfast's queue_url may also be"
                " sqs://eu-west-1/frames"
            )
        found["queue_url"] = given[QUEUE]
        found["objects_url"] = LegacyValue(
            ANY_BUCKET, f"the buckets that messages name, by {given[QUEUE].source}"
        )
        if HOST not in given and not {"coordinator_url", "state_url"} <= set(native):
            raise ConfigError(
                f"{QUEUE} is set and {HOST} isn't: nodes on several hosts would share a queue without knowing"
                f" each other; set {HOST} (and {PORT}, unless it is {REDIS_PORT}), or coordinator_url and"
                " state_url"
            )
    if HOST in given:
        redis = LegacyValue(_redis_url(given), given[HOST].source)
        found |= {"coordinator_url": redis, "state_url": redis}
    return found


def _redis_url(given: Mapping[str, LegacyValue]) -> str:
    host, port = given[HOST].value, given[PORT].value if PORT in given else REDIS_PORT
    if not host or set(host) & set("/@?# "):
        raise ConfigError(
            f"{HOST} is {host!r}: it must be a host's name or address, such as redis.example.com"
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
        raise ConfigError(f"{PORT} is {port!r}: it must be the number of a port, such as {REDIS_PORT}")
    return f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}"


def _times(given: Mapping[str, LegacyValue], native: Collection[str]) -> dict[str, LegacyValue]:
    found: dict[str, LegacyValue] = {}
    if IDLE in given:
        found["idle_timeout_s"] = given[IDLE]
    if "ttl_s" in native:  # the interval belongs to the older TTL, which isn't used
        return found
    if TTL in given:
        found["ttl_s"] = given[TTL]
    if RENEWAL in given and "renew_s" not in native:
        found |= _renewal(given)
    return found


def _renewal(given: Mapping[str, LegacyValue]) -> dict[str, LegacyValue]:
    """Return the interval, or a third of the TTL if one lost renewal would end a membership with the
    interval."""
    interval = given[RENEWAL]
    renew_s, ttl_s = _number(interval), _number(given[TTL]) if TTL in given else None
    if renew_s is None or (TTL in given and ttl_s is None):
        return {"renew_s": interval}  # the config reports what is wrong
    if ttl_s is None:
        return {"renew_s": interval, "ttl_s": LegacyValue(str(renew_s * 3), f"3 times {interval.source}")}
    if renew_s < ttl_s / 2:
        return {"renew_s": interval}
    if renew_s < ttl_s:
        source = f"{TTL} / 3, as {interval.source} is over half of it"
        return {"renew_s": LegacyValue(str(round(ttl_s / 3, 3)), source)}
    raise ConfigError(
        f"{RENEWAL} is {interval.value} and {TTL} is {given[TTL].value}: a lock would lapse before it is"
        f" renewed, and another process would take the video; set {RENEWAL} to a third of {TTL},"
        " or leave it out"
    )


def _number(given: LegacyValue) -> float | None:
    """Return the value as a number; None for a value that the config will refuse."""
    try:
        return float(given.value)
    except ValueError:
        return None
