"""What an action's input becomes in forms and in the audit log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.operate.actions import audited_fields
from holdfast.operate.streams import ACTIONS as OF_STREAMS
from holdfast.operate.task_actions import ACTIONS as OF_TASKS


class Request(msgspec.Struct):
    """A request with contents that only the receiver should see."""

    count: int = 0
    then: list[str] = []
    body: Any = None
    body_base64: str | None = None
    messages: list[str] = []
    commands: list[str] = []


def test_the_audit_log_has_what_was_given_and_no_contents() -> None:
    full = Request(3, ["a", "b"], "hunter2", "hunter2", ["hunter2"], ["hunter2"])
    assert audited_fields(full) == {"count": 3, "then": "2: a, b"}
    assert audited_fields(Request()) == {}


@pytest.mark.parametrize("action", [*OF_STREAMS, *OF_TASKS], ids=lambda action: action.name)
def test_each_action_can_be_shown(action: Any) -> None:
    assert action.summary.endswith(".")
    assert bool(action.confirm) == bool(action.warning)
    assert all(each.label or each.default is not msgspec.NODEFAULT for each in action.fields)
