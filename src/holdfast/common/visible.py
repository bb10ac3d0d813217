"""Foreign texts as a terminal may show them.

Texts of messages, tasks and other programs may hold what a terminal obeys: colours, titles, a cursor that
goes back over what stands there, text that is shown from right to left.
"""

from __future__ import annotations

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tabs and ends of lines, marks and overrides of direction, separators of lines,
and surrogates, which UTF-8 can't carry."""


def visible(text: str) -> str:
    """Return a text with an escape for each character that a terminal would obey, such as ``\\x1b``."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def visible_json(text: str) -> str:
    """As ``visible``, for JSON: it stands for the same value."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
