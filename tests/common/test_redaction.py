"""Secrets do not pass, whatever URL, header or text they stand in."""

import json
from collections.abc import Callable
from time import process_time
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from holdfast.common.redaction import HIDDEN, LENGTH_MAX, redact, redact_url
from holdfast.config.settings import Config
from holdfast.config.sources import load
from holdfast.devices.services.mqtt import address as mqtt
from holdfast.devices.services.sqlalchemy import engine
from holdfast.errors import ConfigError
from holdfast.reports.sinks.ftp.url import FtpUrl
from holdfast.reports.sinks.http.sink import HttpSink
from holdfast.reports.sinks.s3.sink import S3SinkUrl
from holdfast.reports.sinks.sftp.url import SftpUrl
from holdfast.services.aws import s3_url
from holdfast.services.aws import url as sqs_url
from holdfast.services.redis import address as redis
from holdfast.services.zookeeper import address as zookeeper


@pytest.mark.parametrize(
    "text, safe",
    [
        ("redis://:pw@h/0 and s3://id:pw@b", "redis://:***@h/0 and s3://id:***@b"),
        ("can't reach redis://u:p/w@r d@h:6379/0: refused", "can't reach redis://u:***@h:6379/0: refused"),
        ("mqtt://a@b:pw@h", "mqtt://a@b:***@h"),
        ("redis://u:secret", "redis://u:***"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("redis://u:80/a@h", "redis://u:***@h"),
        ("at https://h: ask me@x", "at https://h: ask me@x"),
        ("mqtt://u@h:1883: can't x@y", "mqtt://u@h:1883: can't x@y"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("postgresql://h/x?user=a&password=pw&port=5", "postgresql://h/x?user=a&password=***&port=5"),
        ("at 'https://h/a?X-Amz-Credential=pw' and ?x=1", "at 'https://h/a?X-Amz-Credential=***' and ?x=1"),
        ("https://h/a?X-Amz-Signature=abc: 403 Forbidden", "https://h/a?X-Amz-Signature=***: 403 Forbidden"),
        ("?p%61ssword=abc&x=1", "?p%61ssword=***&x=1"),
        ("sqlite:///holdfast.db", "sqlite:///holdfast.db"),
        ("Authorization: Bearer abc.def, x\nnext", "Authorization: ***\nnext"),
        ("{'Authorization': 'Bearer a\"b', 'x': 1}", "{'Authorization': '***', 'x': 1}"),
        ('{"password": "a\\"b", "x": 1}', '{"password": "***", "x": 1}'),
        ('{\\"token\\": \\"a\'b\\", \\"x\\": 1}', '{\\"token\\": \\"***\\", \\"x\\": 1}'),
        ("Login(user='u', password='p\"q', x=1)", "Login(user='u', password='***', x=1)"),
        ("password='a b", "password='***"),
        ("password=a,b host=h", "password=*** host=h"),
        ("aws_secret_access_key = a/b+", "aws_secret_access_key = ***"),
        ("X-Amz-Security-Token: a", "X-Amz-Security-Token: ***"),
        ("Cookie: a=b; c=d", "Cookie: ***"),
        ("sent Basic dXNlcjpwYXNz to it", "sent Basic *** to it"),
        ("for Basic authentication", "for Basic authentication"),
        ("<SecretAccessKey>a</SecretAccessKey>", "<SecretAccessKey>***</SecretAccessKey>"),
        ("credentials: password=abc", "credentials: password=***"),
        ("delivery.credentials: Expected `str`", "delivery.credentials: Expected `str`"),
        ("got eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0", "got ***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\na\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
        ("-----BEGIN PRIVATE KEY-----\na", "-----BEGIN PRIVATE KEY-----***"),
        ("show one in Authorization: Bearer TOKEN", "show one in Authorization: Bearer TOKEN"),
        ("show one in Authorization: Bearer TOKENS", "show one in Authorization: ***"),
        ("write redis://USER:PASSWORD@HOST, or so", "write redis://USER:PASSWORD@HOST, or so"),
        ("such as `http://localhost:4318`; none", "such as `http://localhost:4318`; none"),
    ],
)
def test_secrets_are_hidden_and_the_rest_is_kept(text: str, safe: str) -> None:
    assert redact(text) == safe
    assert redact(safe) == safe


SECRET = "hunter2"
NASTY = st.text(
    st.sampled_from("/@: ?#&;=%+,.'\"[]{}()<>|\\$!~^`*-_") | st.characters(codec="utf-8"), max_size=4
)


@st.composite
def passwords(draw: st.DrawFn) -> str:
    """A password, each of whose pieces is known when it is seen."""
    return "".join([draw(NASTY), SECRET, draw(NASTY), SECRET, draw(NASTY)])


FORMS: list[tuple[str, Callable[[str], object]]] = [
    ("redis://{user}:{password}@host:6379/0?namespace=a", redis.parse),
    ("rediss://{user}:{password}@host", redis.parse),
    ("redis+sentinel://{user}:{password}@one:26379,two/service", redis.parse),
    ("redis+cluster://{user}:{password}@one,two:7000?shards=4", redis.parse),
    ("zookeeper://{user}:{password}@one:2181,two:2181/root", zookeeper.parse),
    ("mqtt://{user}:{password}@host:1883", mqtt.parse),
    ("mqtts://{user}:{password}@host", mqtt.parse),
    ("postgresql://{user}:{password}@host:5432/db?sslmode=require", engine.parse),
    ("postgresql+psycopg://{user}:{password}@/db?host=h", engine.parse),
    ("postgresql://host/db?user={user}&password={password}", engine.parse),
    ("postgresql://host/db?sslpassword={password}&user={user}", engine.parse),
    ("rtsp://{user}:{password}@camera:554/live", urlsplit),
    ("https://{user}:{password}@host/x?y=1", urlsplit),
    ("https://host/x?X-Amz-Signature={password}&X-Amz-Expires=9&z={user}", urlsplit),
]
"""URLs that settings and orders take, and what reads them."""

TEXTS = [
    "{url}",
    "{url!r}",
    "can't reach {url}: refused",
    "it is {url!r}: nothing serves that; use a URL such as 'redis://host:6379/0'",
    'File "x.py", line 1\n  connect({url!r})\nValueError: {url}\n',
    "[{url}]",
]
forms = st.sampled_from(FORMS)
users = st.sampled_from(["", "user", "a@b", "us er"])


@given(forms, users, passwords())
@example(FORMS[0], "user", "80/@hunter2")
@example(FORMS[7], "user", "80/hunter2")
@example(FORMS[0], "", "0#hunter2\r")
@example(FORMS[7], "user", "0 hunter2@hunter2")
@example(FORMS[4], "a", "hunter2@h:1,x@hunter2")
def test_a_setting_hides_its_password_whatever_is_in_it(
    form: tuple[str, Callable[[str], object]], user: str, password: str
) -> None:
    """Whether anything accepts it or not: a URL that is refused is told of, above all."""
    template, _ = form
    slash_ends_it = (
        template.startswith("https://{") and password.partition(SECRET)[0].partition("/")[0].isdigit()
    )
    assume(not slash_ends_it)
    in_query = "?" in template.partition("{password}")[0]
    url = template.format(
        user=user, password=password.replace("&", "").replace(";", "") if in_query else password
    )
    shown = redact_url(url)
    assert SECRET not in shown
    assert HIDDEN in shown
    assert SECRET not in redact(f"it is {shown!r}: {shown}")


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # what no parser accepts is passed over
@given(forms, users, passwords(), st.sampled_from(TEXTS))
def test_no_text_tells_the_password_of_a_url_that_is_accepted(
    form: tuple[str, Callable[[str], object]], user: str, password: str, text: str
) -> None:
    template, parse = form
    head, _, _ = password.partition(SECRET)
    assume(not head[:1].isspace() and not head[:1].isdigit())  # as its docstring says
    assume(password.isprintable() and not password.startswith(f"{HIDDEN}@"))
    if "?" in template.partition("{password}")[0]:
        password = quote(password)
    url = template.format(user=user, password=password)
    try:
        parse(url)
    except (ConfigError, ValueError):
        assume(False)
    told = redact(text.format(url=url))
    assert SECRET not in told
    assert redact(told) == told


REFUSED: list[tuple[str, Callable[[str], object]]] = [
    ("redis", redis.parse),
    ("redis+cluster", redis.parse),
    ("redis+sentinel", redis.parse),
    ("zookeeper", zookeeper.parse),
    ("mqtt", mqtt.parse),
    ("postgresql", engine.parse),
    ("mysql", engine.parse),
    ("ftp", FtpUrl.parse),
    ("sftp", SftpUrl.parse),
    ("s3", S3SinkUrl.parse),
    ("s3", s3_url.parse),
    ("sqs", sqs_url.parse),
    ("https", sqs_url.parse),
    ("https", HttpSink),
]


def said(parse: Callable[[str], object], url: str) -> str:
    """What is said of a URL that is refused."""
    try:
        parse(url)
    except ConfigError as error:
        return str(error)
    return ""


@given(
    st.sampled_from(REFUSED),
    passwords(),
    st.sampled_from(["u:{}@h/0", ":{}@h", "u:{}@h:1,x/y?z=1", "u:{}@h:1/y?password=@{}"]),
)
@example(("mqtt", mqtt.parse), "/hunter2", "u:{}@h/0")
@example(("https", HttpSink), "[hunter2", "u:{}@h/0")
@example(("postgresql", engine.parse), "@hunter2", "u:{}@h/0")
@example(("mysql", engine.parse), "hunter2@hunter2?", "u:{}@h/0")
@example(("s3", s3_url.parse), "0/hunter2", "u:{}@h/0")
def test_a_url_that_is_refused_tells_no_password(
    parser: tuple[str, Callable[[str], object]], password: str, form: str
) -> None:
    scheme, parse = parser
    value = password.replace("&", "").replace(";", "")  # which end a parameter
    assert SECRET not in said(parse, f"{scheme}://" + form.format(password, value))


@pytest.mark.parametrize("parser", REFUSED[:6])
def test_nor_does_one_that_lacks_its_host(parser: tuple[str, Callable[[str], object]]) -> None:
    scheme, parse = parser
    refusal = said(parse, f"{scheme}://user:{SECRET}")
    assert refusal
    assert SECRET not in refusal


@given(
    passwords(), st.sampled_from(["password", "token", "Authorization", "aws_secret_access_key", "X-Api-Key"])
)
def test_a_secret_in_a_named_field_is_redacted_in_every_form(secret: str, name: str) -> None:
    for text in (
        json.dumps({name: secret, "x": 1}),
        json.dumps(json.dumps({"at": {name: secret}})),
        repr({name: secret}),
        f"Login(user='u', {name}={secret!r}, x=1)",
        f"{name}={quote(secret, safe='')}",
        f"{name}: {quote(secret, safe='')}",
        f"GET /x?{quote(name)}={quote(secret)}&y=1 HTTP/1.1",
    ):
        assert SECRET not in redact(text)


@given(
    st.sampled_from([name for name in Config.model_fields if name.endswith("_url") or name == "url"]),
    passwords(),
)
def test_no_refused_setting_tells_its_password(name: str, password: str) -> None:
    refusal = said(lambda url: load({name: url, "ttl_s": -1}), f"nothing://user:{password}@host")
    assert "ttl_s" in refusal
    assert SECRET not in refusal


@given(st.text())
def test_what_is_redacted_stays_as_it_is(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a.",
        "://",
        "x://a:",
        "x://a:b@c ",
        "password=",
        "password='",
        "<token",
        "?token=",
        "Bearer ",
        "\\'",
    ],
)
def test_a_long_text_takes_no_long_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    begun = process_time()
    redact(text)
    assert process_time() - begun < 5


@pytest.mark.parametrize("word", ["pass:", "auth:", "sig:", "credential:", "pass: ", "auth: "])
def test_words_of_a_sentence_are_read_however_many_follow_each_other(word: str) -> None:
    assert redact(f"{word * 5000} token=abc") == f"{word * 5000} token=***"


@pytest.mark.parametrize("between", [" ", "\n", ""])
def test_a_long_text_takes_no_longer_than_its_beginning(between: str) -> None:
    began = process_time()
    shown = redact(f"what failed{between or ' '}" + f"redis://u:hunter2{between}" * 100_000)
    assert process_time() - began < 5
    assert "hunter2" not in shown
    assert shown.startswith("what failed")
    assert shown.rstrip().endswith(HIDDEN)


@pytest.mark.parametrize("secret", ["redis://u:hunter2 {}@host", "password='hunter2 {}'", "x redis://u:{}@h"])
def test_a_secret_that_goes_beyond_what_is_read_is_hidden(secret: str) -> None:
    for before in ("word " * 6_500, "line\n" * 6_500):  # it begins just before the middle
        shown = redact(f"{before} {secret.format('hunter2' * 100_000)}")
        assert "hunter2" not in shown
        assert shown.startswith(before.strip())


def test_the_end_of_a_long_traceback_is_shown_without_its_secrets() -> None:
    frames = '  File "app.py", line 1, in process\n    call(again)\n' * 5_000
    text = f"Traceback (most recent call last):\n{frames}ValueError: redis://u:hunter2@host is away"
    shown = redact(text)
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith("\nValueError: redis://u:***@host is away")
    assert len(shown) <= LENGTH_MAX
    assert redact(shown) == shown


def test_a_private_key_whose_beginning_is_hidden_with_the_middle_is_hidden_to_its_end() -> None:
    lines = "hunter2hunter2\n" * 10_000
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{lines}"
    whole = f"{key}-----END RSA PRIVATE KEY-----\nValueError: no key"
    assert "hunter2" not in redact("line\n" * 13_000 + key)
    shown = redact("line\n" * 13_000 + whole)
    assert "hunter2" not in shown
    assert shown.endswith("ValueError: no key")


def test_an_element_whose_name_is_hidden_with_the_middle_is_hidden_to_its_end() -> None:
    value = "hunter2\n" * 10_000
    shown = redact("line\n" * 13_000 + f"<token>\n{value}</token>\nValueError: no token")
    assert "hunter2" not in shown
    assert shown.endswith("ValueError: no token")
