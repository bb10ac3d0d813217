"""The time in which a node receives nothing: it ends with a receive after a pause, with an answer after a
failure."""

from holdfast.common.reception import Reception


def test_a_queue_that_answers_in_time_is_never_silent() -> None:
    reception = Reception(0.0, answer_s=25.0)
    for now in (20.0, 40.0, 65.0):
        assert not reception.is_silent(now)
        reception.asked(now)
        reception.answered(now)
    assert reception.silent_s(70.0) == 0.0


def test_a_pause_lasts_until_the_next_receive_begins() -> None:
    reception = Reception(0.0, answer_s=25.0)
    reception.paused(10.0)
    reception.paused(11.0)
    assert reception.is_silent(12.0)
    assert reception.silent_s(12.0) == 2.0
    reception.asked(14.0)
    assert not reception.is_silent(15.0)
    assert reception.silent_s(15.0) == 4.0
    assert reception.silent_s(39.0) == 4.0, "its answer is due 25 s after it began"
    assert reception.silent_s(40.0) == 5.0


def test_a_failure_lasts_until_an_answer_and_not_until_the_next_try() -> None:
    reception = Reception(0.0, answer_s=25.0)
    reception.failed(10.0)
    reception.asked(12.0)
    reception.paused(13.0)
    reception.failed(14.0)
    assert reception.is_silent(16.0)
    assert reception.silent_s(16.0) == 6.0
    reception.answered(17.0)
    reception.failed(20.0)
    reception.answered(21.0)
    assert reception.silent_s(22.0) == 8.0, "all such times together"


def test_a_queue_that_does_not_answer_is_silent_once_its_answer_is_late() -> None:
    reception = Reception(0.0, answer_s=25.0)
    reception.answered(10.0)
    assert not reception.is_silent(35.0)
    assert reception.is_silent(36.0)
    assert reception.silent_s(40.0) == 5.0
    reception.answered(41.0)
    assert not reception.is_silent(41.0)
    assert reception.silent_s(41.0) == 6.0


def test_time_without_room_is_no_silence_unless_the_queue_failed_before() -> None:
    reception = Reception(0.0, answer_s=25.0)
    reception.full(20.0)
    assert reception.silent_s(40.0) == 0.0
    reception.failed(40.0)
    reception.full(43.0)
    assert reception.is_silent(44.0)
    assert reception.silent_s(44.0) == 4.0
