"""As many receives as bring full batches, and a rest only where calls are shared by it."""

import pytest

from holdfast.common.polling import Polling


def test_one_waits_while_the_queue_is_empty() -> None:
    polling = Polling(10, 16, 0.05)
    assert polling.received(0, 20.0) == 0.0
    assert polling.wanted == 1


def test_full_batches_call_for_more_up_to_the_limit() -> None:
    polling = Polling(10, 4, 0.05)
    for wanted in (1, 2, 3, 4, 4):
        assert polling.received(10, 0.1) == 0.0
        assert polling.wanted == wanted


def test_one_full_batch_may_be_all_there_is() -> None:
    polling = Polling(10, 4, 0.05)
    for _ in range(100):
        polling.received(10, 0.05)
        polling.received(5, 0.05)
    assert polling.received(10, 0.05) > 0.0
    assert polling.wanted == 1


def test_thin_batches_send_them_home_one_by_one_but_the_last() -> None:
    polling = Polling(10, 4, 0.05)
    for _ in range(4):
        polling.received(10, 0.01)
    polling.received(5, 1.0)
    assert polling.wanted == 4, "half full is neither"
    for wanted in (3, 2, 1, 1):
        polling.received(4, 1.0)
        assert polling.wanted == wanted


def test_at_a_steady_rate_the_next_receive_waits_for_more_messages() -> None:
    polling = Polling(10, 4, 0.05)
    rests = [polling.received(2, 0.02) for _ in range(100)]
    assert rests[0] == 0.0, "it may be a trickle yet"
    assert rests[-1] == 0.05, "five more come meanwhile"
    rests = [polling.received(9, 0.01) for _ in range(200)]
    assert rests[-1] == pytest.approx(10 / 900, rel=0.1), "a full batch comes sooner"


def test_one_message_soon_after_another_makes_no_rate() -> None:
    polling = Polling(10, 4, 0.05)
    for _ in range(100):
        polling.received(5, 0.05)
    assert polling.received(1, 0.001) == 0.05


def test_messages_that_trickle_in_wait_for_no_others() -> None:
    polling = Polling(10, 4, 0.05)
    assert {polling.received(1, 0.1) for _ in range(100)} == {0.0}
    assert polling.received(1, 0.0) == 0.0, "no time to tell a rate by"


def test_where_calls_cost_nothing_there_is_no_rest() -> None:
    assert Polling(500, 1, 0.0).received(20, 0.01) == 0.0


def test_a_failed_receive_leaves_one_open() -> None:
    polling = Polling(10, 4, 0.05)
    for _ in range(4):
        polling.received(10, 0.01)
    polling.failed()
    assert polling.wanted == 1


def test_a_crowd_leaves_one_that_rests() -> None:
    polling = Polling(10, 4, 0.05)
    for _ in range(4):
        polling.received(10, 0.01)
    assert polling.crowded() > 0.0
    assert polling.wanted == 1
