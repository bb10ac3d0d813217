"""Each call of each port in PostgreSQL, while its connection is cut at each statement."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast.errors import ClaimLost, Fenced
from holdfast.ports.coordinator import Claim, Coordinator, Load, Member
from holdfast.ports.queue import DeadLetter, Outgoing, PutBack, WaitingMessage
from holdfast.ports.registry import Document, Registry
from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Checkpoint, Result
from holdfast.rules.tasks.task import (
    AttemptBeat,
    CancelTask,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    QueueTask,
    ResendEffects,
    ReturnAttempt,
    State,
    Task,
)
from holdfast.services.postgres import coordinator as coordinators
from holdfast.services.postgres.coordinator import PostgresCoordinator
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.services.postgres.registry import PostgresRegistry
from holdfast.services.postgres.state import PostgresState
from holdfast.services.postgres.tasks import PostgresTasks
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.coordinator import A, B, C
from holdfast.testing.conformance.state import TIMERS, effect, next_commit
from holdfast.testing.conformance.tasks import wish
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase
from tests.services.postgres.cuts import Cuts, calls_of, wired

pytestmark = pytest.mark.nightly

LONG_S = 60.0
AGES_S = 1e12
READ = ({"not done"}, {"not done", "done"})
"""How a call that reads may end: it has no uncertain outcome."""

# --- queue

Receipt = str

STANDING = """
SELECT body, receives, coalesce(visible_at > holdfast.micros(clock_timestamp()), false)
FROM holdfast.messages ORDER BY 1, 2"""

RESERVED = "SELECT key, holder, ends_at > holdfast.micros(now()) FROM holdfast.reservations ORDER BY 1"

QUEUE: dict[str, Callable[[PostgresQueue, Receipt], Awaitable[object]]] = {
    "send": lambda queue, _: queue.send([Outgoing(b"c"), Outgoing(b"d", delay_s=LONG_S)]),
    "receive": lambda queue, _: queue.receive(5, 0, LONG_S, "me"),
    "extend": lambda queue, receipt: queue.extend([receipt], 0),
    "give_back": lambda queue, receipt: queue.give_back([receipt], 0),
    "delete": lambda queue, receipt: queue.delete([receipt]),
    "free": lambda queue, _: queue.free("me"),
    "bury": lambda queue, _: queue.bury([DeadLetter("w", b"w", "r"), DeadLetter("z", b"z", "r")]),
    "depth": lambda queue, _: queue.depth(),
    "dead_letters": lambda queue, _: queue.dead_letters(10),
    "redrive": lambda queue, _: queue.redrive(["y", "x"]),
    "purge": lambda queue, _: queue.purge(["y", "x"]),
    "expire": lambda queue, _: queue.expire(AGES_S),
    "waiting": lambda queue, _: queue.waiting(10),
    "restore": lambda queue, _: queue.restore([WaitingMessage("1", b"e", receives=2)]),
    "restore_dead_letters": lambda queue, _: queue.restore_dead_letters([DeadLetter("w", b"w", "r")]),
    "addition": lambda queue, _: queue.addition([Outgoing(b"f")]),
    "reserve": lambda queue, _: queue.reserve("l", "me", 1, LONG_S),
    "keep": lambda queue, _: queue.keep(["k"], "me", LONG_S),
    "unreserve": lambda queue, _: queue.unreserve("k", "me"),
    "take": lambda queue, _: queue.take("k", "me", 5, LONG_S),
    "put_back": lambda queue, receipt: queue.put_back([PutBack(receipt, "j")]),
}

RESERVING = {"reserve", "keep", "unreserve", "take"}
"""Calls before which there is a reservation that keeps something."""


@pytest.mark.parametrize("act", QUEUE)
async def test_a_call_of_the_queue_that_is_cut_leaves_what_its_error_says(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, act: str
) -> None:
    clock = SystemClock()
    async with wired(postgresql_server, make_database) as wire:
        queue, direct = [
            PostgresQueue(PostgresMessages(database, clock), "q", clock)
            for database in (wire.database, wire.direct)
        ]

        async def fill() -> Receipt:
            """Two messages, of which one is delivered, and two dead letters."""
            await wire.empty("messages", "dead_letters", "reservations")
            if act in RESERVING:
                await direct.send([Outgoing(b"c", key="k")])
                await direct.reserve("k", "me", 1, LONG_S)
                assert await direct.receive(1, 0.05, LONG_S, "me") == []
            await direct.send([Outgoing(b"a")])
            [delivery] = await direct.receive(1, LONG_S, LONG_S, "me")
            await direct.send([Outgoing(b"b")])
            await direct.bury([DeadLetter("x", b"x", "r"), DeadLetter("y", b"y", "r")])
            return delivery.receipt

        async def kept() -> object:
            letters = await wire.rows("SELECT id FROM holdfast.dead_letters ORDER BY 1")
            return await wire.rows(STANDING), letters, await wire.rows(RESERVED)

        cuts = Cuts(wire, queue.depth, fill, kept)
        outcomes = await cuts.at_each_statement(
            lambda receipt: QUEUE[act](queue, receipt), repeats=act not in ("send", "receive", "restore")
        )
    if act in ("depth", "dead_letters", "waiting", "addition"):
        assert outcomes in READ
    else:
        # Some are one statement, or wait for no answer before they ask for the commit.
        assert "unknown" in outcomes
        assert "not done" in outcomes or act not in ("redrive", "purge", "expire", "restore")


# --- state

KEY = "s/k"

STATE: dict[str, Callable[[PostgresState, Checkpoint], Awaitable[object]]] = {
    "peek": lambda state, _: state.peek(KEY),
    "now": lambda state, _: state.now(KEY),
    "identities": lambda state, _: state.identities(KEY, 10),
    "open": lambda state, standing: state.open(KEY, standing.epoch, "n"),
    "open a new key": lambda state, _: state.open("s/new", 0, "n"),
    "start": lambda state, standing: state.start(KEY, standing.epoch, "0:7"),
    "commit": lambda state, standing: state.commit(
        next_commit(
            standing, identities=("c", "d", "e"), window=4, state=b"s", timers=TIMERS, due=7.0, done=1,
            effects=(effect(2, 0),), dropped=("id-1.0",), results=(Result("0:2", b"r"), Result("0:3", b"r")),
        )
    ),
    "due": lambda state, _: state.due(9.0, 10, 5.0),
    "results": lambda state, _: state.results(0, 10),
    "result": lambda state, _: state.result(KEY, "0:1"),
    "checkpoints": lambda state, _: state.checkpoints(),
    "expire": lambda state, _: state.expire(AGES_S, AGES_S),
    "stored": lambda state, _: state.stored([KEY]),
    "restore": lambda state, standing: state.restore(
        [msgspec.structs.replace(standing, key=key) for key in ("s/l", "s/m")]
    ),
    "last_cursor": lambda state, _: state.last_cursor(),
    "restore_results": lambda state, _: state.restore_results(
        [Logged(AGES, "s/l", 1, Result("0:1", b"l"), 1.0)]
    ),
}  # fmt: skip

AGES = 1 << 50
"""A cursor that no result has yet."""


@pytest.mark.parametrize("act", STATE)
async def test_a_call_of_the_state_store_that_is_cut_leaves_what_its_error_says(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, act: str
) -> None:
    async with wired(postgresql_server, make_database) as wire:
        state, direct = [PostgresState(database, SystemClock()) for database in (wire.database, wire.direct)]

        async def fill() -> Checkpoint:
            """A stream that acts, and has a result."""
            await wire.empty("keys", "checkpoints", "recents", "effects", "results")
            opened = await direct.open(KEY, 0, "m")
            await direct.commit(
                next_commit(
                    opened, identities=("a", "b"), window=4, due=5.0, results=(Result("0:1", b"r"),),
                    effects=(effect(1, 0), effect(1, 1)),
                )
            )  # fmt: skip
            return await direct.open(KEY, opened.epoch, "m")

        async def kept() -> object:
            stored = await direct.stored([KEY, "s/new", "s/l", "s/m"])
            masked = [msgspec.structs.replace(each, epoch=0, at=0.0, started=None) for each in stored]
            return masked, {(found.key, found.result) for found in await direct.results(0, 10)}

        async def call(standing: Checkpoint) -> None:
            with contextlib.suppress(Fenced):  # an opening is refused, once it was done
                await STATE[act](state, standing)

        cuts = Cuts(wire, lambda: state.now(KEY), fill, kept)
        outcomes = await cuts.at_each_statement(call, whole=act != "expire")  # in several transactions
    if act in ("peek", "identities", "now", "results", "result", "checkpoints", "stored", "last_cursor"):
        assert outcomes in READ
    elif act == "restore_results":  # it waits for no answer before it asks for the commit
        assert "unknown" in outcomes
    elif act != "expire":
        assert outcomes >= {"not done", "unknown"}


# --- coordinator


async def transfer(coordinator: Coordinator, claim: Claim) -> None:
    """Transfer a claim to ``B``, or find that this is done."""
    try:
        await coordinator.transfer(claim, B.id)
    except ClaimLost:
        found = await coordinator.lookup(claim.key)
        assert found is not None
        assert found.member == B.id


COORDINATOR: dict[str, Callable[[PostgresCoordinator, Claim], Awaitable[object]]] = {
    "join": lambda coordinator, _: coordinator.join(C, LONG_S),
    "renew": lambda coordinator, _: coordinator.renew(
        Member(A.id, A.name, A.address, Load(streams=7)), LONG_S
    ),
    "leave": lambda coordinator, _: coordinator.leave(A.id),
    "evict": lambda coordinator, _: coordinator.evict(A.id),
    "members": lambda coordinator, _: coordinator.members(),
    "lookup": lambda coordinator, _: coordinator.lookup(KEY),
    "claim": lambda coordinator, _: coordinator.claim("s/new", B.id),
    "transfer": transfer,
    "release": lambda coordinator, claim: coordinator.release(claim),
    "claims": lambda coordinator, _: coordinator.claims(),
    "claims of one": lambda coordinator, _: coordinator.claims(A.id),
    "watch": lambda coordinator, claim: coordinator.watch(claim.version, 0),
    "watch while a membership lapses": lambda coordinator, claim: coordinator.watch(claim.version, 0),
    "watch while the tables are rebuilt": lambda coordinator, claim: coordinator.watch(claim.version, 0),
}


@pytest.mark.parametrize("act", COORDINATOR)
async def test_a_call_of_the_coordinator_that_is_cut_leaves_what_its_error_says(
    postgresql_server: PostgresqlServer,
    make_database: MakeDatabase,
    monkeypatch: pytest.MonkeyPatch,
    act: str,
) -> None:
    if "rebuilt" in act:
        monkeypatch.setattr(coordinators, "ROOM_BYTES", -AGES)
    async with wired(postgresql_server, make_database) as wire:
        coordinator, direct = [
            PostgresCoordinator(database, SystemClock()) for database in (wire.database, wire.direct)
        ]

        async def fill() -> Claim:
            """Two members, of which one has a claim."""
            for member in (A, B, C):
                await direct.evict(member.id)
            for member in (A, B):
                await direct.join(member, LONG_S)
            claim = await direct.claim(KEY, A.id)
            if "lapses" in act:
                await wire.observer.execute("UPDATE holdfast.members SET expires_at = now() - interval '1 s'")
            return claim

        async def kept() -> object:
            last = "SELECT kind, member, key FROM holdfast.changes ORDER BY number DESC LIMIT 1"
            return (
                await wire.rows("SELECT id, record FROM holdfast.members ORDER BY 1"),
                await wire.rows("SELECT key, member FROM holdfast.claims ORDER BY 1"),
                await wire.rows(last),
            )

        cuts = Cuts(wire, coordinator.members, fill, kept)
        outcomes = await cuts.at_each_statement(
            lambda claim: COORDINATOR[act](coordinator, claim), whole="lapses" not in act
        )
    if act in (
        "members",
        "lookup",
        "claims",
        "claims of one",
        "watch",
        "watch while the tables are rebuilt",
    ):
        assert outcomes in READ
    else:
        assert "unknown" in outcomes


# --- registry

REGISTRY: dict[str, Callable[[Registry, Document], Awaitable[object]]] = {
    "get": lambda registry, standing: registry.get(standing.name),
    "put": lambda registry, standing: registry.put(standing.name, b"later", standing.version),
    "put a new one": lambda registry, _: registry.put("new", b"first", 0),
    "put over another version": lambda registry, standing: registry.put(standing.name, b"x", 1),
    "drop": lambda registry, standing: registry.drop(standing.name, standing.version),
    "list": lambda registry, _: registry.list(""),
    "changed": lambda registry, standing: registry.changed(standing.name, standing.version, 0),
}


@pytest.mark.parametrize("act", REGISTRY)
async def test_a_call_of_the_registry_that_is_cut_leaves_what_its_error_says(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, act: str
) -> None:
    async with wired(postgresql_server, make_database) as wire:
        registry, direct = [
            PostgresRegistry(database, SystemClock()) for database in (wire.database, wire.direct)
        ]

        async def fill() -> Document:
            await wire.empty("documents")
            document = await direct.put("d", b"first", 0)
            assert document is not None
            return document

        async def kept() -> object:
            return await wire.rows("SELECT name, body FROM holdfast.documents ORDER BY 1")

        cuts = Cuts(wire, lambda: registry.list(""), fill, kept)
        outcomes = await cuts.at_each_statement(lambda standing: REGISTRY[act](registry, standing))
    if act in ("get", "list", "changed"):
        assert outcomes in READ
    else:
        assert outcomes >= {"not done", "unknown"}


# --- tasks

Tasks = dict[str, Task]


def brief(task: Task) -> Outgoing:
    return Outgoing(task.task_id.encode())


TASKS: dict[str, Callable[[PostgresTasks, Tasks], Awaitable[object]]] = {
    "change": lambda store, _: store.change([QueueTask(Task("new", "t")), CancelTask("queued", "why")]),
    "queue": lambda store, _: store.queue([Task("new", "t"), Task("other", "t")]),
    "delay": lambda store, _: store.delay([DelayTask("new", "t", LONG_S, b"m")]),
    "due": lambda store, _: store.due(LONG_S, 10, LONG_S),
    "messages_sent": lambda store, _: store.messages_sent(["delayed"]),
    "start": lambda store, _: store.start([wish("queued"), wish("new")]),
    "beat": lambda store, tasks: store.beat([AttemptBeat("begun", tasks["begun"].epoch, LONG_S, 0.5)]),
    "give_back": lambda store, tasks: store.give_back(
        [ReturnAttempt("begun", tasks["begun"].epoch, spent=True, detail="d", pause_s=LONG_S)]
    ),
    "end": lambda store, tasks: store.end(
        [EndAttempt("begun", tasks["begun"].epoch, State.SUCCEEDED, b"1", effects=b"e")]
    ),
    "end_and_brief": lambda store, tasks: store.end_and_brief(
        [EndAttempt("begun", tasks["begun"].epoch, State.SUCCEEDED, b"1")], "briefs", brief
    ),
    "count": lambda store, _: store.count([CountMember("batch", 2, 1), CountMember("new", 2)]),
    "briefed": lambda store, tasks: store.briefed([("ended", tasks["ended"].epoch)]),
    "handed_over": lambda store, tasks: store.handed_over([EffectsLeft("ended", tasks["ended"].epoch)]),
    "resend_effects": lambda store, _: store.resend_effects([ResendEffects("reported", b"again")]),
    "cancel": lambda store, _: store.cancel("delayed", "why"),
    "reset": lambda store, _: store.reset(["failed"]),
    "get": lambda store, _: store.get("begun"),
    "list": lambda store, _: store.list(10),
    "counts": lambda store, _: store.counts(),
    "now": lambda store, _: store.now(),
    "expire": lambda store, _: store.expire(AGES_S),
    "restore": lambda store, _: store.restore(
        [Task("new", "t", queued_at=1.0, message=b"m", send_at=AGES_S), Task("queued", "other")]
    ),
}


@pytest.mark.parametrize("act", TASKS)
async def test_a_call_of_the_task_store_that_is_cut_leaves_what_its_error_says(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, act: str
) -> None:
    async with wired(postgresql_server, make_database) as wire:
        store, direct = [
            PostgresTasks(database, "app", SystemClock()) for database in (wire.database, wire.direct)
        ]

        async def fill() -> Tasks:
            """A task of each state."""
            await wire.empty("tasks", "delayed_tasks", "messages")
            await direct.queue([Task("queued", "t")])
            await direct.delay([DelayTask("delayed", "t", LONG_S / 2, b"m")])
            await direct.count([CountMember("batch", 2, 0)])
            begun = await direct.start(
                [wish(task_id) for task_id in ("begun", "ended", "reported", "failed")]
            )
            tasks = {task.task_id: task for task in begun}
            for task_id, state in (
                ("ended", State.SUCCEEDED),
                ("reported", State.SUCCEEDED),
                ("failed", State.FAILED),
            ):
                effects = b"e" if task_id == "ended" else b""
                await direct.end([EndAttempt(task_id, tasks[task_id].epoch, state, effects=effects)])
            await direct.briefed([("reported", tasks["reported"].epoch)])
            return tasks

        async def kept() -> object:
            tasks = [masked(task) for task in await direct.list(100)]
            delayed = await wire.rows("SELECT trace FROM holdfast.delayed_tasks ORDER BY 1")
            return tasks, delayed, await wire.rows("SELECT body FROM holdfast.messages")

        cuts = Cuts(wire, store.counts, fill, kept)
        outcomes = await cuts.at_each_statement(lambda tasks: TASKS[act](store, tasks))
    if act in ("get", "list", "counts", "now"):
        assert outcomes in READ
    else:
        assert outcomes >= {"not done", "unknown"}


def masked(task: Task) -> Task:
    """Return a task with all that depends on when it was changed made alike."""
    return msgspec.structs.replace(
        task,
        epoch=0,
        until=float(task.until > 0),
        queued_at=float(task.queued_at > 0),
        started_at=float(task.started_at > 0),
        ended_at=float(task.ended_at > 0),
        send_at=float(task.send_at > task.queued_at) + float(task.send_at > task.queued_at + LONG_S),
    )


# --- all of them


@pytest.mark.parametrize(
    "port, acts",
    [
        (PostgresQueue, QUEUE),
        (PostgresState, STATE),
        (PostgresCoordinator, COORDINATOR),
        (PostgresRegistry, REGISTRY),
        (PostgresTasks, TASKS),
    ],
)
def test_each_call_of_a_port_is_cut(port: type, acts: dict[str, Any]) -> None:
    assert {act.split()[0] for act in acts} == calls_of(port)
