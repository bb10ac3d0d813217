"""URLs of ZooKeeper."""

import pytest

from holdfast.errors import ConfigError
from holdfast.services.zookeeper.address import ZooKeeperAddress, parse


@pytest.mark.parametrize(
    "url, address",
    [
        ("zookeeper://zk1", ZooKeeperAddress((("zk1", 2181),))),
        (
            "zookeeper://zk1:2181,zk2:2182,[::1]:2183/app/holdfast",
            ZooKeeperAddress((("zk1", 2181), ("zk2", 2182), ("::1", 2183)), "/app/holdfast"),
        ),
        (
            "zookeeper://me:s%40cret%2F@zk1/?ca=ca.pem&cert=a.pem&key=a.key",
            ZooKeeperAddress((("zk1", 2181),), "", "me", "s@cret/", "ca.pem", "a.pem", "a.key"),
        ),
    ],
)
def test_a_url_says_where_and_who(url: str, address: ZooKeeperAddress) -> None:
    assert parse(url) == address


def test_tls_is_spoken_if_its_files_are_named() -> None:
    assert not parse("zookeeper://zk1/x").tls
    assert parse("zookeeper://zk1/x?ca=ca.pem").tls


def test_the_password_of_an_address_is_not_shown() -> None:
    address = parse("zookeeper://me:s3cret@zk1:2181,zk2:2181/app")
    assert str(address) == "zookeeper://me@zk1:2181,zk2:2181/app"
    assert "s3cret" not in repr(address)


@pytest.mark.parametrize(
    "url, text",
    [
        ("redis://zk1", "'redis' isn't a scheme of ZooKeeper"),
        ("zookeeper://", "'' isn't a HOST:PORT"),
        ("zookeeper://zk1,,zk2", "'' isn't a HOST:PORT"),
        ("zookeeper://zk1:0", "0 isn't a port"),
        ("zookeeper://zk1:66666", "66666 isn't a port"),
        ("zookeeper://zk1/a//b", "isn't a chroot"),
        ("zookeeper://zk1/a/%2E%2E", "isn't a chroot"),
        ("zookeeper://zk1/a%2Fb", "isn't a chroot"),
        ("zookeeper://me@zk1", "user and password go together"),
        ("zookeeper://me:a/b@zk1", "percent-encode"),
        ("zookeeper://me:a#b@zk1", "percent-encode"),
        ("zookeeper://zk1?crt=x", "did you mean cert"),
        ("zookeeper://zk1?ca=", "ca is empty"),
        ("zookeeper://zk1?key=x", "cert and key go together"),
    ],
)
def test_errors_name_what_is_wrong_in_a_url(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(url)
