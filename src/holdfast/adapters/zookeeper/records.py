"""What is written into znodes. A node's own JSON stays readable for whoever knows only host and port."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.adapters.zookeeper.layout import basename
from holdfast.core.record import UNREADABLE
from holdfast.ports.coordinator import Claim, Load, Member

_MEMBER_FIELDS = tuple(name for name in Member.__struct_fields__ if name != "load")
_LOAD_FIELDS = Load.__struct_fields__
_fields = msgspec.json.Decoder(dict[str, Any])


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change in the log. ``path`` is the member's in /services; a claim's version is the entry's own
    place in ZooKeeper's history (zxid), which is also that of the claim it tells of."""

    kind: Literal["joined", "left", "claim"]
    path: str = ""
    member: Member | None = None
    key: str = ""
    owner: str = ""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one member asks of another: to claim ``key`` if it is free, or to take ``claim`` over."""

    key: str
    claim: Claim | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a request. ``done``: this was written together with the claim, whose version is its
    zxid. Else the claim that stands, or why there is none."""

    done: bool = False
    claim: Claim | None = None
    error: str = ""
    text: str = ""


def encode_service(member: Member, at: float) -> bytes:
    """A member's JSON in /services, written at the wall time ``at``."""
    parts = urlsplit(member.address)
    service: dict[str, Any] = {"host": parts.hostname or "", "port": parts.port or 0, "timestamp": at}
    service |= {name: getattr(member, name) for name in _MEMBER_FIELDS}
    return msgspec.json.encode(service | msgspec.structs.asdict(member.load))


def decode_service(path: str, data: bytes) -> Member:
    """Who is at ``path``. A node of another program has its path for an id and no room, for it takes no
    claims from us."""
    try:
        service = _fields.decode(data)
    except UNREADABLE:
        service = {}
    record = {name: service[name] for name in _MEMBER_FIELDS if name in service}
    load = {name: service[name] for name in _LOAD_FIELDS if name in service}
    try:
        return msgspec.convert(record | {"load": load}, Member)
    except msgspec.ValidationError:
        host, port = service.get("host"), service.get("port")
        address = f"http://{host}:{port}" if isinstance(host, str) and isinstance(port, int) else ""
        return Member(path, basename(path), address, Load(room=0), foreign=True)
