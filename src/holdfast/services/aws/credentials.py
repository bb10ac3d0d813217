"""Credentials as botocore finds them (environment, profiles, roles, SSO, web identity, instance metadata),
refreshed without blocking the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import botocore.credentials
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, MetadataRetrievalError

from holdfast.errors import ConfigError, Unavailable
from holdfast.ports.clock import Clock

CHECK_S = 30.0
"""Seconds between checks of expiring credentials, which botocore refreshes from 15 minutes before they
expire."""

MARGIN_S = 60
"""Credentials that expire sooner than this aren't used."""

NONE_FOUND = (
    "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile in"
    " AWS_PROFILE, or give the machine or container a role"
)


class AwsCredentials:
    """One account's credentials.

    Args:
        clock: times the checks.
        look: finds them; None if there are none. It is called in a thread, and again when they must be found
            again.
    """

    def __init__(self, clock: Clock, look: Callable[[], botocore.credentials.Credentials | None]) -> None:
        self._clock = clock
        self._look_for = look
        self._found: ReadOnlyCredentials | None = None
        self._source: object = None
        self._check_at = -math.inf
        self._work: asyncio.Task[None] | None = None

    @property
    def method(self) -> str:
        """The source of the credentials, such as ``env`` or ``iam-role``; empty before they were found."""
        return str(getattr(self._source, "method", ""))

    async def get(self) -> ReadOnlyCredentials:
        """Return the present credentials. Raises ConfigError if there are none, Unavailable if their issuer
        can't be reached."""
        if self._found is None or self._check_at <= self._clock.monotonic():
            await self._look()
        assert self._found is not None
        return self._found

    async def renew(self, refused: ReadOnlyCredentials) -> bool:
        """Find credentials again, unless there are already others than the ``refused`` ones; return False if
        they are the same again."""
        if self._found is refused:
            await asyncio.shield(self._begin(self._find))
        return bool(self._found != refused)

    def close(self) -> None:
        """Forget their source, and with it botocore's open connection to the issuer."""
        self._source = self._work = None

    async def _look(self) -> None:
        if self._found is None:
            await asyncio.shield(self._begin(self._find))
        elif isinstance(self._source, RefreshableCredentials) and self._source.refresh_needed():
            refreshing = self._begin(self._freeze)
            if self._source.refresh_needed(MARGIN_S):
                await asyncio.shield(refreshing)
        self._check_at = self._clock.monotonic() + CHECK_S

    def _begin(self, work: Callable[[], None]) -> asyncio.Task[None]:
        """Do the work in a thread, once for all waiting callers."""
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._in_thread(work))
            self._work.add_done_callback(_seen)
        return self._work

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except (BotoCoreError, ClientError) as error:
            if _is_passing(error):
                raise Unavailable(f"can't get AWS credentials now: {error}") from error
            raise ConfigError(f"can't get AWS credentials: {error}") from error
        except RuntimeError as error:  # of botocore, for new credentials that have expired already
            raise Unavailable(f"{error} Is this machine's clock right?") from error

    def _find(self) -> None:
        self._source = self._look_for()
        if self._source is None:
            raise ConfigError(NONE_FOUND)
        self._freeze()

    def _freeze(self) -> None:
        source: Any = self._source
        if source is None:
            raise Unavailable("the client is closed")
        self._found = source.get_frozen_credentials()


def _is_passing(error: Exception) -> bool:
    """Return True if the issuer of the credentials failed, because of an outage or too many requests."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status == 429 or status >= 500 or "Throttl" in error.response.get("Error", {}).get("Code", "")
    outages = HTTPClientError, MetadataRetrievalError
    return isinstance(error, outages) or isinstance(error.__context__, outages)


def _seen(task: asyncio.Task[None]) -> None:
    """Read the exception of a refresh without a waiting caller: the next check tries again."""
    if not task.cancelled():
        task.exception()
