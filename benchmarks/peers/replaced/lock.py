"""A Redis lock a video, renewed by a thread of its own."""

from __future__ import annotations

import threading
import uuid

import redis

RENEW = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('expire', KEYS[1], ARGV[2]) end return 0"
)
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class VideoLock:
    """The lock of one video, held by at most one worker while its renewals are in time."""

    def __init__(self, client: redis.Redis, video: str, ttl_s: int, renew_s: float) -> None:
        self._client = client
        self._name = f"lock:{video}"
        self._token = uuid.uuid4().hex
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._released = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def acquire(self) -> bool:
        """Take the lock if it is free, and begin to renew it."""
        if not self._client.set(self._name, self._token, nx=True, ex=self._ttl_s):
            return False
        self._renewing.start()
        return True

    def release(self) -> None:
        """Renew no more, and give the lock up."""
        self._released.set()
        self._renewing.join()
        self._client.eval(RELEASE, 1, self._name, self._token)

    def _renew(self) -> None:
        while not self._released.wait(self._renew_s):
            self._client.eval(RENEW, 1, self._name, self._token, str(self._ttl_s))
