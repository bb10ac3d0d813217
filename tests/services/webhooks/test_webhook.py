"""Webhooks against a web server: what is posted, how it is signed, and what each answer means."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from holdfast.config.sources import load
from holdfast.errors import Busy, ConfigError, EffectRefused, HoldfastError, Retry, Unavailable
from holdfast.ports.meter import Meter
from holdfast.ports.target import OutgoingEffect, Target
from holdfast.registration.targets import check_target
from holdfast.services.webhooks.webhook import UNSURE_CALLS_AT_ONCE, Poster
from holdfast.wiring.services import Services
from holdfast.wiring.target_urls import TargetUrls

SECRET = "whsec_" + base64.b64encode(b"a key of twenty-four byt").decode()
NEXT = "whsec_" + base64.b64encode(b"its successor, as long..").decode()


class Office:
    """A web server that notes what is posted, and gives the set answer."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[], web.Response] = lambda: web.Response(status=204)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._note)
        self.server = TestServer(app)

    async def _note(self, request: web.Request) -> web.Response:
        self.posted.append(
            (f"{request.method} {request.path_qs}", dict(request.headers), await request.read())
        )
        return self.answer()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office()
    await office.server.start_server()
    yield office
    await office.server.close()


Open = Callable[..., Target]


@pytest.fixture
async def open_target() -> AsyncIterator[Open]:
    opened: list[Services] = []

    def open_target(url: str, **settings: Any) -> Target:
        opened.append(Services(load(settings)))
        return TargetUrls(opened[-1])(url)

    yield open_target
    for services in opened:
        await services.close()


def effect(body: bytes = b'{"camera":"gate"}') -> OutgoingEffect:
    return OutgoingEffect("MFRGG2LTMVXHI", "", "k", body, "cameras/gate", "0:1")


async def test_a_webhook_is_posted_and_signed(office: Office, open_target: Open) -> None:
    hook = open_target(f"{office.url}/alerts?site=1", target_secrets={f"{office.url}/": SECRET})
    await hook.take([effect()])
    [(what, headers, body)] = office.posted
    assert (what, body) == ("POST /alerts?site=1", b'{"camera":"gate"}')
    assert headers["webhook-id"] == "MFRGG2LTMVXHI"
    assert headers["Content-Type"] == "application/json"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    assert Verifier(SECRET).verify(body, headers) == {"camera": "gate"}
    with pytest.raises(WebhookVerificationError):
        Verifier(NEXT).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body + b" ", headers)


async def test_a_repeat_has_the_same_id_and_a_secret_can_be_changed(
    office: Office, open_target: Open
) -> None:
    hook = open_target(f"{office.url}/alerts", target_secrets={f"{office.url}/alerts": f"{NEXT} {SECRET}"})
    await hook.take([effect()])
    await hook.take([effect()])
    ids = [headers["webhook-id"] for _, headers, _ in office.posted]
    assert ids == ["MFRGG2LTMVXHI"] * 2
    for _, headers, body in office.posted:
        Verifier(SECRET).verify(body, headers)
        Verifier(NEXT).verify(body, headers)


async def test_a_secret_goes_to_its_host_and_path_alone(office: Office, open_target: Open) -> None:
    secrets = {
        f"{office.url}/alerts": SECRET,
        f"{office.url}/alerts/night/": NEXT,
        "https://127.0.0.1/": SECRET,
    }
    for path in ("/alerts-of-another", "/other", "/alert"):
        await open_target(f"{office.url}{path}", target_secrets=secrets).take([effect()])
        assert "webhook-signature" not in office.posted[-1][1], path
    await open_target(f"{office.url}/alerts/night/shift", target_secrets=secrets).take([effect()])
    Verifier(NEXT).verify(office.posted[-1][2], office.posted[-1][1])
    await open_target(f"{office.url}/alerts?night/", target_secrets=secrets).take([effect()])
    Verifier(SECRET).verify(office.posted[-1][2], office.posted[-1][1])


async def test_bytes_are_posted_unsigned_and_refused_where_they_would_have_to_be_signed(
    office: Office, open_target: Open
) -> None:
    await open_target(f"{office.url}/frames").take([effect(b"\xff\xd8")])
    assert office.posted[0][2] == b"\xff\xd8"
    assert office.posted[0][1]["Content-Type"] == "application/octet-stream"
    with pytest.raises(EffectRefused, match="must be JSON or UTF-8 text"):
        await open_target(f"{office.url}/frames", target_secrets={office.url: SECRET}).take(
            [effect(b"\xff\xd8")]
        )
    assert len(office.posted) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422])
async def test_an_answer_that_will_never_change_refuses_the_effect(
    office: Office, open_target: Open, status: int
) -> None:
    office.answer = lambda: web.Response(status=status, text='{"error": "no\n such camera"}')
    with pytest.raises(EffectRefused, match=f'answered {status}: {{"error": "no such camera"}}'):
        await open_target(office.url).take([effect()])


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_an_answer_that_may_change_is_asked_for_again(
    office: Office, open_target: Open, status: int
) -> None:
    office.answer = lambda: web.Response(status=status)
    with pytest.raises(Unavailable) as caught:
        await open_target(office.url).take([effect()])
    assert not isinstance(caught.value, Busy)


@pytest.mark.parametrize("header, least_s, most_s", [("7", 7, 7), ("90000", 300, 300), ("date", 20, 40)])
async def test_a_pause_that_the_server_asks_for_is_told(
    office: Office, open_target: Open, header: str, least_s: float, most_s: float
) -> None:
    wait = formatdate(time.time() + 31, usegmt=True) if header == "date" else header
    office.answer = lambda: web.Response(status=429, headers={"Retry-After": wait})
    with pytest.raises(Busy) as caught:
        await open_target(office.url).take([effect()])
    assert least_s <= caught.value.retry_after_s <= most_s


@pytest.mark.parametrize("header", ["soon", "-5", "nan", "1e999", "0", "Mon, 99 Foo 2020"])
async def test_a_pause_that_makes_no_sense_is_ignored(office: Office, open_target: Open, header: str) -> None:
    office.answer = lambda: web.Response(status=503, headers={"Retry-After": header})
    with pytest.raises(Unavailable) as caught:
        await open_target(office.url).take([effect()])
    assert not (isinstance(caught.value, Busy) and header != "1e999")


async def test_a_redirect_is_refused_and_not_followed(office: Office, open_target: Open) -> None:
    office.answer = lambda: web.Response(status=307, headers={"Location": f"{office.url}/elsewhere"})
    with pytest.raises(EffectRefused, match=r"redirects are not followed: send to http://127.*/elsewhere"):
        await open_target(f"{office.url}/alerts").take([effect()])
    assert [what for what, _, _ in office.posted] == ["POST /alerts"]


async def test_a_refusal_shows_little_of_the_answer_and_no_secret(office: Office, open_target: Open) -> None:
    office.answer = lambda: web.Response(status=400, text=f"token=hunter2 {SECRET} {'x' * 100_000}")
    with pytest.raises(EffectRefused) as caught:
        await open_target(f"{office.url}/?token=abc").take([effect()])
    text = str(caught.value)
    assert "hunter2" not in text
    assert SECRET not in text
    assert "abc" not in text
    assert len(text) < 500


async def test_a_server_that_is_away_may_take_the_effect_later(open_target: Open) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(HoldfastError) as caught:
            await open_target(f"http://127.0.0.1:{port}/").take([effect()])
    assert caught.value.retry is Retry.SAFE


async def test_an_answer_that_breaks_off_may_have_taken_the_effect(office: Office, open_target: Open) -> None:
    def cut() -> web.Response:
        for connection in list(office.server.handler.connections):
            assert connection.transport is not None
            connection.transport.close()
        return web.Response()

    office.answer = cut
    with pytest.raises(HoldfastError) as caught:
        await open_target(office.url).take([effect()])
    assert caught.value.retry is Retry.SAME


async def test_hosts_that_hang_keep_no_host_that_answers_waiting(office: Office) -> None:
    hanging = asyncio.Event()
    asked: list[str] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if len(asked) == UNSURE_CALLS_AT_ONCE:
            hanging.set()
        await reader.read()
        writer.close()

    hosts = [f"127.0.0.{number}" for number in range(2, 22)]
    async with await asyncio.start_server(hang, hosts, 0) as server:
        places = ["{}:{}".format(*listening.getsockname()) for listening in server.sockets]
        poster = Poster(Meter())
        await poster.post(f"{office.url}/hook", b"{}", {})
        calls = [asyncio.ensure_future(poster.post(f"http://{place}/", b"{}", {})) for place in places * 8]
        await hanging.wait()
        async with asyncio.timeout(5.0):
            answers = await asyncio.gather(*(poster.post(f"{office.url}/hook", b"{}", {}) for _ in range(20)))
        assert {status for status, *_ in answers} == {204}
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await poster.close()


def test_a_url_without_tls_is_for_this_host_unless_it_is_allowed(open_target: Open) -> None:
    with pytest.raises(
        ConfigError, match=r"'http://hooks\.example\.com/': it has no TLS.*plain_http_targets"
    ):
        open_target("http://hooks.example.com/")
    open_target("http://hooks.example.com/", plain_http_targets="any")
    open_target("http://localhost:8080/")
    open_target("http://[::1]/")


@pytest.mark.parametrize(
    "url, said",
    [
        ("https://", "names no host"),
        ("https:///path", "names no host"),
        ("https://user@host/", "holds a user"),
        ("https://user:pw1234@host/", "holds a password"),
        ("https://host/#part", "behind '#'"),
        ("https://host/ä", "percent-encode"),
        ("https://host/a b", "percent-encode"),
        ("https://host/a\r\nX-Evil: 1", "percent-encode"),
        ("https://[::1/", "isn't a URL"),
        ("https://host:99999/", "isn't a URL"),
    ],
)
def test_a_url_that_is_wrong_is_refused_where_it_is_sent_to(url: str, said: str, open_target: Open) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_target(url)
    assert "pw1234" not in str(caught.value)
    with pytest.raises(EffectRefused, match=said):
        open_target(url)


async def test_the_secrets_of_targets_are_settings_that_nobody_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.config.sources import explain

    config = load({"target_secrets": {"https://a.example/": SECRET}})
    assert SECRET not in repr(config)
    [shown] = [each for each in explain(config) if each.name == "target_secrets"]
    assert shown.value == "https://a.example/ = ***"
    for name, value in config.environment().items():
        if name == "HOLDFAST_TARGET_SECRETS":
            monkeypatch.setenv(name, value)
    assert load().target_secrets["https://a.example/"].get_secret_value() == SECRET


@pytest.mark.parametrize(
    "place, secret, said",
    [
        ("hooks.example.com", SECRET, "beginning of a URL"),
        ("https://", SECRET, "beginning of a URL"),
        ("https://host/?x=1", SECRET, "beginning of a URL"),
        ("https://host/", "hunter2hunter2hunter2", "should have 'whsec_'"),
        ("https://host/", "whsec_aGk=", "should have 'whsec_'"),
        ("https://host/", "", "should have 'whsec_'"),
        ("https://host/", f"{SECRET} nonsense", "should have 'whsec_'"),
    ],
)
def test_a_secret_that_is_wrong_is_refused_at_the_start(place: str, secret: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load({"target_secrets": {place: secret}})
    assert not secret or secret not in str(caught.value)


@pytest.mark.parametrize("status, refused", [(200, False), (404, True)])
async def test_an_answer_whose_text_cannot_be_read_counts_by_its_status(
    office: Office, open_target: Open, status: int, refused: bool
) -> None:
    office.answer = lambda: web.Response(status=status, body=b"plain", headers={"Content-Encoding": "gzip"})
    hook = open_target(f"{office.url}/alerts")
    if refused:
        with pytest.raises(EffectRefused):
            await hook.take([effect()])
    else:
        await hook.take([effect()])
    assert len(office.posted) == 1
