"""The state of a collector: whether it accepts data. Each change is logged."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.common.redaction import redact, redact_url


class CollectorState:
    """The last known state of the collector at ``url`` for ``what``. ``failing`` is True from a refusal until
    the collector accepts again, or until sending fails here."""

    def __init__(self, url: str, log: Any, what: str) -> None:
        self._state: Literal["takes", "takes none", "is sent none"] = "takes"
        self._url = redact_url(url)
        self._log = log
        self._what = what

    @property
    def failing(self) -> bool:
        return self._state == "takes none"

    def note(self, done: bool) -> None:
        """Note whether the collector accepted the last ones."""
        before, self._state = self._state, "takes" if done else "takes none"
        if before == self._state:
            return
        if done:
            self._log.info("collector recovered", what=self._what, url=self._url)
        else:
            self._log.warning("collector failed", what=self._what, url=self._url)

    def not_sent(self, error: Exception) -> None:
        """Note that the last ones could not be sent for a local reason."""
        before, self._state = self._state, "is sent none"
        if before != self._state:
            why = redact(str(error) or type(error).__name__)
            self._log.warning("cannot send to collector", what=self._what, url=self._url, error=why)
