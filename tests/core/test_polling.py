"""As many receives as bring full batches, and a rest only where calls are shared by it."""

from holdfast.core.polling import Polling


def test_one_waits_while_the_queue_is_empty() -> None:
    polling = Polling(10, 16, 0.05)
    assert polling.received(0, 20.0) == 0.0
    assert polling.wanted == 1


def test_full_batches_call_for_more_up_to_the_limit() -> None:
    polling = Polling(10, 4, 0.05)
    for wanted in (2, 3, 4, 4):
        assert polling.received(10, 0.01) == 0.0
        assert polling.wanted == wanted


def test_thin_batches_send_them_home_one_by_one_but_the_last() -> None:
    polling = Polling(10, 4, 0.05)
    for _ in range(3):
        polling.received(10, 0.01)
    polling.received(5, 1.0)
    assert polling.wanted == 4, "half full is neither"
    for wanted in (3, 2, 1, 1):
        polling.received(4, 1.0)
        assert polling.wanted == wanted


def test_at_a_steady_rate_the_next_receive_waits_for_company() -> None:
    polling = Polling(10, 4, 0.05)
    assert polling.received(2, 0.02) == 0.05, "five more come meanwhile"
    assert polling.received(9, 0.01) == 10 / 900, "a full batch comes sooner"


def test_at_a_trickle_nothing_waits() -> None:
    polling = Polling(10, 4, 0.05)
    assert polling.received(1, 1.0) == 0.0
    assert polling.received(1, 0.06) == 0.0
    assert polling.received(1, 0.0) == 0.0, "no time to tell a rate by"


def test_where_calls_cost_nothing_there_is_no_rest() -> None:
    assert Polling(500, 1, 0.0).received(20, 0.01) == 0.0


def test_a_failure_leaves_one() -> None:
    polling = Polling(10, 4, 0.05)
    polling.received(10, 0.01)
    polling.failed()
    assert polling.wanted == 1
