"""Destinations and the roots that they must lie below."""

import posixpath
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidMessage
from holdfast.reports.assembly import open_sink
from holdfast.reports.deliver_credentials import Credential, Credentials
from holdfast.reports.deliver_root import is_below
from holdfast.system.clock import SystemClock

ROOT = "sftp://host/in"


@pytest.mark.parametrize(
    "url, root",
    [
        ("sftp://host/in", ROOT),
        ("sftp://host/in/", ROOT),
        ("sftp://HOST:22/in/2024/sales%20of%20acme", ROOT),
        ("SFTP://host/in/a", f"{ROOT}/"),
        ("sftp://host/in/a", "sftp://host"),
        ("sftp://host//srv/in/a", "sftp://host//srv/in"),
        ("ftpes://host:21/in?mode=active", "ftpes://host/in?mode=active"),
        ("s3://bucket/acme/2024", "s3://bucket/acme"),
        ("s3://bucket/acme", "s3://bucket"),
        ("https://host/in/a..b/.c", "https://host:443/in"),
        ("file:/srv/share/a", "file:///srv/share"),
    ],
)
def test_urls_below_a_root_are_allowed(url: str, root: str) -> None:
    assert is_below(url, root)


@pytest.mark.parametrize(
    "url",
    [
        "sftp://host/",
        "sftp://host/other",
        "sftp://host/in-other",
        "sftp://host/i",
        "sftp://host/IN/a",
        "sftp://host/in/../other",
        "sftp://host/in/..",
        "sftp://host/in/./a",
        "sftp://host/in/%2e%2e/other",
        "sftp://host/in/%2E./other",
        "sftp://host/in/.%09./other",
        "sftp://host/in/.\t./other",
        "sftp://host/in%2fa",
        "sftp://host/in/..%2Fother",
        "sftp://host/in/..%5cother",
        "sftp://host/in/..\\other",
        "sftp://host/in/%252e%252e/other",
        "sftp://host/in/a%00",
        "sftp://host/in/a%0d%0aDELE",
        "sftp://host/in//a",
        "sftp://host//in/a",
        "sftp://host///in/a",
        "sftp://host/in/\u2025/other",
        "sftp://host/in/\uff0e\uff0e/other",
        "sftp://host:2222/in",
        "sftp://host.evil/in",
        "sftp://host./in",
        "sftp://evil@host/in",
        "sftp://host\\@evil/in",
        "sftp://other/in",
        "ftp://host/in",
        "sftp://host/in?ca=/tmp/x",
        "sftp://host/in#a",
        "sftp://[host/in",
        "sftp://host/in/%ff",
        "/in/a",
        "",
    ],
)
def test_urls_outside_a_root_are_refused(url: str) -> None:
    assert not is_below(url, ROOT)
    credential = Credentials({"acme": {"root": ROOT}}).find("acme")
    with pytest.raises(InvalidMessage) as caught:
        open_sink(url, credential, SystemClock())
    assert caught.value.field == "delivery.destination"


@pytest.mark.parametrize(
    "url, root",
    [
        ("s3://Bucket/acme", "s3://bucket/acme"),
        ("s3://bucket/acme-other", "s3://bucket/acme"),
        ("s3://bucket/acme?acl=public-read", "s3://bucket/acme"),
        ("ftp://host/in", "ftpes://host/in"),
        ("http://host/in", "https://host/in"),
        ("https://host/IN", "https://host/in"),
        ("sftp://host//etc", "sftp://host"),
        ("sftp://host/etc", "sftp://host//"),
        ("file:/srv/shared", "file:/srv/share"),
        ("file:/srv/share", "no root at all/.."),
    ],
)
def test_similar_urls_outside_their_root_are_refused(url: str, root: str) -> None:
    assert not is_below(url, root)


def test_a_link_out_of_a_root_is_followed_there(tmp_path: Path) -> None:
    for name in ("root", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "root" / "out").symlink_to("../other")
    (tmp_path / "root" / "in").mkdir()
    root = f"file:{tmp_path}/root"
    assert is_below(f"{root}/in", root)
    assert not is_below(f"{root}/out", root)


def test_without_a_root_a_credential_opens_any_destination() -> None:
    Credential().check("sftp://host/../x")


PIECES = st.sampled_from(
    [
        "in",
        "IN",
        "a",
        "/",
        "//",
        ".",
        "..",
        "%2e",
        "%2E%2e",
        "%2f",
        "%5C",
        "\\",
        "%25",
        "%252e",
        "\t",
        "%0a",
        " ",
    ]
)


@given(st.lists(PIECES, max_size=8).map("".join))
def test_no_spelling_of_a_url_leaves_its_root(rest: str) -> None:
    """However often what is below a root is decoded, and its climbs are followed, it stays there."""
    url = f"sftp://host/in{rest}"
    path = urlsplit(url).path if is_below(url, ROOT) else "/in"
    for _ in range(3):
        assert posixpath.normpath(path.replace("\\", "/")).split("/")[:2] == ["", "in"]
        path = unquote(path)
