"""What error replies mean."""

import pytest

from holdfast.errors import ConfigError, HoldfastError, OperationRefused, Unavailable
from holdfast.services.redis.refusals import RedisRefused


@pytest.mark.parametrize(
    "reply, error, text",
    [
        ("LOADING Redis is loading the dataset in memory", Unavailable, "loading"),
        ("BUSY Redis is busy running a script.", Unavailable, "script blocks"),
        ("READONLY You can't write against a read only replica.", Unavailable, "replica"),
        ("MASTERDOWN Link with MASTER is down", Unavailable, "lost its master"),
        ("CLUSTERDOWN The cluster is down", Unavailable, "no master"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, "moving"),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable, "min-replicas-to-write"),
        ("MISCONF Redis is configured to save RDB snapshots", Unavailable, "can't save"),
        ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable, "raise maxmemory"),
        ("ERR max number of clients reached", Unavailable, "raise maxclients"),
        ("NOAUTH Authentication required.", ConfigError, "redis://USER:PASSWORD@HOST"),
        ("WRONGPASS invalid username-password pair or user is disabled.", ConfigError, "is wrong"),
        ("ERR AUTH <password> called without any password configured", ConfigError, "is wrong"),
        ("NOPERM User x has no permissions to run the 'evalsha' command", ConfigError, "ACL"),
        ("WRONGTYPE Operation against a key", ConfigError, "another namespace"),
        ("ERR This instance has cluster support disabled", ConfigError, "write redis://HOST"),
        ("ERR unknown command `SENTINEL`, with args beginning with:", ConfigError, "isn't a Sentinel"),
        ("ERR unknown command 'SENTINEL', with args beginning with:", ConfigError, "isn't a Sentinel"),
        ("ERR something new", OperationRefused, "something new"),
        # as 6.2 reports an error inside a script
        (
            "ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
            Unavailable,
            "raise maxmemory",
        ),
        (
            "ERR Error running script (call to f_1): @user_script:1: The user can't run this command",
            ConfigError,
            "ACL",
        ),
    ],
)
def test_a_refusal_says_what_to_do(reply: str, error: type[HoldfastError], text: str) -> None:
    explained = RedisRefused(reply).explain("claim at redis://h")
    assert type(explained) is error
    assert text in str(explained)
    assert str(explained).startswith("claim at redis://h: ")
