"""``holdfast transfer`` from one file to another, and what it refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.config.settings import Config
from holdfast.errors import Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing, WaitingMessage
from holdfast.rules.cluster.placement import Load, Member
from holdfast.rules.streams.ledger import Commit, Result, RunLog
from holdfast.rules.tasks.task import DelayTask, Task
from holdfast.tasks.discovery import Listing, NodeEntry
from holdfast.testing.conformance.state import TIMERS, effect
from holdfast.transfer.contents import PROBES, contents
from holdfast.transfer.parts import PAGE, Item, Part, compared, conflict, copy, report
from holdfast.wiring.services import Services
from simulator.servers import RedisServer

LONG_S = 600.0
SOURCE, TARGET = "sqlite:///source.db", "sqlite:///target.db"


def services(url: str, **settings: Any) -> Services:
    return Services(Config(url=url, durability="normal", **settings))


async def committed(held: Services, key: str, count: int, **changes: Any) -> None:
    """A stream with some commits, each with a result."""
    state = held.state()
    opened = await state.open(key, 0, "member-a")
    for number in range(1, count + 1):
        results = (Result(f"0:{number:039d}", b'{"n":%d}' % number),)
        plain = Commit(key, opened.epoch, number, f"{key}-{number}", RunLog(0, 0, number), results=results)
        await state.commit(msgspec.structs.replace(plain, **changes))


async def fill(held: Services) -> None:
    """All kinds of things that a cluster has."""
    await committed(held, "steps/a", 3, state=b"sum", timers=TIMERS, due=1234.5)
    await committed(held, "steps/b", 1, effects=(effect(1, 0), effect(1, 1)), parked="broken")
    await committed(held, "echoes/a", 4, identities=("0:x", "0:y"), window=3)
    await held.state().expire(0.0, 0.0)
    steps, echoes = held.queue("steps"), held.queue("echoes")
    await steps.send([Outgoing(b"%d" % n) for n in range(2 * PAGE + 3)])
    await echoes.send(
        [Outgoing(b"one"), Outgoing(b"later", delay_s=LONG_S), Outgoing(b"own", {"id": "mine"})]
    )
    await echoes.receive(1, 0.0, LONG_S, "member-gone")
    await held.queue("quiet").bury(
        [DeadLetter("l1", b"x", "failed", {"k": "v"}, "trace", "quiet", "k", 1, "2")]
    )
    tasks = held.task_store("app")
    await tasks.queue([Task("t1", "add"), Task("t2", "add")])
    await tasks.delay([DelayTask("t3", "add", LONG_S, b"\0message")])
    listing = Listing({"queue_url": SOURCE}, {"m": NodeEntry("n", "http://n", ("add",))})
    await held.registry().put("apps/app", msgspec.json.encode(listing), 0)
    await held.registry().put("periodic/app/nightly", b"{}", 0)


@pytest.fixture
def filled() -> None:
    """The working directory has a cluster's database."""

    async def run() -> None:
        async with services(SOURCE) as held:
            await fill(held)

    asyncio.run(run())


def on(url: str, work: Callable[[Services], Awaitable[Any]]) -> Any:
    """Do something to services, between commands."""

    async def run() -> Any:
        async with services(url) as held:
            return await work(held)

    return asyncio.run(run())


def transfer(holdfast: Any, *more: str) -> Any:
    return holdfast("transfer", "--from", SOURCE, "--to", TARGET, *more)


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_all_that_a_cluster_has_is_brought_over(holdfast: Any) -> None:
    done = transfer(holdfast, "--json")
    assert done.code == 0, done.err
    assert "start no node on it again" in done.err
    assert {part["part"]: (part["source"], part["target"]) for part in done.lines} == {
        "documents": (2, 2),
        "checkpoints": (3, 3),
        "results": (8, 8),
        "tasks of app": (3, 3),
        "messages of echoes": (3, 3),
        "dead letters of echoes": (0, 0),
        "messages of quiet": (0, 0),
        "dead letters of quiet": (1, 1),
        "messages of steps": (203, 203),
        "dead letters of steps": (0, 0),
    }
    assert all(part["source_digest"] == part["target_digest"] for part in done.lines)
    people = transfer(holdfast)
    assert people.code == 0
    assert "checkpoints" in people.out
    assert people.out.count("yes") == 10


@pytest.mark.usefixtures("filled")
def test_a_transfer_leaves_its_source_as_it_was(holdfast: Any) -> None:
    before = on(SOURCE, everything)
    transfer(holdfast)
    assert on(SOURCE, everything) == before


async def everything(held: Services) -> list[Any]:
    """All that services hold, but for what names queues and tells how long delays take."""
    queues = [held.queue(name) for name in ("steps", "echoes", "quiet")]
    return [
        *(await held.state().checkpoints()),
        *(await held.state().results(0, 1000)),
        *(await held.task_store("app").list(100)),
        *(await held.registry().list("")),
        *[letter for queue in queues for letter in await queue.dead_letters(100)],
        *[(m.id, m.body, m.receives) for queue in queues for m in await queue.waiting(1000)],  # type: ignore[attr-defined]
    ]


@pytest.mark.usefixtures("filled")
def test_a_message_keeps_the_id_by_which_it_is_known(holdfast: Any) -> None:
    """One that was handled, and not yet deleted, would be handled again under another id."""
    sent = on(SOURCE, lambda held: held.queue("echoes").waiting(10))  # type: ignore[attr-defined]
    transfer(holdfast)
    found = on(TARGET, lambda held: held.queue("echoes").waiting(10))  # type: ignore[attr-defined]
    assert [m.attributes["id"] for m in found] == [sent[0].id, sent[1].id, "mine"]
    assert [m.receives for m in found] == [1, 0, 0]
    assert [m.delay_s > 0 for m in found] == [False, True, False]


@pytest.mark.usefixtures("filled")
def test_the_urls_of_the_old_services_are_not_told_on(holdfast: Any) -> None:
    transfer(holdfast)
    document = on(TARGET, lambda held: held.registry().get("apps/app"))
    assert msgspec.json.decode(document.body, type=Listing) == Listing()


@pytest.mark.usefixtures("filled")
def test_later_cursors_are_above_those_that_a_follower_has_had(holdfast: Any) -> None:
    async def forget(held: Services) -> None:
        await held.state().expire(1e11, 0.0)

    async def go_on(held: Services) -> int:
        await committed(held, "steps/new", 1)
        [logged] = await held.state().results(0, 10)
        return logged.cursor

    on(SOURCE, forget)
    assert transfer(holdfast).code == 0
    assert on(TARGET, go_on) == 9


def test_numbers_of_the_queue_go_on_above_those_that_were_handled(holdfast: Any) -> None:
    """A stream that takes its seqs from the queue would pass over messages with lower ones."""

    async def handle(held: Services) -> None:
        await committed(
            held, "tickets/a", 1, log=RunLog(0, 0, 5000), identities=(f"0:{5000:039d}",), window=9
        )
        queue: Any = held.queue("tickets")
        await queue.restore([WaitingMessage("4999", b"done", number=4999)], above=5000)

    async def go_on(held: Services) -> list[WaitingMessage]:
        queue: Any = held.queue("tickets")
        await queue.send([Outgoing(b"new")])
        waiting: list[WaitingMessage] = await queue.waiting(10)
        return waiting

    on(SOURCE, handle)
    assert transfer(holdfast).code == 0
    done, new = on(TARGET, go_on)
    assert (done.number, done.body, done.attributes) == (4999, b"done", {})
    assert new.number > 5000


@pytest.mark.usefixtures("filled")
def test_services_that_hold_something_else_are_refused_before_anything_is_written(holdfast: Any) -> None:
    async def add(held: Services) -> None:
        await held.queue("steps").send([Outgoing(b"of another")])

    on(TARGET, add)
    refused = transfer(holdfast)
    assert refused.code == 1
    assert "messages of steps: message 1 is not the same in the target. Nothing was written" in refused.err
    assert on(TARGET, lambda held: held.state().checkpoints()) == []
    checked = transfer(holdfast, "--check", "--json")
    assert checked.code == 1
    differences = {part["part"]: part["difference"] for part in checked.lines if part["difference"]}
    assert differences["checkpoints"] == "checkpoints: echoes/a is not in the target"
    assert differences["messages of steps"] == "messages of steps: message 1 is not the same in the target"


@pytest.mark.usefixtures("filled")
def test_a_key_that_is_only_in_the_target_is_named(holdfast: Any) -> None:
    on(TARGET, lambda held: committed(held, "steps/z", 1))
    refused = transfer(holdfast)
    assert "checkpoints: steps/z is only in the target" in refused.err
    assert on(TARGET, lambda held: held.registry().list("")) == []


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("side, url", [("--from", SOURCE), ("--to", TARGET)])
def test_a_cluster_that_runs_is_refused(holdfast: Any, side: str, url: str) -> None:
    on(url, lambda held: held.coordinator().join(Member("m1", "node-1", "http://n", Load()), 60.0))
    refused = transfer(holdfast)
    assert refused.code == 1
    assert f"nodes are running on the services of {side}: node-1" in refused.err
    assert on(TARGET, lambda held: held.state().checkpoints()) == []


def test_services_that_are_empty_are_refused(holdfast: Any) -> None:
    missing = transfer(holdfast)
    assert missing.code == 2
    assert "source.db" in missing.err
    on(SOURCE, lambda held: held.coordinator().members())
    empty = transfer(holdfast)
    assert empty.code == 1
    assert "the source is empty; does --from name the right services?" in empty.err


@pytest.mark.parametrize(
    "arguments, told",
    [
        ((), "give either --from URL or --from-config FILE"),
        (("--from", SOURCE), "give either --to URL or --to-config FILE"),
        (("--from", SOURCE, "--to", SOURCE), "there is nothing to transfer"),
        (("--from", SOURCE, "--to", TARGET, "--url", SOURCE), "give --from and --to instead of --url"),
        (("--from", SOURCE, "--to", "sqs://eu-west-1/"), "sqs"),
    ],
)
@pytest.mark.usefixtures("filled")
def test_a_transfer_with_a_wrong_source_or_target_says_so(
    holdfast: Any, arguments: tuple[str, ...], told: str
) -> None:
    refused = holdfast("transfer", *arguments)
    assert refused.code == 2
    assert told in refused.err


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "other", ["sqlite:///./source.db", "sqlite:///{place}/source.db", "sqlite:///link.db"]
)
@pytest.mark.parametrize("more", [(), ("--check",)])
def test_two_urls_of_one_file_are_the_same_services(
    holdfast: Any, place: Path, other: str, more: tuple[str, ...]
) -> None:
    Path("link.db").symlink_to("source.db")
    refused = holdfast("transfer", "--from", SOURCE, "--to", other.format(place=place), *more)
    assert refused.code == 2
    assert "--from and --to are the same services: there is nothing to transfer" in refused.err


def test_two_names_of_one_server_are_found_by_what_is_written_there(
    holdfast: Any, redis_server: RedisServer
) -> None:
    source = redis_server.url
    other = source.replace("127.0.0.1", "localhost")
    refused = holdfast("transfer", "--from", source, "--to", other)
    assert refused.code == 2
    assert f"--from and --to have the same registry, as {source!r} and as {other!r}" in refused.err
    assert on(source, lambda held: held.registry().list("")) == [], "the document of the probe is gone"


@pytest.mark.usefixtures("filled")
def test_what_a_killed_probe_has_left_hinders_no_transfer(holdfast: Any) -> None:
    on(TARGET, lambda held: held.registry().put(f"{PROBES}0", b"{}", 0))
    done = transfer(holdfast, "--json")
    assert done.code == 0, done.err
    assert done.lines[0] | {"part": "documents", "source": 2, "target": 2} == done.lines[0]


@pytest.mark.usefixtures("filled")
def test_services_that_both_sides_share_are_left_alone(holdfast: Any, place: Path) -> None:
    (place / "old.toml").write_text(f'url = "{SOURCE}"\n')
    (place / "new.toml").write_text(f'url = "{TARGET}"\nqueue_url = "{SOURCE}"\n')
    done = holdfast("transfer", "--from-config", "old.toml", "--to-config", "new.toml", "--json")
    assert done.code == 0, done.err
    assert [part["part"] for part in done.lines] == ["documents", "checkpoints", "results", "tasks of app"]


@pytest.mark.usefixtures("filled")
def test_a_queue_that_lists_nothing_is_refused(holdfast: Any, place: Path) -> None:
    (place / "old.toml").write_text(f'url = "{SOURCE}"\nqueue_url = "sqs://eu-west-1/"\n')
    refused = holdfast("transfer", "--from-config", "old.toml", "--to", TARGET)
    assert refused.code == 2
    assert "queue_url is 'sqs://eu-west-1/', whose contents can't be transferred" in refused.err
    assert "Have the nodes handle all that waits" in refused.err


class Writes:
    """Counts writes of all parts, and fails at one of them."""

    def __init__(self, fails_at: int = -1) -> None:
        self.count = 0
        self._fails_at = fails_at

    async def copy_all(self, parts: Sequence[Part]) -> None:
        for part in parts:
            await copy(replace(part, write=partial(self._write, part)), quietly)

    async def _write(self, part: Part, records: Any) -> None:
        if self.count == self._fails_at:
            raise Unavailable("interrupted")
        self.count += 1
        await part.write(records)


def quietly(_: int) -> None:
    """Tell nobody how far it is."""


@pytest.mark.nightly
@pytest.mark.usefixtures("filled")
async def test_interrupted_at_any_write_it_ends_the_same_when_repeated() -> None:
    digests = []
    whole = Writes()
    async with services(SOURCE) as ours, services(TARGET) as theirs:
        await whole.copy_all(await contents(ours, theirs))
    assert whole.count > 12
    for place in range(whole.count):
        async with services(SOURCE) as ours, services(f"sqlite:///again-{place}.db") as theirs:
            with pytest.raises(Unavailable, match="interrupted"):
                await Writes(place).copy_all(await contents(ours, theirs))
            parts = await contents(ours, theirs)
            assert [found for part in parts if (found := (await conflict(part))[0])] == []
            await Writes().copy_all(parts)
            reports = [await report(part, quietly) for part in parts]
        assert [told.difference for told in reports if told.difference] == []
        digests.append([told.target_digest for told in reports])
    assert all(each == digests[0] for each in digests)


class Side(NamedTuple):
    """Items by their places."""

    items: dict[int, bytes]

    async def read(self) -> AsyncIterator[Item]:
        for place, content in sorted(self.items.items()):
            yield Item(place, str(place), content, content)


async def test_both_sides_are_compared_in_their_order() -> None:
    source, target = Side({1: b"a", 2: b"b", 4: b"d"}), Side({0: b"z", 1: b"a", 2: b"x"})

    async def write(records: Any) -> None: ...

    part = Part("things", source.read, target.read, write)
    found = [(verdict, item.place) async for verdict, item in compared(part)]
    assert found == [("extra", 0), ("same", 1), ("differs", 2), ("missing", 4)]
    assert await conflict(part) == ("things: 0 is only in the target", True)
    told = await report(part, quietly)
    assert (told.source, told.target, told.difference) == (3, 3, "things: 0 is only in the target")
    assert told.source_digest != told.target_digest


async def test_large_records_are_written_a_few_at_a_time() -> None:
    written: list[int] = []

    async def read() -> AsyncIterator[Item]:
        for place in range(6):
            yield Item(place, str(place), b"", place, size=7 << 20)

    async def write(records: Any) -> None:
        written.append(len(records))

    part = Part("things", read, Side({}).read, write)
    assert await copy(part, quietly) == 6
    assert written == [2, 2, 2, 0]


async def test_numbers_of_a_queue_that_are_taken_are_refused() -> None:
    """Queues of one file share their numbers; those of a Redis don't."""
    async with services(TARGET) as held:
        await held.queue("a").send([Outgoing(b"x")])
        queue: Any = held.queue("b")
        with pytest.raises(Exception, match="number 1 is taken by another queue"):
            await queue.restore([WaitingMessage("9", b"", number=9), WaitingMessage("1", b"", number=1)])
        assert await queue.waiting(10) == []
