"""Spans are described as the conventions say."""

from holdfast.common import conventions


def test_an_operation_has_its_type_unless_its_name_is_one() -> None:
    said = conventions.operation(conventions.COMMIT, "cameras", conventions.SETTLE)
    assert said["messaging.operation.name"] == "commit"
    assert said["messaging.operation.type"] == "settle"
    assert said["messaging.destination.name"] == "cameras"
    assert conventions.operation(conventions.SEND, "cameras")["messaging.operation.type"] == "send"
