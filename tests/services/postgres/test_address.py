"""The address of PostgreSQL from a URL, and what of it is shown."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import ConfigError
from holdfast.services.postgres.address import parse

URL = "postgresql://ann:se%2Fcret@db1:6432,db2/shop?sslmode=require"


def test_a_url_is_libpq_s_own() -> None:
    address = parse(URL)
    said = conninfo_to_dict(address.conninfo)
    assert (said["host"], said["port"]) == ("db1,db2", "6432,")
    assert (said["user"], said["password"], said["dbname"]) == ("ann", "se/cret", "shop")
    assert said["sslmode"] == "require"
    assert address.prepares


def test_of_several_hosts_the_one_that_takes_writes_is_used() -> None:
    assert conninfo_to_dict(parse(URL).conninfo)["target_session_attrs"] == "read-write"
    chosen = parse(f"{URL}&target_session_attrs=any&connect_timeout=3&application_name=me")
    said = conninfo_to_dict(chosen.conninfo)
    assert (said["target_session_attrs"], said["connect_timeout"]) == ("any", "3")
    assert said["application_name"] == "me"


def test_what_is_holdfast_s_own_is_not_told_to_libpq() -> None:
    address = parse(f"{URL}&schema=other&pooled=yes&listen=db1:5433")
    assert address.schema == "other"
    assert not address.prepares
    assert not {"schema", "pooled", "listen"} & conninfo_to_dict(address.conninfo).keys()
    listening = conninfo_to_dict(address.listen)
    assert (listening["host"], listening["port"], listening["user"]) == ("db1", "5433", "ann")


def test_through_a_pool_nobody_listens_unless_told_where() -> None:
    assert parse(f"{URL}&pooled=yes").listen == ""
    assert parse(URL).listen == parse(URL).conninfo


def test_the_password_of_a_url_is_never_shown() -> None:
    for shown in (str(parse(URL)), repr(parse(URL))):
        assert "cret" not in shown
        assert "db1" in shown
    for url in (f"{URL}&nonsense=1", f"{URL}&schema=No", f"{URL}&pooled=maybe", f"{URL}&listen=a:b:c"):
        with pytest.raises(ConfigError) as refused:
            parse(url)
        assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "parameter, text",
    [
        ("schema=Capital", "schema"),
        ('schema=a"b', "schema"),
        ("schema=", "schema"),
        ("schema=" + "x" * 64, "schema"),
        ("pooled=1", "pooled"),
        ("listen=host:port", "listen"),
        ("sslmood=1", "sslmood"),
    ],
)
def test_a_wrong_parameter_of_a_url_is_named(parameter: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(f"postgresql://db/shop?{parameter}")
