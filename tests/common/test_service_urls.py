"""The parts of URLs of services, and the errors of URLs that are wrong."""

import re
from typing import Any

import pytest

from holdfast.common.service_urls import (
    ServiceUrl,
    filled,
    hosts_of,
    join,
    matching,
    number,
    parameters_of,
    split,
)
from holdfast.errors import ConfigError

FORM = "redis://HOST:PORT"
READERS = {
    "database": number(0, 15),
    "prefix": matching(re.compile(r"[a-z]+"), "letters alone"),
    "cert": filled,
    "key": filled,
}


def test_a_url_has_its_parts_decoded() -> None:
    url = split("redis://a%40b:p%2Fw@one:1,[::1]:2/x?database=3", {"redis"}, "Redis", FORM)
    assert url == ServiceUrl("redis", "a@b", "p/w", "one:1,[::1]:2", "/x", "database=3")
    assert hosts_of("redis", url.hosts, 6379, FORM) == (("one", 1), ("::1", 2))
    assert hosts_of("redis", "one", 6379, FORM) == (("one", 6379),)
    assert [join("one", 1), join("::1", 2)] == ["one:1", "[::1]:2"]
    assert parameters_of("redis", "database=3&prefix=ab&cert=c&key=k", READERS) == {
        "database": 3,
        "prefix": "ab",
        "cert": "c",
        "key": "k",
    }


@pytest.mark.parametrize(
    "url, problem",
    [
        ("http://a", "'http' isn't a scheme of Redis; write redis://HOST:PORT"),
        ("://a", "'nothing' isn't a scheme of Redis"),
        ("redis://a:p/w@b", "redis: a password or a name holds one of @ / ? #: percent-encode it"),
        ("redis://a#b", "percent-encode it"),
    ],
)
def test_a_url_that_cannot_be_split_says_what_to_write(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        split(url, {"redis"}, "Redis", FORM)


@pytest.mark.parametrize(
    "hosts, problem",
    [
        ("a b", "redis: 'a b' isn't a HOST:PORT; write redis://HOST:PORT"),
        ("a,", "'' isn't a HOST:PORT"),
        ("a:65536", "65536 isn't a port; use a number from 1 to 65535"),
    ],
)
def test_hosts_that_are_wrong_are_named(hosts: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        hosts_of("redis", hosts, 6379, FORM)


@pytest.mark.parametrize(
    "query, problem",
    [
        ("databases=3", "redis: unknown parameter 'databases'; did you mean database?"),
        ("x=3", "unknown parameter 'x'; did you mean database, prefix, cert, key?"),
        ("database=16", "redis: database is '16'; write a number from 0 to 15"),
        ("database=٣", "write a number from 0 to 15"),
        ("prefix=A1", "redis: prefix 'A1' should have letters alone"),
        ("cert=", "redis: cert is empty; give it a value, or leave it out"),
        ("cert=c", "redis: cert and key go together; give the paths of both files, or of none"),
    ],
)
def test_parameters_that_are_wrong_are_named(query: str, problem: str) -> None:
    readers: dict[str, Any] = READERS
    with pytest.raises(ConfigError, match=re.escape(problem)):
        parameters_of("redis", query, readers)
