"""Targets of the effects of handlers at URLs, as installed packages register them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.registration.entry_points import SERVICES, TARGETS, examples, find, scheme_of
from holdfast.registration.services import S, Service, Shared, has_port
from holdfast.registration.urls import has_password, nothing_serves, shown

if TYPE_CHECKING:
    from holdfast.ports.clock import Clock
    from holdfast.ports.meter import Meter
    from holdfast.ports.target import Target


@dataclass(frozen=True, slots=True)
class TargetOpening:
    """The settings and helpers that a :class:`TargetService` gets when a target is opened.

    Attributes:
        url: the URL that the handler named.
        clock: the only source of time, random numbers and ids.
        meter: counts the calls to the target.
        secret: the secret that the setting ``target_secrets`` has for this URL; "" for none. Keep it out of
            all texts.
        plain_http: whether the setting ``plain_http_targets`` allows URLs without TLS to other hosts.
        opened: the objects that the same process has opened before.
    """

    url: str
    clock: Clock
    meter: Meter
    secret: str
    plain_http: bool
    opened: Shared

    def shared(self, name: Hashable, make: Callable[[], S]) -> S:
        """Return a shared object, as :meth:`Opening.shared` does. Share clients with their connections in
        this way, because targets themselves are not closed."""
        return self.opened.get(name, make)


class TargetService:
    """A service of targets at the URLs of some schemes. A package registers an object of a subclass in the
    group :data:`TARGETS`.

    Attributes:
        example: a URL that it serves, for errors to name.
    """

    example = ""

    def check(self, url: str) -> None:
        """Raise ConfigError for a URL that can't be a target; the text says what to write instead. It is
        called in the handler's process whenever a handler sends to the URL, so it must do no I/O."""

    def target(self, opening: TargetOpening) -> Target:
        """Return the target at a URL. A node calls this when there are effects for the URL, and may call it
        again later. It doesn't connect; the target connects when it takes effects. Raises ConfigError."""
        raise NotImplementedError


def check_target(target: str, declared: Collection[str] = ()) -> None:
    """Raise ConfigError for a name that isn't declared, or a URL that no installed package serves."""
    if target in declared:
        return
    if "://" not in target:
        raise ConfigError(
            f"target {target!r} is not declared; name one of {sorted(declared)}, or give a URL (a stream"
            " whose messages have a seq can't be a target)"
        )
    service = target_service(target)
    try:
        urlsplit(target)
    except ValueError as error:  # its text repeats at most a part of the host
        raise ConfigError(f"target is {shown(target)!r}: it isn't a URL ({error})") from None
    if has_password(target):
        raise ConfigError(
            f"target is {shown(target)!r}: it holds a password, which would be stored with each effect;"
            " leave it out, and put it into the setting target_secrets"
        )
    if isinstance(service, TargetService):
        service.check(target)
    else:
        service.queue_name(target)


def target_service(url: str) -> TargetService | Service:
    """Return the target service at a URL, or else the service with queues. Raises ConfigError."""
    scheme = scheme_of(url)
    found = find(TARGETS, scheme, TargetService)
    if found is not None:
        return found
    service = find(SERVICES, scheme, Service)
    if service is None or not has_port(service, "queue"):
        queues = [f"{each}#queue" for each in examples(SERVICES, lambda each: has_port(each, "queue"))]
        raise nothing_serves("target", url, [*examples(TARGETS), *queues])
    return service
