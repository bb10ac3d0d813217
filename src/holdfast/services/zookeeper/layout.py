"""The znodes: a part that any program may read and join, and a part for nodes of Holdfast alone.

::

    /services/worker-0000000007    ephemeral, of a membership's session: {"host", "port", "timestamp", …}
    /tasks/{stream id}             ephemeral, of the owner's session: the owner's path in /services
    /holdfast/members/{id}         ephemeral, of a membership's session: its path in /services; a bell
    /holdfast/requests/{name}      ephemeral, of the asker's session: "claim this", "take this over"
    /holdfast/locks/{stream id}    ephemeral, for the time between looking at a claim and replacing it
    /holdfast/changes/c-…          the last few thousand changes, in order; rung like a bell
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

SERVICES = "/services"
TASKS = "/tasks"
MEMBERS = "/holdfast/members"
REQUESTS = "/holdfast/requests"
LOCKS = "/holdfast/locks"
CHANGES = "/holdfast/changes"

DIRECTORIES = (SERVICES, TASKS, MEMBERS, REQUESTS, LOCKS, CHANGES)

WORKER = f"{SERVICES}/worker-"
CHANGE = f"{CHANGES}/c-"

# Characters that servers refuse in a name, also beyond the basic plane, which they see as surrogates; and the
# characters of the escapes themselves.
_REFUSED = re.compile("[%/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
_CHANGE = re.compile(r"c-(?=.{10,11}\Z)-?[0-9]+")
_RESERVED = {".": "%2E", "..": "%2E%2E", "zookeeper": "%7Aookeeper"}


def escape(text: str) -> str:
    """Return a name for a znode: the text itself wherever that can be, else percent-encoded UTF-8 in it."""
    return _RESERVED.get(text) or _REFUSED.sub(
        lambda match: quote(match[0], safe="", errors="surrogatepass"), text
    )


def unescape(name: str) -> str:
    """Return the text that :func:`escape` made ``name`` of. Raises ValueError for a name that it makes of
    none: one that another program chose."""
    text = unquote(name, errors="surrogatepass")
    if escape(text) != name:
        raise ValueError(f"{name!r} stands for no key")
    return text


def keys(names: Iterable[str]) -> list[str]:
    """Return the keys that the names in /tasks stand for, in order; names of other programs that no key has
    are left out."""
    found = []
    for name in names:
        with contextlib.suppress(ValueError):
            found.append(unescape(name))
    return sorted(found)


def task(key: str) -> str:
    """Return the path of a key's claim."""
    return f"{TASKS}/{escape(key)}"


def lock(key: str) -> str:
    """Return the path of a key's lock: while it exists, the claim doesn't change."""
    return f"{LOCKS}/{escape(key)}"


def member(member_id: str) -> str:
    """Return the path by which a membership is found by its id, and rung."""
    return f"{MEMBERS}/{escape(member_id)}"


def basename(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def is_change(name: str) -> bool:
    """True for the name of a change; others may have left anything beside them."""
    return _CHANGE.fullmatch(name) is not None


def after(name: str) -> str:
    """Return the name of the change that follows the change ``name``. The server counts in 32 bits: past the
    greatest number comes the least, so names are followed, never compared."""
    return change_name(int(name.removeprefix("c-")) + 1)


def change_name(number: int) -> str:
    """Return the name of a change by its number, taken around 32 bits."""
    wrapped = (number + 2**31) % 2**32 - 2**31
    return f"c-{wrapped:010d}"
