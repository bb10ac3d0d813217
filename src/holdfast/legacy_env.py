"""The environment of consumers that take a Redis lock for each video, understood as it is.

Such a consumer is told its SQS queue, its Redis and its lock's times by variables of these names. Where one
of the first two is set, they count as the lowest source of settings: below every setting of Holdfast's own.
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
"""As ``objects_url``: frames are read from whichever bucket a message names, and none is written."""


class LegacyValue(NamedTuple):
    """A setting's value, and which variable told it where."""

    value: str
    source: str


def settings(
    environment: Mapping[str, str], dotenv: Mapping[str, str], native: Collection[str]
) -> dict[str, LegacyValue]:
    """The settings that the older names tell, except what ``native``, settings of Holdfast's own, decide.

    The environment counts before ``.env``. Raises ConfigError, in the older names, for what can't work.
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


def told(source: str) -> bool:
    """True if a setting's source is one of these names."""
    return any(name in source for name in NAMES)


def _services(given: Mapping[str, LegacyValue], native: Collection[str]) -> dict[str, LegacyValue]:
    found: dict[str, LegacyValue] = {}
    if "url" in native:  # it names the service of all three
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
                f"{QUEUE} is set and {HOST} isn't: nodes on several hosts would share a queue and not know of"
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
    if "ttl_s" in native:  # the interval belongs to a TTL that doesn't count
        return found
    if TTL in given:
        found["ttl_s"] = given[TTL]
    if RENEWAL in given and "renew_s" not in native:
        found |= _renewal(given)
    return found


def _renewal(given: Mapping[str, LegacyValue]) -> dict[str, LegacyValue]:
    """The interval; or a third of the TTL, where a single lost renewal would else end a membership."""
    interval = given[RENEWAL]
    renew_s, ttl_s = _number(interval), _number(given[TTL]) if TTL in given else None
    if renew_s is None or (TTL in given and ttl_s is None):
        return {"renew_s": interval}  # the config says what is wrong
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


def _number(told: LegacyValue) -> float | None:
    """A number, or None for what the config will refuse."""
    try:
        return float(told.value)
    except ValueError:
        return None
