"""Servers that stand for nodes."""

from holdfast.gateway.haproxy.servers import BackendServers


def test_a_member_keeps_its_server_until_it_leaves() -> None:
    servers = BackendServers(3)
    assert servers.take("a", "10.0.0.1:80") == "s1"
    assert servers.take("b", "10.0.0.2:80") == "s2"
    assert (servers.get("a"), servers.get("c")) == ("s1", None)
    assert servers.left(["a", "c"]) == ["s2"]
    assert servers.left(["a", "c"]) == []
    assert servers.addresses() == {"s1": "10.0.0.1:80", "s2": None, "s3": None}


def test_a_server_that_was_left_is_the_last_to_be_taken() -> None:
    servers = BackendServers(3)
    servers.take("a", "x:1")
    servers.left([])
    assert [servers.take(name, "x:1") for name in "bcd"] == ["s2", "s3", "s1"]


def test_there_are_twice_as_many_when_none_is_free() -> None:
    servers = BackendServers(2)
    assert [servers.take(name, "x:1") for name in "abc"] == ["s1", "s2", "s3"]
    assert servers.count == 4
    assert list(servers.addresses()) == ["s1", "s2", "s3", "s4"]
