"""``holdfast doctor`` on services that are not SQLite."""

from typing import Any

import pytest

from holdfast.testing.servers import RedisServer


def test_what_redis_may_lose_is_named(redis_server: RedisServer, holdfast: Any) -> None:
    outcome = holdfast(
        "doctor", "--set", f"coordinator_url={redis_server.url}", "-s", f"state_url={redis_server.url}"
    )
    assert f"✓ coordinator: {redis_server.url}: answers; 0 nodes live" in outcome.out
    assert "nothing is kept on disk: a restart loses every checkpoint" in outcome.out
    assert "→ set appendonly yes and appendfsync everysec" in outcome.out
    assert outcome.code == 1


def test_a_redis_that_is_not_there_is_told_once(holdfast: Any) -> None:
    outcome = holdfast("doctor", "--set", "state_url=redis://127.0.0.1:1")
    assert "✗ state store: redis://127.0.0.1:1: " in outcome.out
    assert "see that redis://127.0.0.1:1 is up" in outcome.out
    assert outcome.code == 3


@pytest.mark.parametrize("url", ["redis://:hunter2@127.0.0.1:1", "rediss+cluster://ann:hunter2@127.0.0.1:1"])
def test_no_password_is_shown(holdfast: Any, url: str) -> None:
    outcome = holdfast("doctor", "--set", f"state_url={url}")
    assert "hunter2" not in outcome.out + outcome.err
