"""When an owner leaves its stream."""

from holdfast.common.message import Life, Place
from holdfast.rules.streams.commands import Peek, PutBack, Release, Transfer, Write
from holdfast.rules.streams.ledger import RunLog
from holdfast.rules.streams.owner import LOOK_S
from tests.rules.streams.parts import Parts, held


def test_a_move_ends_with_the_transfer_or_without_a_target_with_the_release() -> None:
    parts = Parts()
    assert parts.rest.text == "its release"
    assert parts.rest.plan_move(0.0) == Release()
    parts.rest.target = "n2"
    assert parts.rest.text == "its move to n2"
    assert parts.rest.plan_move(0.0) == Transfer("n2")


def test_a_mark_is_taken_away_before_a_move() -> None:
    parts = Parts()
    parts.blame.committed(Place(0, 0).name)
    assert parts.rest.plan_move(0.0) is None
    [write] = parts.out()
    assert isinstance(write, Write)
    assert write.commit.starting == ""


def test_messages_of_a_reserved_key_go_back_to_the_queue_before_a_move() -> None:
    parts, message = Parts(by_key=True), held(0)
    parts.offer(message)
    parts.backlog.reserved(True, 0.0)
    assert parts.rest.plan_move(0.0) is None
    assert parts.out() == [PutBack((message,))]
    assert message.life is Life.RECEIVED
    assert parts.rest.plan_move(0.0) is None, "until they are back"
    parts.rest.putting_back = False
    assert parts.rest.plan_move(0.0) == Release()


def test_a_move_waits_for_a_read_of_the_store() -> None:
    parts = Parts({"log": RunLog(0, 0, 4)})
    parts.offer(held(3))
    assert parts.rest.plan_move(0.0) is None
    assert parts.rest.plan_idle(0.0) is None


def test_an_idle_stream_is_released_in_time() -> None:
    parts = Parts(idle_timeout_s=60.0)
    assert parts.rest.plan_idle(59.0) is None
    assert parts.agenda.wake_at == 60.0
    parts.agenda.settling = 1
    assert parts.rest.plan_idle(60.0) is None, "settlements aren't answered"
    parts.agenda.settling = 0
    assert parts.rest.plan_idle(60.0) == Release()


def test_a_parked_stream_reads_the_store_from_time_to_time() -> None:
    parts = Parts({"parked": "by hand"})
    parts.offer(held(0))
    parts.rest.look_at = 1.0
    assert parts.rest.plan_idle(0.0) is None
    assert (parts.out(), parts.agenda.wake_at) == ([], 1.0)
    assert parts.rest.plan_idle(1.0) is None
    assert parts.out() == [Peek()]
    assert parts.rest.look_at == 1.0 + LOOK_S
