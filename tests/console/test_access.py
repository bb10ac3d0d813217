"""Who may use a console, and from which pages: each protection is met alone, with all others satisfied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from multidict import CIMultiDict

from holdfast.console.access import OPEN_PATHS, AccessSettings, Admission, settings_for
from holdfast.console.assets import Assets
from holdfast.console.products import product_pages
from holdfast.console.rendering import Renderer
from holdfast.console.responses import SOURCES, Responses
from holdfast.console.service import Console, ConsoleSettings, groups
from holdfast.console.tokens import Tokens, add, read
from holdfast.errors import ConfigError
from holdfast.http.key_file import digest_of
from holdfast.system.clock import SystemClock
from holdfast.wiring.services import Services
from tests.cluster.fakes import Log
from tests.console.browser import Browser

KEY = "cameras/front"
PAUSE = "/stream/pause"


@asynccontextmanager
async def serving(services: Services, **settings: Any) -> AsyncIterator[Console]:
    """A console with other settings than the fixture's."""
    running = Console(services, ConsoleSettings(port=0, **settings), Log())
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def parked(services: Services) -> str:
    """Why the stream of the tests is parked, if it is."""
    checkpoint = await services.state().peek(KEY)
    assert checkpoint is not None
    return checkpoint.parked


# --- what a caller may


@pytest.mark.slow
async def test_on_loopback_anybody_reads_and_nobody_changes(reader: Browser, services: Services) -> None:
    page = await reader.get("/stream", key=KEY)
    assert page.status == 200
    assert PAUSE not in page.text
    assert (await reader.post(PAUSE, key=KEY)).status == 403
    assert await parked(services) == ""


@pytest.mark.slow
async def test_the_printed_token_gives_the_right_to_change_streams(
    operator: Browser, services: Services
) -> None:
    assert PAUSE in (await operator.get("/stream", key=KEY)).text
    page = await operator.post(PAUSE, key=KEY)
    assert (page.status, "is paused" in page.text) == (200, True)
    assert await parked(services) == "paused"
    await operator.post("/stream/resume", key=KEY)
    assert await parked(services) == ""


async def test_the_cookie_is_for_this_server_alone(console: Console) -> None:
    async with aiohttp.ClientSession(console.address) as session:
        answer = await session.get("/enter", params={"token": console.own_token}, allow_redirects=False)
    cookie = answer.headers["Set-Cookie"]
    assert answer.status == 303
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.mark.parametrize("token", ["", "x", "ä", "0" * 10_000])
async def test_a_wrong_token_opens_no_session(reader: Browser, token: str) -> None:
    answer = await reader.post("/enter", token=token)
    assert answer.status == 401
    assert "Set-Cookie" not in answer.headers


async def test_who_has_left_is_offered_no_action(operator: Browser) -> None:
    await operator.post("/leave")
    assert PAUSE not in (await operator.get("/stream", key=KEY)).text


async def test_a_program_shows_its_token_and_needs_no_form_token(
    console: Console, reader: Browser, services: Services
) -> None:
    shown = {"Authorization": f"Bearer {console.own_token}", "Origin": None, "Sec-Fetch-Site": None}
    assert (await reader.post(PAUSE, headers=shown, form_token=None, key=KEY)).status == 200
    assert await parked(services) == "paused"
    await reader.post("/stream/resume", headers=shown, form_token=None, key=KEY)


async def test_a_wrong_token_isnt_made_good_by_a_cookie(operator: Browser) -> None:
    answer = await operator.get("/", headers={"Authorization": "Bearer wrong"})
    assert answer.status == 401


@pytest.mark.parametrize("other", ["Bearer wrong", "Basic eDp5"])
@pytest.mark.parametrize("first", [True, False])
async def test_one_of_two_authorizations_is_not_chosen(console: Console, other: str, *, first: bool) -> None:
    both = [f"Bearer {console.own_token}", other][:: 1 if first else -1]
    shown = CIMultiDict(("Authorization", each) for each in both)
    async with aiohttp.ClientSession(console.address) as client, client.get("/", headers=shown) as answer:
        assert answer.status == 401


def test_every_route_but_the_open_ones_needs_a_right(console_app: Console) -> None:
    guarded = {
        (route.method, route.path) for _, some in groups(console_app.parts, product_pages()) for route in some
    }
    served = {
        (route.method, route.resource.canonical)
        for route in console_app.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    open_to_all = {path for _, path in served - guarded}
    assert open_to_all == {*OPEN_PATHS, "/static/{path}"}


async def test_a_route_that_names_no_right_isnt_served() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="served")

    async def named(request: web.Request) -> web.Response:
        return await answer(request)

    log = Log()
    access = Admission(AccessSettings(), Tokens(None, SystemClock(), log))
    app = web.Application(middlewares=[Responses(Renderer(Assets({}))).explain, access.admit])
    app.add_routes([web.get("/unnamed", answer), *access.require([("read", [web.get("/named", named)])])])
    async with TestClient(TestServer(app)) as client:
        statuses = [(await client.get(path)).status for path in ("/named", "/unnamed")]
    assert statuses == [200, 403]


@pytest.fixture
async def console_app(services: Services) -> Console:
    """A console that isn't started."""
    return Console(services, ConsoleSettings(port=0), Log())


# --- from where


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": None},
        {"Origin": "null", "Sec-Fetch-Site": None},
        {"Origin": None, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": None, "Sec-Fetch-Site": "same-site"},
        {"Origin": None, "Sec-Fetch-Site": "none"},
        {"Origin": None, "Sec-Fetch-Site": None},
    ],
    ids=str,
)
async def test_another_sites_page_changes_nothing_even_with_the_form_token(
    operator: Browser, services: Services, headers: dict[str, str | None]
) -> None:
    assert (await operator.post(PAUSE, headers=headers, key=KEY)).status == 403
    assert await parked(services) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": None}, {"Origin": None}, {"Origin": "http://behind-a-proxy.example"}],
    ids=str,
)
async def test_a_page_of_the_console_may_change_by_what_its_browser_sends(
    operator: Browser, services: Services, headers: dict[str, str | None]
) -> None:
    assert (await operator.post(PAUSE, headers=headers, key=KEY)).status == 200
    assert await parked(services) == "paused"
    await operator.post("/stream/resume", key=KEY)


@pytest.mark.parametrize("form_token", [None, "", "0" * 64, "ä"])
async def test_a_form_without_its_token_changes_nothing_even_of_the_same_site(
    operator: Browser, services: Services, form_token: str | None
) -> None:
    assert (await operator.post(PAUSE, key=KEY, form_token=form_token)).status == 403
    assert await parked(services) == ""


async def test_the_form_token_of_another_caller_is_none(console: Console, services: Services) -> None:
    other = console.parts.tokens.make("other")
    async with Browser(console, other) as theirs, Browser(console, console.own_token) as mine:
        answer = await mine.post(PAUSE, key=KEY, form_token=theirs.form_token)
    assert answer.status == 403
    assert await parked(services) == ""


async def test_another_sites_page_cant_make_a_browser_enter(console: Console, reader: Browser) -> None:
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert (await reader.get("/enter", headers=cross, token=console.own_token)).status == 403
    assert (await reader.post("/enter", headers=cross, token=console.own_token)).status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8400", "127.0.0.1.evil.example", "", "[", "a@b"]
)
async def test_a_name_that_points_here_reads_nothing(reader: Browser, host: str) -> None:
    answer = await reader.get("/", headers={"Host": host})
    assert answer.status in (400, 403)
    assert "Overview" not in answer.text.partition("<main")[2]


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:80", "console.example.com", "192.0.2.7"])
async def test_addresses_and_known_names_are_served(services: Services, host: str) -> None:
    access = settings_for("127.0.0.1", tokens=False, names=["Console.Example.com"])
    async with serving(services, access=access) as console, Browser(console) as browser:
        assert (await browser.get("/", headers={"Host": host})).status == 200


# --- proxies


async def test_a_proxys_header_is_believed_from_its_network_only(services: Services) -> None:
    for proxies, status in ((["127.0.0.0/8"], 200), (["10.0.0.0/8"], 401)):
        access = settings_for("127.0.0.1", tokens=False, identity_header="X-User", proxies=proxies)
        async with serving(services, access=access) as console, Browser(console) as browser:
            assert (await browser.get("/", headers={"X-User": "alice"})).status == status
            assert (await browser.get("/")).status == 401, "nobody reads without a name"


@pytest.mark.parametrize("names", [["alice", "mallory"], ["mallory", "alice"], ["alice", "alice"]])
async def test_whose_proxy_names_two_callers_is_neither(services: Services, names: list[str]) -> None:
    access = settings_for(
        "127.0.0.1", tokens=False, identity_header="X-User", proxies=["127.0.0.1"], operators=["alice"]
    )
    both = CIMultiDict(("X-User", name) for name in names)
    async with serving(services, access=access) as console, Browser(console) as browser:
        assert (await browser.get("/", headers=both)).status == 401


async def test_who_comes_by_a_proxy_reads_and_its_operators_change(services: Services) -> None:
    access = settings_for(
        "127.0.0.1", tokens=False, identity_header="X-User", proxies=["127.0.0.1"], operators=["alice"]
    )
    async with serving(services, access=access) as console, Browser(console) as browser:
        assert PAUSE not in (await browser.get("/stream", headers={"X-User": "bob"}, key=KEY)).text
        assert (await browser.post(PAUSE, headers={"X-User": "bob"}, key=KEY)).status == 403
        assert PAUSE in (await browser.get("/stream", headers={"X-User": "alice"}, key=KEY)).text
        named: dict[str, str | None] = {"X-User": "alice"}
        assert (await browser.post(PAUSE, headers=named, key=KEY, form_token="")).status == 403
        assert await parked(services) == ""
        await browser.post(PAUSE, headers=named, key=KEY)
        assert await parked(services) == "paused"
        await browser.post("/stream/resume", headers=named, key=KEY)
        [entry, *_] = await console.parts.audit.entries()
        assert (entry.who, entry.action, entry.subject) == ("alice", "resume", KEY)


@pytest.mark.parametrize(
    "given",
    [
        {"host": "0.0.0.0", "tokens": False},
        {"host": "console.example.com", "tokens": False},
        {"host": "127.0.0.1", "tokens": False, "identity_header": "X-User"},
        {"host": "127.0.0.1", "tokens": False, "proxies": ["10.0.0.0/8"]},
        {"host": "127.0.0.1", "tokens": True, "operators": ["alice"]},
        {"host": "127.0.0.1", "tokens": False, "identity_header": "X-User", "proxies": ["10.0.0.1/8"]},
    ],
    ids=str,
)
def test_what_would_let_strangers_in_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings_for(**given)


# --- tokens


@pytest.mark.slow
async def test_a_revoked_token_ends_its_events_within_five_seconds(
    services: Services, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    keeps, loses = add(file, "keeps", ["read"]), add(file, "loses", ["operate"])
    access = settings_for("127.0.0.1", tokens=True)
    async with (
        serving(services, access=access, tokens=file) as console,
        Browser(console, loses) as browser,
        Browser(console, keeps) as other,
        browser.events() as news,
        other.events() as kept,
    ):
        assert console.own_token == ""
        file.write_text(
            "".join(line for line in file.read_text().splitlines(True) if not line.startswith("loses"))
        )
        began_at = time.monotonic()
        async with asyncio.timeout(20):
            while await news.content.readline():
                pass
        assert time.monotonic() - began_at < 5
        assert (await browser.get("/")).status == 401
        assert (await other.get("/")).status == 200
        assert not kept.content.at_eof()


def test_a_file_of_tokens_holds_digests_and_names_its_wrong_lines(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = add(file, "alice", ["operate"])
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    [entry] = read(file)
    assert entry.digest == digest_of(token)
    assert sorted(entry.rights) == ["operate", "read"]
    for line in ("alice", "alice x read", f"alice {'0' * 64} write", f"alice {'0' * 64}"):
        file.write_text(f"# tokens\n{line}\n")
        with pytest.raises(ConfigError, match="line 2"):
            read(file)


async def test_tokens_that_cant_be_read_stay_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = add(file, "alice", ["read"])
    tokens = Tokens(file, SystemClock(), Log())
    file.write_text("nonsense\n")
    watching = asyncio.create_task(tokens.watch())
    try:
        assert tokens.find(token) is not None
    finally:
        watching.cancel()


# --- what binds browsers


@pytest.mark.parametrize("path", ["/", "/streams", "/nowhere", "/enter", "/parts/overview", "/healthz"])
async def test_every_answer_has_the_headers_that_bind_the_browser(reader: Browser, path: str) -> None:
    headers = (await reader.get(path)).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert set(SOURCES.values()) <= {"'none'", "'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_sites_page_loads_nothing_and_may_link_here(reader: Browser, site: str) -> None:
    for path in ("/events", "/parts/overview"):
        loads = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert (await reader.get(path, headers=loads)).status == 403
    follows = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert (await reader.get("/", headers=follows)).status == 200
