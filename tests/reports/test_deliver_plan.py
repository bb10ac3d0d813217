"""What to do about a file, given what is recorded and what stands."""

import hashlib

import msgspec
import pytest

from holdfast.errors import InvalidMessage
from holdfast.reports.deliver_plan import (
    MARK_BYTES,
    Companion,
    DeliveryStage,
    DeliveryStep,
    FileToDeliver,
    Mark,
    Record,
    best,
    companion,
    decide,
    marks_every,
)
from holdfast.reports.ports.sink import UNKNOWN_SIZE, RemoteFile

PARCEL = FileToDeliver(name="a/b.csv", content="v1")
SUM = hashlib.sha256(b"x").hexdigest()
MIB = 1 << 20


def record(stage: DeliveryStage, **fields: object) -> Record:
    return msgspec.convert(
        {"name": "a/b.csv", "content": "v1", "stage": stage.value, "size": 1, "sha256": SUM} | fields, Record
    )


def found(size: int = 1, version: str = "") -> RemoteFile:
    return RemoteFile("a/b.csv", size, version)


@pytest.mark.parametrize(
    "known, stands, step",
    [
        (None, None, DeliveryStep.SEND),
        (None, found(), DeliveryStep.SEND),
        (record(DeliveryStage.SENDING), None, DeliveryStep.RESUME),
        (record(DeliveryStage.SENDING), found(), DeliveryStep.RESUME),
        (record(DeliveryStage.PLACING), None, DeliveryStep.RESUME),
        (record(DeliveryStage.PLACING), found(2), DeliveryStep.RESUME),
        (record(DeliveryStage.PLACING), found(1), DeliveryStep.LOOK),
        (record(DeliveryStage.PLACED), found(1), DeliveryStep.FINISH),
        (record(DeliveryStage.PLACED), found(2), DeliveryStep.NOTHING),
        (record(DeliveryStage.PLACING), found(UNKNOWN_SIZE), DeliveryStep.LOOK),
        (record(DeliveryStage.PLACED), found(UNKNOWN_SIZE), DeliveryStep.FINISH),
        (record(DeliveryStage.PLACED, version="e1"), found(UNKNOWN_SIZE, "e2"), DeliveryStep.NOTHING),
        (record(DeliveryStage.DONE), found(UNKNOWN_SIZE), DeliveryStep.NOTHING),
        (record(DeliveryStage.DONE), found(1), DeliveryStep.NOTHING),
        (record(DeliveryStage.DONE), None, DeliveryStep.NOTHING),
        (record(DeliveryStage.DONE, content="v0"), found(1), DeliveryStep.SEND),
        (record(DeliveryStage.DONE, name="a/c.csv"), None, DeliveryStep.SEND),
    ],
)
def test_each_state_of_a_delivery_has_its_next_step(
    known: Record | None, stands: RemoteFile | None, step: DeliveryStep
) -> None:
    assert decide(PARCEL, known, stands) is step


@pytest.mark.parametrize(
    "stands, step",
    [
        (None, DeliveryStep.SEND),
        (found(2), DeliveryStep.SEND),
        (found(1, "other"), DeliveryStep.SEND),
        (found(1, "e1"), DeliveryStep.NOTHING),
    ],
)
def test_what_was_taken_away_is_sent_again_if_ordered(stands: RemoteFile | None, step: DeliveryStep) -> None:
    parcel = msgspec.structs.replace(PARCEL, if_gone="send")
    assert decide(parcel, record(DeliveryStage.DONE, version="e1"), stands) is step


def test_the_best_mark_is_the_last_that_is_held_and_fits() -> None:
    marks = [Mark(n * MIB, "") for n in (8, 16, 24)]
    assert best(marks, 20 * MIB, 1) == marks[1]
    assert best(marks, 24 * MIB, 1) == marks[2]
    assert best(marks, 24 * MIB, 16 * MIB) == marks[1]
    assert best(marks, 7 * MIB, 1) is None
    assert best([Mark(0, "")], 7, 1) is None


@pytest.mark.parametrize(
    "grain, apart", [(1, MARK_BYTES), (5 * MIB, 10 * MIB), (8 * MIB, 8 * MIB), (9 * MIB, 9 * MIB)]
)
def test_marks_are_where_an_upload_can_go_on(grain: int, apart: int) -> None:
    assert marks_every(grain) == apart


def test_files_beside_a_report_have_the_usual_formats() -> None:
    done = record(DeliveryStage.PLACED, md5="0" * 32)
    assert companion(Companion.OK, done) == b""
    assert companion(Companion.SHA256, done) == f"{SUM}  b.csv\n".encode()
    assert companion(Companion.MD5, done) == f"{'0' * 32}  b.csv\n".encode()


@pytest.mark.parametrize("name", ["../x", "/x", "a\nb", "x" * 300])
def test_names_are_checked_before_anything_is_made(name: str) -> None:
    with pytest.raises(InvalidMessage):
        FileToDeliver(name=name, content="v1")


def test_names_of_companions_are_checked_too() -> None:
    FileToDeliver(name="x" * 255, content="v1")
    with pytest.raises(InvalidMessage):
        FileToDeliver(name="x" * 255, content="v1", companions=(Companion.OK,))


def test_a_record_is_kept_as_json() -> None:
    kept = record(DeliveryStage.SENDING, tokens=("a",), marks=[{"size": 1, "sha256": SUM}])
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Record) == kept
