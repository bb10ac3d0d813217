"""Refreshes the parts of the docs that are taken from the code: ``make docs``.

Such a part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast import config
from holdfast.core import owner
from holdfast.core.device_queue import TABLE, Cause
from holdfast.testing.simulator.mutations import RULES

DOCS = Path(__file__).parent


def settings() -> str:
    """Every setting of a node."""
    return config.reference()


def mutations() -> str:
    """Every protection that the simulator can switch off."""
    lines = ["| `--break` | switched off: | found within |", "|---|---|---|"]
    lines += [f"| `{rule}` | {broken.says} | {broken.seeds} seeds |" for rule, broken in RULES.items()]
    return "\n".join(lines) + "\n"


def phases() -> str:
    """The phases of an owner, from the table in its module."""
    _, table, _ = re.split(r"^=+  =+$", owner.__doc__ or "", flags=re.MULTILINE)
    rows = re.findall(r"^(\w+) +(.+(?:\n +.+)*)", table, flags=re.MULTILINE)
    lines = ["| phase | what happens, and what follows |", "|---|---|"]
    lines += [f"| `{phase}` | {' '.join(text.split())} |" for phase, text in rows]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every move between the states of a command."""
    words = {
        Cause.PUBLISH: "is sent",
        Cause.ANSWER: "is answered",
        Cause.REFUSE: "is refused by its device",
        Cause.GIVE_UP: "has no answer in all its tries",
        Cause.EXPIRE: "expires",
        Cause.SUPERSEDE: "is replaced by a newer one",
        Cause.CANCEL: "is cancelled, or its job aborted",
        Cause.RETRY: "is retried by an operator",
    }
    lines = ["| a command that is | and | becomes |", "|---|---|---|"]
    lines += [f"| {state} | {words[cause]} | {after} |" for (state, cause), after in TABLE.items()]
    return "\n".join(lines) + "\n"


PARTS = {"settings": settings, "phases": phases, "mutations": mutations, "commands": commands}


def refreshed(text: str) -> str:
    """A page's text with its generated parts as the code has them now."""
    return re.sub(
        r"(?<=<!-- generated: )(\w+) -->\n.*?(?=<!-- end -->)",
        lambda part: f"{part[1]} -->\n\n{PARTS[part[1]]()}\n",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Rewrite every page that is out of date."""
    for page in DOCS.rglob("*.md"):
        page.write_text(refreshed(page.read_text()))


if __name__ == "__main__":
    main()
