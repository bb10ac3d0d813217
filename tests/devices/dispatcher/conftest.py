"""What the parts of a dispatcher stand on in their tests."""

from holdfast.system.clock import SystemClock


class SetClock(SystemClock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.ahead_s = 0.0, 1e9

    def monotonic(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at + self.ahead_s
