"""What is ready waits for others only where a call fills soon."""

import pytest

from holdfast.tasks.completer import Batcher


def batcher(rate: float) -> Batcher:
    """One whose items have come at this rate for long."""
    made = Batcher(10, 0.4)
    for number in range(1000):
        made.came(number / rate)
    return made


@pytest.mark.parametrize(
    "rate, waiting, others, patience_s",
    [
        (1000.0, 1, 50, 0.4),
        (1000.0, 9, 50, 0.4),
        (1000.0, 10, 50, 0.0),
        (1000.0, 25, 50, 0.0),
        (20.0, 1, 50, 0.0),
        (20.0, 6, 50, 0.4),
        (50.0, 1, 0, 0.0),
        (200.0, 5, 0, 0.05),
    ],
)
def test_the_wait_depends_on_the_rate_and_on_others(
    rate: float, waiting: int, others: int, patience_s: float
) -> None:
    assert batcher(rate).patience_s(waiting, others) == pytest.approx(patience_s)


def test_what_was_busy_long_ago_is_not_busy() -> None:
    made = batcher(1000.0)
    made.came(100.0)
    assert made.patience_s(1, 50) == 0.0
