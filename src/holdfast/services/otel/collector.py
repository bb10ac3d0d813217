"""The state of a collector: whether it takes what it is sent. The log tells when that changes."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.common.redaction import redact, redact_url


class CollectorState:
    """The state of the collector at ``url``: whether it takes ``what``, as far as is known. ``failing`` is
    True from the first time that it doesn't to the next that it does, or that nothing can be sent to it."""

    def __init__(self, url: str, log: Any, what: str) -> None:
        self._state: Literal["takes", "takes none", "is sent none"] = "takes"
        self._url = redact_url(url)
        self._log = log
        self._what = what

    @property
    def failing(self) -> bool:
        return self._state == "takes none"

    def told(self, done: bool) -> None:
        """Note whether it has taken the last ones."""
        before, self._state = self._state, "takes" if done else "takes none"
        if before == self._state:
            return
        if done:
            self._log.info(f"the collector takes {self._what} again", url=self._url)
        else:
            self._log.warning(f"the collector takes no {self._what}", url=self._url)

    def not_sent(self, error: Exception) -> None:
        """Note that the last ones could not be sent, for a reason that lies here."""
        before, self._state = self._state, "is sent none"
        if before != self._state:
            why = redact(str(error) or type(error).__name__)
            self._log.warning(f"{self._what} can't be sent to the collector", url=self._url, error=why)
