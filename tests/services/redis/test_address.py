"""Where Redis is, from a URL."""

import pytest

from holdfast.errors import ConfigError
from holdfast.services.redis.address import RedisAddress, parse


@pytest.mark.parametrize(
    "url, address",
    [
        ("redis://localhost", RedisAddress("single", (("localhost", 6379),))),
        ("redis://h:1/3", RedisAddress("single", (("h", 1),), db=3)),
        ("redis://[::1]:7000/", RedisAddress("single", (("::1", 7000),))),
        ("redis://:pw@h", RedisAddress("single", (("h", 6379),), password="pw")),
        (
            "redis://me:p%40s%2Fs%3A@h?namespace=vision&shards=4",
            RedisAddress(
                "single", (("h", 6379),), username="me", password="p@s/s:", namespace="vision", shards=4
            ),
        ),
        (
            "rediss://h:1?ca=/a/ca.pem&cert=/a/c.pem&key=/a/k.pem",
            RedisAddress("single", (("h", 1),), tls=True, ca="/a/ca.pem", cert="/a/c.pem", key="/a/k.pem"),
        ),
        (
            "redis+sentinel://u:p@a:1,b/main/2",
            RedisAddress(
                "sentinel", (("a", 1), ("b", 26379)), service="main", db=2, username="u", password="p"
            ),
        ),
        ("rediss+sentinel://a/main", RedisAddress("sentinel", (("a", 26379),), service="main", tls=True)),
        ("redis+cluster://a:1,b", RedisAddress("cluster", (("a", 1), ("b", 6379)), shards=16)),
        ("redis://h?wait_replicas=2", RedisAddress("single", (("h", 6379),), wait_replicas=2)),
        ("rediss+cluster://a?shards=1", RedisAddress("cluster", (("a", 6379),), tls=True)),
    ],
)
def test_a_redis_url_is_parsed_into_its_parts(url: str, address: RedisAddress) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    "url, text",
    [
        ("", "write redis://"),
        ("http://h", "'http' isn't a scheme of Redis"),
        ("redis:h", "write redis://"),
        ("redis://", "'' isn't a HOST:PORT"),
        ("redis://h:", "'h:***' isn't a HOST:PORT"),
        ("redis://h:x", "'h:***' isn't a HOST:PORT"),
        ("redis://h:0", "0 isn't a port"),
        ("redis://h:65536", "65536 isn't a port"),
        ("redis://a,b", "for several write redis+sentinel"),
        ("redis://h/x", "'x' isn't a number of a database"),
        ("redis://h/1/2", "'1/2' isn't a number of a database"),
        ("redis+sentinel://a,b", "redis+sentinel://HOST,HOST/SERVICE"),
        ("redis+sentinel://a/main/x", "'x' isn't a number of a database"),
        ("redis+cluster://a,b/1", "only database 0"),
        ("redis://h?namespaces=x", "did you mean namespace?"),
        ("redis://h?x=1", "did you mean namespace, shards, wait_replicas, ca, cert, key?"),
        ("redis://h?namespace=", "namespace ''"),
        ("redis://h?namespace={x}", "namespace '{x}'"),
        ("redis://h?shards=0", "write a number from 1 to 1024"),
        ("redis://h?shards=many", "write a number from 1 to 1024"),
        ("redis://h?wait_replicas=-1", "wait_replicas is '-1'; write a number from 0 to 16"),
        ("redis://h?ca=/ca.pem", "write rediss://"),
        ("redis+cluster://h?ca=/ca.pem", "write rediss+cluster://"),
        ("rediss://h?cert=/c.pem", "cert and key go together"),
        ("redis://h#1", "percent-encode it"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(url)
    assert text in str(raised.value)


@pytest.mark.parametrize("password", ["pa/geheim", "pa?geheim", "pa#geheim", "pa:/geheim"])
def test_a_password_that_is_not_encoded_is_told_of_but_not_shown(password: str) -> None:
    with pytest.raises(ConfigError, match="percent-encode") as raised:
        parse(f"redis://me:{password}@h")
    assert "geheim" not in str(raised.value)


def test_no_form_of_an_address_shows_the_password() -> None:
    address = parse("rediss+sentinel://me:geheim@a:1,[::1]:2/main/3")
    assert str(address) == "rediss+sentinel://me@a:1,[::1]:2/main/3"
    assert "geheim" not in f"{address!r}"
