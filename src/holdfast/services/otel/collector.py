"""The state of a collector: whether it takes what it is sent. The log tells when that changes."""

from __future__ import annotations

from typing import Any

from holdfast.common.redaction import redact_url


class CollectorState:
    """The state of the collector at ``url``: whether it takes ``what``, as far as is known. ``failing`` is
    True from the first time that it doesn't to the next that it does."""

    def __init__(self, url: str, log: Any, what: str) -> None:
        self.failing = False
        self._url = redact_url(url)
        self._log = log
        self._what = what

    def told(self, done: bool) -> None:
        """Note whether it has taken the last ones."""
        if done is not self.failing:
            return
        self.failing = not done
        if done:
            self._log.info(f"the collector takes {self._what} again", url=self._url)
        else:
            self._log.warning(f"the collector takes no {self._what}", url=self._url)
