"""The contents of znodes. A node's JSON is readable for programs that know only host and port.

Any program may write there. An unreadable record raises Damaged, and stops no node."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.common.record import UNREADABLE, reading
from holdfast.errors import Damaged
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.services.zookeeper.layout import SERVICES, basename

T = TypeVar("T")

_MEMBER_FIELDS = tuple(name for name in Member.__struct_fields__ if name != "load")
_LOAD_FIELDS = Load.__struct_encode_fields__
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9A-Fa-f:.]{2,45}")

# Other programs may write their path with the chroot before it, or without.
_SERVICE = re.compile(r"[^\0]*/services/(?P<name>[^/\0]+)")


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change in the log. ``path`` is the member's in /services; a claim's version is the entry's own
    place in ZooKeeper's history (zxid), which is also the zxid of the claim. ``events``: how many a
    watch on the claim's znode sees of it."""

    kind: Literal["joined", "left", "claim"]
    path: str = ""
    member: Member | None = None
    key: str = ""
    owner: str = ""
    events: int = 1


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of one member to another: to claim ``key`` if it is free, or to take ``claim`` over."""

    key: str
    claim: Claim | None = None


class ClaimAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request. ``done``: this was written together with the claim, whose version is its zxid.
    Otherwise it has the claim that stands, or the reason without one."""

    done: bool = False
    claim: Claim | None = None
    error: str = ""
    text: str = ""


_fields = msgspec.json.Decoder(dict[str, Any])
_entry = msgspec.json.Decoder(LogEntry)
_request = msgspec.json.Decoder(Request)
_answer = msgspec.json.Decoder(ClaimAnswer)


def encode_service(member: Member, at: float) -> bytes:
    """Return a member's JSON in /services, written at the wall time ``at``, in milliseconds."""
    parts = urlsplit(member.address)
    service: dict[str, Any] = {
        "host": parts.hostname or "",
        "port": parts.port or 0,
        "timestamp": round(at * 1000),
    }
    service |= {name: getattr(member, name) for name in _MEMBER_FIELDS}
    return msgspec.json.encode(service | msgspec.to_builtins(member.load))


def decode_service(path: str, data: bytes) -> Member:
    """Read the member at ``path``. A node of another program has its path as id and no room, because it takes
    no claims from Holdfast."""
    try:
        service = _fields.decode(data)
    except UNREADABLE:
        service = {}
    record = {name: service[name] for name in _MEMBER_FIELDS if name in service}
    load = {name: service[name] for name in _LOAD_FIELDS if name in service}
    try:
        return msgspec.convert(record | {"load": load}, Member)
    except msgspec.ValidationError:
        address = _address(service.get("host"), service.get("port"))
        return Member(path, basename(path), address, Load(room=0), foreign=True)


def _address(host: Any, port: Any) -> str:
    """Return the URL of a host and port; empty if they aren't valid."""
    if not (isinstance(host, str) and _HOST.fullmatch(host) and type(port) is int and 0 < port < 65536):
        return ""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def owner_path(data: bytes) -> str:
    """Return the owner's path in /services, from a claim's data; empty if that names none."""
    match = _SERVICE.fullmatch(data.decode(errors="replace"))
    return f"{SERVICES}/{match['name']}" if match and match["name"] not in (".", "..") else ""


def decode_path(path: str, data: bytes) -> str:
    """Return the path in /services that the znode of a membership at ``path`` names. Raises Damaged."""
    if service := owner_path(data):
        return service
    raise Damaged(f"{path} names no znode in {SERVICES}; another program wrote it")


def decode_entry(path: str, data: bytes) -> LogEntry:
    """Return a change in the log. Raises Damaged."""
    return _decode(_entry, path, data)


def decode_request(path: str, data: bytes) -> Request:
    """Read the request at ``path``. Raises Damaged."""
    return _decode(_request, path, data)


def decode_answer(path: str, data: bytes) -> ClaimAnswer:
    """Read the answer at ``path``. Raises Damaged."""
    return _decode(_answer, path, data)


def _decode(decoder: msgspec.json.Decoder[T], path: str, data: bytes) -> T:
    with reading(path):
        return decoder.decode(data)
