"""The properties of PUBLISH packets of MQTT 5, read in place.

Source: MQTT 5.0, OASIS standard, 2.2.2 and 3.3.2.3.
"""

from __future__ import annotations

CORRELATION = 0x09
_SIZES = {0x01: 1, 0x02: 4, 0x23: 2}
"""Sizes of PUBLISH's properties of a fixed size."""
_TEXTS = {0x03: 1, 0x08: 1, CORRELATION: 1, 0x26: 2}
"""The number of texts in each property with text values, by the property's id."""
_NUMBER = 0x0B
"""The property that is a number of variable length."""


class MalformedProperties(ValueError):
    """Properties that MQTT doesn't allow."""


def read_properties(packet: bytes | bytearray, at: int) -> tuple[int, bytes | None]:
    """Return where the payload begins, and the correlation data. Raises IndexError or MalformedProperties."""
    size, at = _number(packet, at)
    end, correlation = at + size, None
    if end > len(packet):
        raise MalformedProperties("properties longer than their packet")
    while at < end:
        name = packet[at]
        at += 1
        if name in _TEXTS:
            for _ in range(_TEXTS[name]):
                length = packet[at] << 8 | packet[at + 1]
                if name == CORRELATION:
                    correlation = bytes(packet[at + 2 : at + 2 + length])
                at += 2 + length
        elif name in _SIZES:
            at += _SIZES[name]
        elif name == _NUMBER:
            _, at = _number(packet, at)
        else:
            raise MalformedProperties(f"no message has the property {name:#x}")
    if at != end:
        raise MalformedProperties("a property longer than its place")
    return end, correlation


def _number(packet: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = shift = 0
    while True:
        digit = packet[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7
        if shift > 21:
            raise MalformedProperties("a number longer than MQTT has them")
