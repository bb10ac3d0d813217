"""Sources: pages of work are fetched as the devices get through it, and none is missed or taken twice."""

import asyncio
from typing import Any

from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.source import fill
from holdfast.devices.spec import CommandFields, Page
from tests.devices.simulated.conftest import Site

PAGE = 10


class Api:
    """Has ``total`` commands, by pages; its cursor is the number of the next."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.asked: list[str | None] = []
        self.failures: list[BaseException] = []

    async def next_page(self, cursor: str | None) -> Page:
        self.asked.append(cursor)
        if self.failures:
            raise self.failures.pop()
        begin = int(cursor or 0)
        end = min(begin + PAGE, self.total)
        commands: list[CommandFields] = [
            {"device": f"d{n % 3}", "command": {"n": n}, "dedupe_key": f"{n}"} for n in range(begin, end)
        ]
        return Page(commands, str(end), more=end < self.total)


async def filling(site: Site, api: Api, low: int, high: int) -> "asyncio.Task[None] | None":
    site.outbox.source("api", low=low, high=high, pause_s=5.0)(api.next_page)
    epoch = (await site.store.epochs("doors"))[0]
    return site.tasks.spawn(
        fill(site.outbox, site.outbox.sources[0], site.store, site.clock, site.log, epoch)
    )


async def test_every_command_of_a_source_is_added_once(site: Site) -> None:
    await site.start(3)
    api = Api(95)
    await filling(site, api, low=5, high=20)
    await site.wait(lambda: site.dispatcher.counts.closed >= api.total, 600.0, 0.1)
    bodies = [entry.body for entry in await site.store.commands("doors", limit=1000)]
    assert sorted(bodies) == sorted(b'{"n":%d}' % n for n in range(95))
    assert await site.store.counts("doors") == {CommandState.ACKNOWLEDGED: 95}


async def test_no_more_is_fetched_than_is_needed(site: Site) -> None:
    await site.start(0)
    for n in range(3):
        site.silence(f"d{n}")
    api = Api(1000)
    await filling(site, api, low=5, high=20)
    await site.clock.sleep(60.0)
    assert await site.store.count_waiting("doors", 1000) < 20 + PAGE


async def test_an_api_that_fails_is_asked_again_from_the_same_place(site: Site) -> None:
    await site.start(3)
    api = Api(25)
    api.failures = [ConnectionError("no answer"), SystemExit(2), asyncio.CancelledError()]
    await filling(site, api, low=5, high=20)
    await site.clock.sleep(120.0)
    assert api.asked[:4] == [None] * 4
    assert site.dispatcher.counts.closed == 25
    assert site.log.events("warning").count("source failed") == 3


async def test_invalid_commands_of_a_page_are_reported_and_skipped(site: Site) -> None:
    await site.start(3, max_body=1000)
    wrong: list[Any] = [
        {"device": "d0/+", "command": {}},
        {"device": "d0", "command": "no JSON object"},
        {"device": "d0", "command": {"text": "x" * 2000}},
        {"device": "d0", "command": {}, "colour": "red"},
        {"command": {}},
        "no command",
    ]
    right: list[Any] = [{"device": "d0", "command": {"n": n}} for n in range(3)]
    reports: list[tuple[Any, str]] = []

    async def next_page(cursor: str | None) -> Page:
        return Page([] if cursor else [right[0], *wrong, *right[1:]], "end", more=False)

    def refused(given: Any, error: Exception) -> None:
        reports.append((given, type(error).__name__))

    site.outbox.source("api", refused=refused)(next_page)
    epoch = (await site.store.epochs("doors"))[0]
    source = site.outbox.sources[0]
    site.tasks.spawn(fill(site.outbox, source, site.store, site.clock, site.log, epoch))
    await site.clock.sleep(5.0)
    assert await site.store.counts("doors") == {CommandState.ACKNOWLEDGED: 3}
    kinds = ["InvalidMessage", "InvalidMessage", "TooLarge", "TypeError", "TypeError", "TypeError"]
    assert reports == list(zip(wrong, kinds, strict=True))
    assert site.log.events("error") == ["invalid command of a source skipped"] * 6


async def test_an_empty_api_is_asked_now_and_then(site: Site) -> None:
    await site.start(3)
    api = Api(0)
    await filling(site, api, low=5, high=20)
    await site.clock.sleep(50.0)
    assert 8 <= len(api.asked) <= 11
    api.total = 10
    await site.clock.sleep(6.0)
    assert site.dispatcher.counts.closed == 10


async def test_only_the_owner_of_the_first_shard_fetches(site: Site) -> None:
    await site.start(3)
    api = Api(1000)
    task = await filling(site, api, low=500, high=900)
    await site.take_from()
    assert task is not None
    await asyncio.wait_for(task, 60.0)
    cursor = await site.store.cursor("doors", "api")
    await site.clock.sleep(60.0)
    assert await site.store.cursor("doors", "api") == cursor
