"""The shell of the owners: what services answer, late, twice or not at all, and what becomes of a stream."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar, get_args

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.message import Place
from holdfast.common.retry import Backoff
from holdfast.errors import (
    ClaimLost,
    ConfigError,
    Fenced,
    OperationRefused,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.ports.queue import Outgoing
from holdfast.ports.slots import SlotCall
from holdfast.rules.streams.commands import Command, LoadModels
from holdfast.rules.streams.ledger import Checkpoint, Commit
from holdfast.rules.streams.run_plan import ALONE_OPENINGS
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.operations import pause, resume
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
KEY = "s/k"
IDLE_S = 20.0
GAP_S = 45.0
"""The default of ``gap_timeout_s``."""


class Item(msgspec.Struct):
    """A message."""

    key: str
    n: int


class Sum(StreamHandler[Item]):
    """Keeps the sum of what it saw; notes when its instances come and go."""

    story: ClassVar[list[str]] = []

    def open(self, context: Context, state: bytes | None) -> None:
        self.key = context.key
        self.sum = int(state or 0)
        self.story.append(f"open {self.key} {self.sum}")

    def process(self, message: Item, context: Context) -> Any:
        self.sum += message.n
        return {"n": message.n, "sum": self.sum}

    def snapshot(self) -> bytes:
        return str(self.sum).encode()

    def close(self) -> None:
        self.story.append(f"close {self.key} {self.sum}")


def app_of(**settings: Any) -> App:
    Sum.story.clear()
    app = App("town")
    app.model("weights", lambda: Sum.story.append("load weights"))
    usual: dict[str, Any] = {
        "seq": "n",
        "first_seq": 0,
        "idle_timeout_s": IDLE_S,
        "backoff": Backoff(0.05, 0.1),
    }
    app.stream("s", message=Item, **usual | settings)(Sum)
    return app


def numbers(*ns: int, key: str = "k") -> list[dict[str, Any]]:
    return [{"key": key, "n": n} for n in ns]


async def finished(town: Town, count: int, key: str = "k") -> None:
    """All is over, and in order."""
    await town.until_over()
    assert town.letters() == []
    assert [r["n"] for r in town.results(key)] == list(range(count))
    assert [r["sum"] for r in town.results(key)] == [sum(range(n + 1)) for n in range(count)]


def failing(times: int, error: Exception, then: Callable[..., Any], *, after_effect: bool = False) -> Any:
    """A call that fails so often first, before its effect or after it."""
    left = [times]

    async def call(*args: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            if after_effect:
                await then(*args)
            raise error
        return await then(*args)

    return call


# --- commits


async def test_a_commit_of_unknown_outcome_is_repeated_unchanged(town: Town) -> None:
    for after_effect in (False, True):
        key = f"k{int(after_effect)}"
        node = await town.start(app_of(), f"node of {key}")
        node.state.instead["commit"] = failing(
            3, OutcomeUnknown("lost"), town.state.commit, after_effect=after_effect
        )
        await town.send(*numbers(0, 1, 2, key=key))
        await finished(town, 3, key)
        commits = [args[0] for args in node.state.called("commit")]
        assert commits[0] == commits[1] == commits[2] == commits[3]
        assert len(node.state.called("open")) == 1, "nothing was opened anew"
        await node.node.stop()
        town.nodes.remove(node)


async def test_nothing_is_deleted_or_composed_before_a_commit_is_answered(town: Town) -> None:
    node = await town.start(app_of())
    answer = asyncio.Event()

    async def commit(wanted: Commit) -> None:
        await answer.wait()
        await town.state.commit(wanted)

    node.state.instead["commit"] = commit
    await town.send(*numbers(0, 1, 2, 3))
    await town.clock.sleep(10)
    assert len(node.state.called("commit")) == 1
    assert town.events("deleted") == []
    answer.set()
    await finished(town, 4)


async def test_a_store_that_is_down_is_waited_for(town: Town) -> None:
    node = await town.start(app_of())
    for call in ("peek", "open", "start", "commit"):
        node.state.instead[call] = failing(8, Unavailable("down"), getattr(town.state, call))
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    assert len(node.state.calls) < 60, "no hot loop"
    told = [fields for _, event, fields in node.log.entries if event == "service call failed"]
    assert told
    assert told[0] == {"key": KEY, "error": "down"}


@pytest.mark.parametrize("error", [ConfigError("wrong password"), OperationRefused("ERR what")])
async def test_a_service_that_refuses_is_waited_for(town: Town, error: Exception) -> None:
    node = await town.start(app_of())
    for call in ("peek", "open", "start", "commit"):
        node.state.instead[call] = failing(8, error, getattr(town.state, call))
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    node.coordinator.instead["transfer"] = failing(8, error, town.coordinator.transfer)
    other = await town.start(app_of(), "b")
    await town.until(lambda: other.id in node.host.membership.view)
    assert await node.work.moves.move(KEY, other.id) == ""
    await town.until(lambda: not node.owns(KEY))
    assert len(node.coordinator.called("transfer")) == 9
    assert len(node.state.calls) < 60, "no hot loop"
    assert node.log.events("warning").count("service call failed") > 0


async def test_an_opening_of_unknown_outcome_is_looked_into(town: Town) -> None:
    node = await town.start(app_of())
    node.state.instead["open"] = failing(1, OutcomeUnknown("lost"), town.state.open, after_effect=True)
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    assert [args[1] for args in node.state.called("open")] == [0, 1], "at the epoch that stands by now"


async def test_a_fenced_owner_whose_claim_stands_opens_anew_and_does_it_again(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    await town.state.open(KEY, 1, "operator")
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    assert town.state.standing[KEY].epoch == 3
    assert node.host.stats.fenced == 1
    opened = [event for event in Sum.story if event.startswith("open")]
    assert opened == ["open k 0", "open k 0"], "from the state that was committed"


async def test_a_fenced_owner_whose_claim_is_gone_lets_go(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    other = await town.start(app_of(), "b")
    await town.coordinator.transfer(claim, other.id)
    await town.state.open(KEY, 1, other.id)
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    assert not node.owns(KEY)
    assert other.owns(KEY)


async def test_a_commit_over_the_store_s_limit_ends_nobody(town: Town) -> None:
    node = await town.start(app_of())
    node.state.instead["commit"] = failing(2, TooLarge("a state of 9 bytes"), town.state.commit)
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    assert node.log.events("error").count("commit too large") == 2


# --- a store that forgets


def losses(node: TownNode) -> list[dict[str, Any]]:
    """What the node says of streams whose commits the store has lost."""
    return [
        fields
        for level, event, fields in node.log.entries
        if level == "error" and event == "commits lost by the state store"
    ]


def lose(town: Town, checkpoint: Checkpoint | None = None) -> None:
    """Let the store hold of the stream what it held then, or nothing. Epochs are never issued again."""
    epoch = town.state.standing[KEY].epoch
    del town.state.standing[KEY]
    if checkpoint is not None:
        town.state.standing[KEY] = msgspec.structs.replace(checkpoint, epoch=epoch + 10)


async def test_an_owner_whose_store_was_emptied_goes_on_from_what_it_committed(town: Town) -> None:
    """No frame that was committed before is waited for, and no state is begun anew."""
    node = await town.start(app_of(gap_timeout_s=1000.0, start_timeout_s=1000.0))
    await town.send(*numbers(0, 1, 2))
    await finished(town, 3)
    lose(town)
    begun = town.clock.monotonic()
    await town.send(*numbers(3, 4, 1))  # and one that was delivered again
    await town.until_over()
    assert town.clock.monotonic() - begun < 30
    assert [r["sum"] for r in town.results("k")] == [0, 1, 3, 6, 10]
    assert town.letters() == []
    assert town.state.standing[KEY].state == b"10"
    assert node.host.stats.states_lost == 1
    [told] = losses(node)
    assert (told["key"], told["commits_found"]) == (KEY, 0)
    assert told["commits_known"] >= 1
    assert told["follows"].startswith("the stream goes on from its owner")


async def test_what_an_owner_knew_is_stored_with_its_first_commit_whatever_that_says(town: Town) -> None:
    """Also where no handler ran in it: another opening must not find the place without the state."""
    node = await town.start(app_of(max_tries=1))
    await town.send(*numbers(0, 1, 2))
    await finished(town, 3)
    lose(town)

    async def die(slot: MemorySlot) -> None:
        slot.die("of this message")

    [message] = numbers(3)
    town.deeds[json.dumps(message).encode()] = die
    await town.send(message)
    await town.until_over()
    assert [letter.seq[-1] for letter in town.letters()] == ["3"]
    standing = town.state.standing[KEY]
    assert standing.log is not None
    assert (standing.log.seq, standing.state) == (3, b"3")
    assert node.host.stats.states_lost == 1


async def test_an_older_snapshot_stands_and_is_named(town: Town) -> None:
    """Somebody else may have gone on from it."""
    node = await town.start(app_of(gap_timeout_s=2.0))
    await town.send(*numbers(0))
    await finished(town, 1)
    older = town.state.standing[KEY]
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    lose(town, older)
    await town.send(*numbers(3))
    await town.until_over()
    assert town.results("k")[-1] == {"n": 3, "sum": 3}
    [told] = losses(node)
    assert told["follows"] == "the stream goes on from the older checkpoint"


async def test_what_a_store_has_forgotten_and_its_queue_too_runs_again(town: Town) -> None:
    """As after a fail-over of a database that holds both: no message goes for a commit that is lost."""
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    older = town.state.standing[KEY]
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    lose(town, older)
    await town.send(*numbers(1, 2))
    await town.until_over()
    standing = town.state.standing[KEY]
    assert standing.log is not None
    assert (standing.log.seq, standing.state) == (2, b"3")
    [told] = losses(node)
    assert told["follows"] == "the stream goes on from the older checkpoint"


async def test_a_stream_that_was_released_before_the_loss_is_named_when_it_comes_again(town: Town) -> None:
    node = await town.start(app_of(idle_timeout_s=1.0))
    await town.send(*numbers(0))
    await finished(town, 1)
    await town.until(lambda: not node.owns(KEY))
    lose(town)
    await town.send(*numbers(0))
    await town.until_over()
    [told] = losses(node)
    assert told["follows"].startswith("the stream begins from the start")


# --- claims and memberships


async def test_a_lost_membership_is_no_lost_stream(town: Town) -> None:
    """Its own epoch still stands at the store: it goes on, under a new claim, without opening anew."""
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    before = node.id
    town.coordinator.forget()
    await town.until(lambda: node.id != before and node.host.membership.alive)
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    assert claim.member == node.id
    assert town.state.standing[KEY].epoch == 1


async def test_messages_stay_hidden_while_a_lost_claim_is_looked_into(town: Town) -> None:
    node = await town.start(app_of())

    async def away(*args: Any) -> Any:
        raise Unavailable("cut off")

    await town.send(*numbers(0))
    await finished(town, 1)
    for call in ("peek", "commit"):
        node.state.instead[call] = away
    await town.send(*numbers(1, 2))
    await town.until(lambda: len(node.state.called("commit")) > 1)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    await town.coordinator.release(claim)
    await town.clock.sleep(5 * LIMITS.visibility_s)
    assert len(town.events("received")) == 3
    node.state.instead.clear()
    await finished(town, 3)


async def test_a_stream_that_another_opened_meanwhile_is_let_go(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    other = await town.start(app_of(), "b")

    async def silence(*args: Any) -> Any:
        raise Unavailable("cut off")

    for call in ("renew", "watch", "members", "lookup"):
        node.coordinator.instead[call] = silence
    await town.until(lambda: node.id not in other.host.membership.view)
    await town.send(*numbers(1, 2))
    await town.until(lambda: other.owns(KEY))
    await finished(town, 3)
    assert node.owns(KEY), "it hasn't heard of it yet"
    node.coordinator.instead.clear()
    await town.until(lambda: not node.owns(KEY))
    assert town.state.standing[KEY].epoch == 2


SILENT = (
    "renew",
    "watch",
    "members",
    "lookup",
    "claim",
    "claims",
    "join",
    "evict",
    "transfer",
    "release",
)


async def fall_silent(town: Town, *nodes: TownNode) -> None:
    """Let the coordinator answer these nodes no more, nor end what waits there."""
    waits_over_s = 5.0

    async def silence(*args: Any) -> Any:
        await town.clock.sleep(0.01)
        raise Unavailable("nobody answers")

    async def not_yet(after: int, wait_s: float) -> Any:
        return await town.coordinator.watch(after, 0.1)

    for node in nodes:
        node.coordinator.instead["watch"] = not_yet
    await town.clock.sleep(waits_over_s)
    for node in nodes:
        for call in SILENT:
            node.coordinator.instead[call] = silence


async def test_known_streams_go_on_while_the_coordinator_is_silent(town: Town) -> None:
    """Long past every membership, for messages of the queue and of clients: commits show that nobody else has
    opened them. New ones wait for the coordinator, and nothing is opened twice."""
    nodes = [await town.start(app_of(idle_timeout_s=1e6), name) for name in "ab"]
    keys = [f"k{i}" for i in range(4)]
    for key in keys:
        await town.send(*numbers(0, key=key))
    await town.until_over()
    assert all(len(node.work.owners) for node in nodes)

    await fall_silent(town, *nodes)
    await town.clock.sleep(10 * LIMITS.ttl_s)
    for key in keys:
        await town.send(*numbers(1, key=key))
    await town.until(lambda: all(len(town.results(key)) == 2 for key in keys), LIMITS.visibility_s)
    owner = next(node for node in nodes if node.owns("s/k0"))
    body = json.dumps({"key": "k0", "n": 2}).encode()
    answer = await owner.work.requests.process("s", "s/k0", Place(0, 2), body, {}, 5.0)
    assert json.loads(answer.result or b"")["sum"] == 3
    with pytest.raises(Unavailable):
        await owner.work.requests.process("s", "s/new", Place(0, 0), body, {}, 5.0)
    await town.send(*numbers(0, key="new"))
    await town.clock.sleep(2 * LIMITS.ttl_s)
    assert town.results("new") == []
    for node in nodes:
        node.coordinator.instead.clear()
    await town.send(*(message for key in keys[1:] for message in numbers(2, key=key)))
    await town.until_over()
    assert [len(town.results(key)) for key in [*keys, "new"]] == [3, 3, 3, 3, 1]
    assert {town.state.standing[f"s/{key}"].epoch for key in keys} == {1}
    assert not any(event.kind == "buried" for event in town.queue().log)


async def test_what_is_held_while_the_coordinator_is_silent_is_kept_alive(town: Town) -> None:
    node = await town.start(app_of(idle_timeout_s=1e6, timeout_s=300.0))
    await town.send(*numbers(0))
    await finished(town, 1)

    async def take_long(slot: MemorySlot) -> None:
        await town.clock.sleep(4 * LIMITS.visibility_s)

    await fall_silent(town, node)
    [message] = numbers(1)
    town.deeds[json.dumps(message).encode()] = take_long
    await town.clock.sleep(2 * LIMITS.ttl_s)
    await town.send(message)
    await finished(town, 2)
    assert len(town.events("received")) == 2, "each was delivered once"


async def test_who_is_cut_off_lets_go_of_what_another_opened(town: Town) -> None:
    """The store refuses its next commit. It holds nothing back from the new owner."""
    node = await town.start(app_of(idle_timeout_s=1e6))
    await town.send(*numbers(0))
    await finished(town, 1)

    await fall_silent(town, node)
    await town.clock.sleep(2 * LIMITS.ttl_s)
    await town.state.open(KEY, 1, "another")
    await town.send(*numbers(1))
    await town.until(lambda: not node.owns(KEY), LIMITS.visibility_s / 2)
    other = await town.start(app_of(), "b")
    await finished(town, 2)
    assert other.owns(KEY)
    assert town.state.standing[KEY].epoch == 3


async def test_a_move_that_the_coordinator_does_not_answer_comes_to_nothing(town: Town) -> None:
    """The stream goes on where it is, and goes once the coordinator answers again."""
    nodes = node, other = [await town.start(app_of(idle_timeout_s=1e6), name) for name in "ab"]
    await town.send(*numbers(0))
    await finished(town, 1)
    if other.owns(KEY):
        node, other = other, node
    await fall_silent(town, *nodes)
    assert await node.work.moves.move(KEY, other.id) == "", "its membership is still alive"
    moved = asyncio.ensure_future(node.work.owners.gone(KEY))
    await town.clock.sleep(2 * LIMITS.ttl_s)
    assert moved.done()
    await town.send(*numbers(1))
    await town.until(lambda: len(town.results("k")) == 2, LIMITS.visibility_s)
    assert "silent" in await node.work.moves.move(KEY, other.id)
    for one in nodes:
        one.coordinator.instead.clear()
    await town.until(lambda: node.host.membership.alive and other.id in node.host.membership.view)
    assert await node.work.moves.move(KEY, other.id) == ""
    await town.until(lambda: not node.owns(KEY))
    await town.send(*numbers(2))
    await finished(town, 3)
    assert other.owns(KEY)


async def test_who_is_cut_off_keeps_no_message_from_the_new_owner(town: Town) -> None:
    """It commits nothing, as it waits for messages that the new owner has: it looks at the store, and then
    receives nothing more."""
    node = await town.start(app_of(idle_timeout_s=1e6))
    await town.send(*numbers(0))
    await finished(town, 1)
    await fall_silent(town, node)
    await town.clock.sleep(2 * LIMITS.ttl_s)
    other = await town.start(app_of(idle_timeout_s=1e6), "b")
    await town.clock.sleep(20)
    body = json.dumps({"key": "k", "n": 1}).encode()
    await other.work.requests.process("s", KEY, Place(0, 1), body, {}, 5.0)
    for n in range(2, 42):
        await town.send(*numbers(n))
        await town.clock.sleep(1)
    assert not node.owns(KEY)
    assert not node.host.membership.stands
    await finished(town, 42)
    node.coordinator.instead.clear()
    await town.until(lambda: node.host.membership.alive)


async def test_a_claim_that_somebody_deleted_comes_back(town: Town) -> None:
    """The epoch still stands at the store: the owner claims again at once and goes on under it."""
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    await town.coordinator.release(claim)
    await town.clock.sleep(1)
    again = await town.coordinator.lookup(KEY)
    assert again is not None
    assert again.member == node.id
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    assert town.state.standing[KEY].epoch == 1


async def test_a_claim_that_another_took_ends_the_ownership_at_once(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    other = await town.start(app_of(), "b")
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    await town.coordinator.transfer(claim, other.id)
    await town.clock.sleep(1)
    assert not node.owns(KEY)
    await town.send(*numbers(1, 2))
    await finished(town, 3)
    assert other.owns(KEY)
    assert not node.owns(KEY)


async def test_after_changes_that_were_missed_claims_are_asked_for_until_there_is_an_answer(
    town: Town,
) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    other = await town.start(app_of(), "b")
    node.host.news.on_claim.clear()
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    await town.coordinator.transfer(claim, other.id)
    node.coordinator.instead["claims"] = failing(3, Unavailable("away"), town.coordinator.claims)
    node.host.news.missed()
    await town.clock.sleep(1)
    assert not node.owns(KEY)


async def test_a_key_that_goes_ends_no_check_of_claims(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0), *numbers(0, key="released"))
    await finished(town, 1)
    other = await town.start(app_of(), "b")
    node.host.news.on_claim.clear()
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    await town.coordinator.transfer(claim, other.id)
    failed = asyncio.Event()

    async def claims(*args: Any) -> list[Claim]:
        if failed.is_set():
            return await town.coordinator.claims(*args)
        failed.set()
        raise Unavailable("away")

    node.coordinator.instead["claims"] = claims
    node.host.news.missed()
    await failed.wait()
    node.work.owners.wake_waiting()  # as for a key that is released just then
    await town.clock.sleep(1)
    assert not node.owns(KEY)


async def test_a_claim_that_others_made_anew_for_its_owner_is_the_one_that_it_hands_on(town: Town) -> None:
    node, other = await town.start(app_of()), await town.start(app_of(), "b")
    first = await town.coordinator.claim(KEY, node.id)
    await town.send(*numbers(0))
    await finished(town, 1)
    await town.coordinator.transfer(first, node.id)
    await town.clock.sleep(1)
    assert await node.work.moves.move(KEY, other.id) == ""
    await town.until(lambda: not node.owns(KEY))
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    assert claim.member == other.id


async def test_a_stream_that_another_program_takes_and_releases_goes_on(town: Town) -> None:
    """Meanwhile its messages go back to the queue, from which that program receives for itself."""
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    stranger = Member("/services/worker-7", "worker-7", "sim://stranger", Load(room=0), foreign=True)
    await town.coordinator.join(stranger, 1e6)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    stolen = await town.coordinator.transfer(claim, stranger.id)
    await town.clock.sleep(1)
    assert not node.owns(KEY)
    await town.send(*numbers(1))
    await town.until(lambda: town.events("given back"))
    assert not node.owns(KEY)
    assert await node.work.moves.move(KEY, stranger.id) != ""
    await town.coordinator.release(stolen)
    await finished(town, 2)
    assert node.owns(KEY)


async def test_an_idle_stream_is_released_and_its_handler_closed(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    await town.clock.sleep(IDLE_S / 2)
    await town.send(*numbers(2))
    await finished(town, 3)
    await town.clock.sleep(IDLE_S - 1)
    assert node.owns(KEY)
    await town.until(lambda: not node.owns(KEY), 5)
    assert await town.coordinator.lookup(KEY) is None
    assert Sum.story == ["open k 0", "close k 3"]
    await town.send(*numbers(3))
    await finished(town, 4)
    assert Sum.story[-1] == "open k 3"


# --- moves


async def two(town: Town) -> tuple[TownNode, TownNode]:
    """Two nodes; the first owns the key and has done two messages."""
    a = await town.start(app_of(idle_timeout_s=1000.0), "a")
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    b = await town.start(app_of(), "b")
    await town.until(lambda: b.id in a.host.membership.view)
    Sum.story.clear()
    return a, b


async def test_a_move_warms_before_it_stops(town: Town) -> None:
    a, b = await two(town)
    warmed = []

    async def peek(key: str) -> Checkpoint | None:
        warmed.append((a.owns(KEY), b.owns(KEY)))
        return await town.state.peek(key)

    b.state.instead["peek"] = peek
    assert await a.work.moves.move(KEY, b.id) == ""
    await town.until(lambda: not a.owns(KEY))
    assert warmed[0] == (True, False)
    assert Sum.story[0] == "open k 1", "in the handle that it will have"
    await town.send(*numbers(2, 3))
    await finished(town, 4)
    assert b.owns(KEY)
    assert town.state.standing[KEY].epoch == 2
    assert a.host.stats.moved_out == 1
    hint = a.work.router.placing.hint(KEY)
    assert (hint.member, hint.epoch) == (b.id, 2), "whoever still comes here is told"


async def test_what_waits_moves_along_and_nothing_is_delivered_twice(town: Town) -> None:
    a, b = await two(town)
    await town.send(*numbers(3, 4, 5))  # behind a gap
    await town.until(lambda: sum(len(entry.owner.inbox) for entry in a.work.owners) == 3)
    assert await a.work.moves.move(KEY, b.id) == ""
    await town.until(lambda: b.owns(KEY) and not a.owns(KEY))
    await town.send(*numbers(2))
    await finished(town, 6)
    assert max(event.receipt.partition(".")[2] for event in town.events("received")) == "1"


async def test_a_transfer_whose_answer_was_lost_counts_if_it_took_effect(town: Town) -> None:
    a, b = await two(town)
    a.coordinator.instead["transfer"] = failing(
        1, OutcomeUnknown("lost"), town.coordinator.transfer, after_effect=True
    )
    assert await a.work.moves.move(KEY, b.id) == ""
    await town.until(lambda: not a.owns(KEY))
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    assert claim.member == b.id
    await town.send(*numbers(2))
    await finished(town, 3)
    assert b.owns(KEY)


async def test_a_transfer_that_is_refused_ends_the_ownership(town: Town) -> None:
    a, b = await two(town)

    async def refuse(claim: Claim, to: str) -> Claim:
        raise ClaimLost("stands no more")

    a.coordinator.instead["transfer"] = refuse
    assert await a.work.moves.move(KEY, b.id) == ""
    await town.until(lambda: not a.owns(KEY))
    await town.send(*numbers(2))
    await finished(town, 3)


async def test_a_move_that_an_operator_s_opening_ends_keeps_nobody_waiting_for_it(town: Town) -> None:
    """The last commit before it is fenced, and the stream is opened anew where it was."""
    a, b = await two(town)
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def commit(wanted: Commit) -> None:
        asked.set()
        await go_on.wait()
        await town.state.commit(wanted)

    a.state.instead["commit"] = commit
    await town.send(*numbers(2))
    await asked.wait()
    assert await a.work.moves.move(KEY, b.id) == ""
    moved = asyncio.ensure_future(a.work.owners.gone(KEY))
    await town.state.open(KEY, 1, "operator")
    go_on.set()
    await finished(town, 3)
    assert a.owns(KEY)
    assert moved.done()


async def test_a_target_that_dies_keeps_nobody_from_going_on(town: Town) -> None:
    a, b = await two(town)
    target = b.id

    async def die_first(claim: Claim, to: str) -> Claim:
        await town.crash(b)
        await town.coordinator.evict(target)
        return await town.coordinator.transfer(claim, to)

    a.coordinator.instead["transfer"] = die_first
    assert await a.work.moves.move(KEY, target) == ""
    await town.send(*numbers(2))
    await finished(town, 3)
    assert a.owns(KEY)
    assert town.state.standing[KEY].epoch == 1


async def test_a_target_that_can_t_warm_is_not_moved_to(town: Town) -> None:
    a, b = await two(town)

    async def broken(*args: Any) -> Any:
        raise Unavailable("the disk is full; make room")

    b.state.instead["peek"] = broken
    assert await a.work.moves.move(KEY, b.id) == "the state can't be read: the disk is full; make room"
    assert a.owns(KEY)
    await town.send(*numbers(2))
    await finished(town, 3)


async def test_a_target_loads_the_models_before_it_gets_the_stream(town: Town) -> None:
    a = await town.start(app_of(models="weights", idle_timeout_s=1000.0), "a")
    assert (a.work.load().models, a.work.load().warm) == ((), ())
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    assert (a.work.load().models, a.work.load().warm) == (("weights",), ("s",))
    b = await town.start(app_of(models="weights"), "b")
    await town.until(lambda: b.id in a.host.membership.view)
    await town.until(lambda: a.id in b.host.membership.view and b.host.membership.view[a.id].load.models)
    assert b.host.membership.view[a.id].load.is_warm(KEY), "others know it"
    Sum.story.clear()
    assert await a.work.moves.move(KEY, b.id) == ""
    assert a.owns(KEY)
    assert Sum.story == ["load weights", "open k 1"]
    await town.send(*numbers(2))
    await finished(town, 3)
    assert Sum.story.count("load weights") == 1


async def test_a_stream_that_never_committed_warms_too(town: Town) -> None:
    b = await town.start(app_of(models="weights"), "b")
    assert await b.work.assignment.warm("s", "s/new") == ""
    assert Sum.story == ["load weights", "open new 0"]


async def test_a_node_prepares_nothing_for_a_stream_that_it_owns(town: Town) -> None:
    a = await town.start(app_of(models="weights", idle_timeout_s=1000.0), "a")
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    opened = list(Sum.story)
    assert await a.work.assignment.warm("s", KEY) == ""
    await town.clock.sleep(2 * LIMITS.move_timeout_s + 1)
    assert Sum.story == opened, "its handler stays as it is"
    await town.send(*numbers(2))
    await finished(town, 3)
    assert Sum.story == opened


async def test_who_asks_while_a_stream_warms_is_told_how_it_ends(town: Town) -> None:
    node = await town.start(app_of())
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def peek(key: str) -> Checkpoint | None:
        asked.set()
        await go_on.wait()
        raise Unavailable("no")

    node.state.instead["peek"] = peek
    both = [asyncio.ensure_future(node.work.assignment.warm("s", KEY)) for _ in range(2)]
    await asked.wait()
    go_on.set()
    assert await asyncio.gather(*both) == ["the state can't be read: no"] * 2
    assert len(node.state.called("peek")) == 1
    assert sum(handle.streams for handle in node.work.pool.handles) == 0
    del node.state.instead["peek"]
    assert await node.work.assignment.warm("s", KEY) == "", "and may be asked again"


async def test_what_was_warmed_in_vain_is_let_go(town: Town) -> None:
    a, b = await two(town)
    assert await b.work.assignment.warm("s", KEY) == ""
    handles = [handle.streams for handle in b.work.pool.handles]
    assert sum(handles) == 1
    await town.clock.sleep(2 * LIMITS.move_timeout_s + 1)
    assert sum(handle.streams for handle in b.work.pool.handles) == 0
    assert Sum.story == ["open k 1", "close k 1"]
    assert a.owns(KEY)


async def test_what_was_warmed_for_a_stream_that_came_and_does_not_run_is_let_go(town: Town) -> None:
    a, b = await two(town)
    await town.send(*numbers(3))  # behind a gap
    await town.until(lambda: sum(len(entry.owner.inbox) for entry in a.work.owners) == 1)
    assert await a.work.moves.move(KEY, b.id) == ""
    await town.until(lambda: b.owns(KEY) and not a.owns(KEY))
    await town.clock.sleep(2 * LIMITS.move_timeout_s + 1)
    assert Sum.story == ["open k 1", "close k 1", "close k 1"]
    await town.send(*numbers(2))
    await finished(town, 4)
    assert Sum.story[3:] == ["open k 1"]


async def test_a_drain_moves_all_and_gives_back_the_rest(town: Town) -> None:
    a = await town.start(app_of(), "a")
    for i in range(20):
        await town.send(*numbers(0, 1, 2, key=f"k{i}"))
    await town.until_over()
    b = await town.start(app_of(), "b")
    await town.until(lambda: b.id in a.host.membership.view)
    await a.node.stop()
    town.nodes.remove(a)
    assert len(a.work.owners) == 0
    assert len(b.work.owners) == 20 or await town.coordinator.claims(b.id)
    for i in range(20):
        await town.send(*numbers(3, key=f"k{i}"))
    await town.until_over()
    for i in range(20):
        assert [r["sum"] for r in town.results(f"k{i}")] == [0, 1, 3, 6]
        assert town.state.standing[f"s/k{i}"].epoch == 2


async def test_the_last_node_frees_what_it_owns(town: Town) -> None:
    a = await town.start(app_of(), "a")
    await town.send(*numbers(0, 1), *numbers(3, 4))
    await town.until(lambda: len(town.results("k")) == 2)
    await a.node.stop()
    town.nodes.remove(a)
    assert await town.coordinator.claims() == []
    assert await town.coordinator.members() == []
    depth = await town.queue().depth()
    assert depth.in_flight == 0, "given back, not left to lapse"
    await town.start(app_of(), "b")
    await town.send(*numbers(2))
    await finished(town, 5)


# --- operators, slots, nodes


async def test_an_operator_s_word_counts_at_once(town: Town) -> None:
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    await pause(town.state, KEY)
    node.work.owners.poke(KEY)
    await town.send(*numbers(1))
    await town.clock.sleep(60)
    assert len(town.results("k")) == 1
    await resume(town.state, town.queue(), KEY)
    node.work.owners.poke(KEY)
    await finished(town, 2)


async def test_numbers_that_start_anew_in_a_paused_stream_are_known_wherever_it_is_resumed(
    town: Town,
) -> None:
    """The operator's commit ends the quiet time by which the new run was told."""
    app = app_of(idle_timeout_s=1e6, gap_timeout_s=20.0, restart_after_s=20.0)
    node = await town.start(app)
    await town.send(*numbers(0, 1))
    await finished(town, 2)
    await pause(town.state, KEY)
    node.work.owners.poke(KEY)
    await town.clock.sleep(30)
    await town.send(*numbers(0, 1))
    await town.clock.sleep(5)
    other = await town.start(app, "b")
    await town.until(lambda: other.id in node.host.membership.view)
    assert await node.work.moves.move(KEY, other.id) == ""
    await resume(town.state, town.queue(), KEY)
    other.work.owners.poke(KEY)
    await town.until(lambda: not town.queue().messages, 10)
    assert [result["n"] for result in town.results("k")] == [0, 1, 0, 1]
    assert other.owns(KEY)


async def test_a_slot_s_death_restores_its_streams_and_spends_no_try(town: Town) -> None:
    node = await town.start(app_of(max_tries=1), limits=msgspec.structs.replace(LIMITS, slots=1))
    keys = ["a", "b", "c"]
    for key in keys:
        await town.send(*numbers(0, 1, key=key))
    await town.until_over()
    await node.slots.slots[0].kill("the test said so")
    for key in keys:
        await town.send(*numbers(2, key=key))
    for key in keys:
        await finished(town, 3, key)
    assert Sum.story[3:] == ["open a 1", "open b 1", "open c 1"]


async def test_a_slot_that_hangs_spends_no_try_of_what_comes_while_it_is_killed(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, slots=1)
    node = await town.start(app_of(max_tries=1, timeout_s=2.0), limits=limits)
    for key in ("hangs", "good"):
        await town.send(*numbers(0, key=key))
    await town.until_over()
    slot = node.slots.slots[0]
    kill, killing, dumped = slot.kill, asyncio.Event(), asyncio.Event()

    async def kill_late(reason: str) -> str:
        killing.set()
        await dumped.wait()  # its stack is being dumped
        return await kill(reason)

    async def hang(slot: MemorySlot) -> None:
        await asyncio.Event().wait()

    slot.kill = kill_late  # type: ignore[method-assign]
    [message] = numbers(1, key="hangs")
    town.deeds[json.dumps(message).encode()] = hang
    await town.send(message)
    await killing.wait()
    await town.send(*numbers(1, key="good"))
    good = node.work.owners.get("s/good")
    assert good is not None
    await town.until(lambda: len(good.owner.inbox))
    await town.clock.sleep(1)
    dumped.set()
    await town.until_over()
    assert [letter.body for letter in town.letters()] == [json.dumps(message).encode()]
    assert [r["n"] for r in town.results("good")] == [0, 1]


async def test_a_message_that_kills_nodes_is_passed_over_and_no_other(town: Town) -> None:
    poison = b'{"key": "k", "n": 1}'
    lives = [0]
    loop = asyncio.get_running_loop()
    dying: list[asyncio.Task[None]] = []

    async def kill(slot: MemorySlot) -> None:
        lives[0] += 1
        dying.append(loop.create_task(town.crash(town.nodes[0])))
        await asyncio.Event().wait()

    town.deeds[poison] = kill
    await town.send(*numbers(0, 1, 2), *numbers(0, 1, key="other"))
    life = 0
    while town.queue().messages:
        if not town.nodes:
            life += 1
            await town.start(app_of(max_starts=3), f"life {life}")
        await town.clock.sleep(0.1)
        assert life < 20
    assert lives[0] == 4, "the first was laid to the head of its run"
    (letter,) = town.letters()
    assert letter.body == poison
    assert letter.reason == "poison: 3 openings ended while its handler ran (max_starts)"
    assert [r["n"] for r in town.results("k")] == [0, 2]
    assert [r["n"] for r in town.results("other")] == [0, 1]


async def test_an_opening_that_ended_while_it_waited_to_run_alone_keeps_no_other_from_it(town: Town) -> None:
    """Its stream is opened anew while another's head runs alone, and then waits for the same turn twice."""
    node = await town.start(app_of())
    owners = node.work.owners
    await node.work.quarantine.enter()  # another stream's head runs alone
    for epoch in range(ALONE_OPENINGS):
        await town.state.open(KEY, epoch, "one that died at work")
        await town.state.start(KEY, epoch + 1, Place(0, 0).name)
    await town.send(*numbers(0))
    await town.until(lambda: (entry := owners.get(KEY)) is not None and entry.owner.runs.at_risk)
    entry = owners.get(KEY)
    assert entry is not None
    epoch = entry.owner.epoch
    await town.state.open(KEY, epoch, "operator")
    owners.poke(KEY)
    await town.until(lambda: entry.owner.epoch > epoch and entry.owner.runs.at_risk)
    node.work.quarantine.leave()
    await finished(town, 1)
    await town.until(lambda: not node.work.quarantine.is_taken)


async def begun_often(town: Town, key: str, *ns: int, often: int = ALONE_OPENINGS) -> None:
    """Have openings of a key die at these messages, each so often; unless told, until it is to run alone."""
    for epoch in range(often * len(ns)):
        await town.state.open(key, epoch, "one that died at work")
        await town.state.start(key, epoch + 1, Place(0, ns[epoch % len(ns)]).name)


@pytest.mark.parametrize("size", ["fits", "is too large"])
async def test_a_head_that_runs_alone_does_so_until_the_store_has_its_commit(size: str, town: Town) -> None:
    """A suspect of another stream may end the node before that, and the store would blame this one too. The
    next head of the same stream needs a turn of its own."""
    node = await town.start(app_of())
    answer, asked = asyncio.Event(), asyncio.Event()

    async def commit(wanted: Commit) -> None:
        if not asked.is_set():
            asked.set()
            await answer.wait()
            if size == "is too large":
                raise TooLarge("4 MiB of results")
        await town.state.commit(wanted)

    node.state.instead["commit"] = commit
    await begun_often(town, KEY, 0, 1)
    await begun_often(town, "s/other", 0)
    await town.send(*numbers(0, 1))
    await asked.wait()
    await town.send(*numbers(0, key="other"))
    await town.until(
        lambda: (entry := node.work.owners.get("s/other")) is not None and entry.owner.runs.at_risk
    )
    await town.clock.sleep(1)
    started = [args[::2] for args in node.state.called("start")]
    head, next_ = Place(0, 0).name, Place(0, 1).name
    assert started == [(KEY, head)]
    answer.set()
    await town.until_over()
    started = [args[::2] for args in node.state.called("start")]
    assert started == [(KEY, head), ("s/other", head), (KEY, next_)]
    await finished(town, 2)
    assert not node.work.quarantine.is_taken


async def test_nothing_runs_beside_a_head_that_the_next_death_is_blamed_on(town: Town) -> None:
    """A healthy message was called poison, because those of other streams ended each node that it was on."""
    node = await town.start(app_of(max_starts=3))
    suspect, other = b'{"key": "k", "n": 0}', b'{"key": "other", "n": 0}'
    runs: dict[bytes, asyncio.Event] = {body: asyncio.Event() for body in (suspect, other)}
    go_on, answer, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run_until_told(slot: MemorySlot) -> None:
        runs[suspect].set()
        await go_on.wait()

    async def run(slot: MemorySlot) -> None:
        runs[other].set()

    async def commit(wanted: Commit) -> None:
        asked.set()
        await answer.wait()
        await town.state.commit(wanted)

    town.deeds |= {suspect: run_until_told, other: run}
    node.state.instead["commit"] = commit
    await begun_often(town, KEY, 0, often=2)
    await town.send(*numbers(0))
    await runs[suspect].wait()
    await town.send(*numbers(0, key="other"))
    await town.until(lambda: (entry := node.work.owners.get("s/other")) is not None and entry.kept_waiting)
    assert [waits.kind for waits in node.work.waiting_streams.all()] == ["suspect"]
    go_on.set()
    await asked.wait()
    await town.clock.sleep(1)
    assert not runs[other].is_set(), "the store has yet to take the suspect's commit"
    assert "s/other" not in [args[0] for args in node.state.called("start")], (
        "it doesn't run, so is not counted"
    )
    answer.set()
    await town.until_over()
    assert runs[other].is_set()
    assert town.letters() == []


async def test_a_node_that_lost_its_claim_amid_a_run_and_lives_is_no_death_of_the_head(town: Town) -> None:
    """A healthy message was called poison, because its node lost its membership while it ran."""
    node = await town.start(app_of(max_starts=3))
    runs: list[asyncio.Event] = []

    async def run(slot: MemorySlot) -> None:
        runs.append(asyncio.Event())
        if len(runs) == 1:
            await runs[0].wait()

    town.deeds |= {b'{"key": "k", "n": 0}': run}
    await begun_often(town, KEY, 0, often=2)
    await town.send(*numbers(0))
    await town.until(lambda: len(runs) == 1)
    node.work.owners.drop_all()
    runs[0].set()
    await town.until_over()
    assert len(runs) == 2
    assert town.letters() == []


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_claim_that_passed_on_before_it_was_known_to_be_ours_is_given_up(
    town: Town, is_gone: bool
) -> None:
    node = await town.start(app_of())
    me, stranger = node.host.membership.id, Member("x", "x", "", Load(room=0), foreign=True)
    await town.clock.sleep(1)  # it watches claims by now
    await town.coordinator.join(stranger, 1e6)
    ours = await town.coordinator.claim(KEY, me)
    passed = await town.coordinator.transfer(ours, stranger.id)
    if not is_gone:
        await town.coordinator.release(passed)
    await town.clock.sleep(1)  # the news of both comes
    assert node.work.owners.adopt("s", KEY, ours)
    await town.clock.sleep(1)
    assert (node.work.owners.get(KEY) is None) is is_gone
    standing = await town.coordinator.lookup(KEY)
    assert standing is not None
    assert standing.member == (stranger.id if is_gone else me)


async def test_a_late_answer_sets_no_claim_back(town: Town) -> None:
    node = await town.start(app_of())
    old = await town.coordinator.claim(KEY, node.id)
    now = await town.coordinator.transfer(old, node.id)
    for claim in (now, old):
        assert node.work.owners.adopt("s", KEY, claim)
    entry = node.work.owners.get(KEY)
    assert entry is not None
    assert entry.claim == now


async def test_an_answer_of_an_opening_that_is_over_changes_nothing(town: Town) -> None:
    """The store's answer to a start comes after the stream was opened anew."""
    node = await town.start(app_of())
    answer, asked = asyncio.Event(), asyncio.Event()
    starts = []

    async def start(key: str, epoch: int, head: str) -> int:
        starts.append(epoch)
        if len(starts) == 1:
            asked.set()
            await answer.wait()
            raise Fenced("too late", 9)
        return await town.state.start(key, epoch, head)

    node.state.instead["start"] = start
    await town.send(*numbers(0, 1))
    await asked.wait()
    node.work.owners.vanished()
    await town.clock.sleep(1)
    answer.set()
    await finished(town, 2)


def late(slot: MemorySlot, call: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the slot's first answer to a call come when the test says so; when it is asked, and that word."""
    asked, answer, then = asyncio.Event(), asyncio.Event(), getattr(slot, call)

    async def hold_back(*args: Any, **watched: Any) -> None:
        try:
            await then(*args, **watched)
        finally:
            setattr(slot, call, then)
            asked.set()
            await answer.wait()

    setattr(slot, call, hold_back)
    return asked, answer


def closings(slot: MemorySlot) -> list[str]:
    """The streams that the slot is told to close from now on."""
    told, close = [], slot.close

    async def note(stream: str, key: str, *, call: SlotCall | None = None) -> None:
        told.append(f"{stream}/{key}")
        await close(stream, key, call=call)

    slot.close = note  # type: ignore[method-assign]
    return told


@pytest.mark.parametrize("call, models", [("load", "weights"), ("open", ())])
async def test_a_stream_that_is_let_go_while_its_slot_takes_it_is_closed_there(
    town: Town, call: str, models: Any
) -> None:
    node = await town.start(app_of(models=models), limits=msgspec.structs.replace(LIMITS, slots=1))
    slot = node.slots.slots[0]
    asked, answer = late(slot, call)
    told = closings(slot)
    await town.send(*numbers(0))
    await asked.wait()
    node.work.owners.adopt = lambda *args: False  # type: ignore[method-assign]  # it goes elsewhere
    node.work.owners.drop_all()
    await town.clock.sleep(1)
    assert told == []
    answer.set()
    await town.clock.sleep(1)
    assert told == [KEY], "else its models are in use for ever"
    assert [handle.streams for handle in node.work.pool.handles] == [0]


@pytest.mark.parametrize("call", ["load", "open"])
async def test_a_stream_that_came_again_is_not_closed_by_who_had_it_before(town: Town, call: str) -> None:
    limits = msgspec.structs.replace(LIMITS, slots=1)
    node = await town.start(app_of(models="weights", max_tries=1), limits=limits)
    asked, answer = late(node.slots.slots[0], call)
    await town.send(*numbers(0))
    await asked.wait()
    node.work.owners.drop_all()
    await town.until(lambda: (entry := node.work.owners.get(KEY)) is not None and entry.handle is not None)
    answer.set()
    await finished(town, 1)
    await town.send(*numbers(1))
    await finished(town, 2)


async def test_a_stream_that_is_let_go_before_its_models_are_asked_for_takes_no_seat(town: Town) -> None:
    node = await town.start(app_of(models="weights"))
    await town.send(*numbers(0))
    await finished(town, 1)
    owners = node.work.owners
    entry = owners.get(KEY)
    assert entry is not None
    generation = entry.owner.generation
    owners.drop_all()
    await node.work.loader.load(entry, generation, LoadModels())
    assert [handle.streams for handle in node.work.pool.handles] == [0, 0]


# --- what is hidden in the queue


async def test_what_was_just_received_is_hidden_for_no_longer_than_a_look_takes(town: Town) -> None:
    """A node that stands still may have receives open: what they take is missed for so long."""
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await finished(town, 1)
    hidden_s = {args[2] for args in node.queues["s"].called("receive")}
    assert hidden_s == {max(2 * LIMITS.ttl_s, LIMITS.visibility_s / 3)} == {10.0}


async def test_what_a_node_works_at_is_hidden_for_as_long_as_it_takes(town: Town) -> None:
    node = await town.start(app_of(timeout_s=300.0))

    async def take_long(slot: MemorySlot) -> None:
        await town.clock.sleep(3 * LIMITS.visibility_s)

    [message] = numbers(0)
    town.deeds[json.dumps(message).encode()] = take_long
    await town.send(message)
    await finished(town, 1)
    assert len(town.events("received")) == 1
    assert node.owns(KEY)


# --- what comes late


async def test_a_preparation_that_comes_late_leaves_the_handler_of_the_owner_in_place(town: Town) -> None:
    """It brings the state of before, which would be committed as the present one."""
    a, b = await two(town)
    read = asyncio.Event()

    async def peek(key: str) -> Checkpoint | None:
        checkpoint = await town.state.peek(key)
        if not read.is_set():
            read.set()
            await town.clock.sleep(4)
        return checkpoint

    b.state.instead["peek"] = peek
    moving = asyncio.ensure_future(a.work.moves.move(KEY, b.id))
    await read.wait()
    await town.send(*numbers(2, 3))
    await town.until(lambda: len(town.results("k")) == 4)
    await town.crash(a)
    await town.send(*numbers(4))
    await town.until(lambda: len(town.results("k")) == 5)
    await town.clock.sleep(5)
    await town.send(*numbers(5))
    await finished(town, 6)
    moving.cancel()


async def test_a_claim_that_passed_on_before_it_was_known_opens_nothing(town: Town) -> None:
    a, b = await two(town)
    claim = await town.coordinator.lookup(KEY)
    assert claim is not None
    passed = await town.coordinator.transfer(claim, b.id)
    await town.coordinator.transfer(passed, a.id)
    await town.clock.sleep(1)

    async def claim_slowly(*args: Any) -> Claim:
        await town.clock.sleep(0.05)  # the store answers sooner
        return await town.coordinator.claim(*args)

    b.coordinator.instead["claim"] = claim_slowly
    opened = len(b.state.called("open"))
    b.work.owners.adopt("s", KEY, passed)
    await town.send(*numbers(2))
    await finished(town, 3)
    assert len(b.state.called("open")) == opened
    assert a.host.stats.fenced == 0


@pytest.mark.parametrize("what", ["queue", "coordinator"])
async def test_what_lay_in_the_queue_while_no_node_received_is_not_skipped(town: Town, what: str) -> None:
    nodes = await two(town)

    async def down(*args: Any) -> Any:
        await town.clock.sleep(0.2)
        raise Unavailable("down")

    await town.send(*numbers(3))
    await town.clock.sleep(1)
    for node in nodes:
        failing_service = node.queues["s"] if what == "queue" else node.coordinator
        failing_service.instead["receive" if what == "queue" else "join"] = down
    if what == "coordinator":
        town.coordinator.forget()
    await town.clock.sleep(7)  # a receive that was open may bring more
    await town.send(*numbers(2))
    await town.clock.sleep(3 * GAP_S)
    for node in nodes:
        node.queues["s"].instead.clear()
        node.coordinator.instead.clear()
    await finished(town, 4)


async def test_a_late_message_of_an_earlier_run_holds_up_no_later_run_of_a_fifo_queue(town: Town) -> None:
    """Its number is the higher one, so it comes after the later run's first; but it runs before that."""
    queue = town.add_fifo_queue()

    async def send_runs(*runs: int) -> None:
        for run in runs:
            await queue.send([Outgoing(json.dumps({"key": "k", "n": run}).encode(), key="k")])

    await send_runs(1)
    await town.start(app_of(seq="queue", first_seq="lowest", run="n"))
    await town.until_over()
    await send_runs(2, 1, 2)
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [1, 1, 2, 2]


async def test_an_opening_that_was_answered_too_late_tells_of_no_lost_commits(town: Town) -> None:
    """A later opening has committed since, so that what the first one found is old."""
    node = await town.start(app_of())
    await town.send(*numbers(0))
    await town.until(lambda: node.state.called("open") and len(town.results("k")) == 1)
    entry = node.work.owners.get(KEY)
    assert entry is not None
    late = asyncio.Event()

    async def open_late(*args: Any) -> Any:
        found = await town.state.open(*args)
        if not late.is_set():
            late.set()
            await town.clock.sleep(3)
        return found

    node.state.instead["open"] = open_late
    entry.owner.fenced(town.clock.monotonic())
    node.work.owners.poke(KEY)
    await late.wait()
    entry.owner.vanished()
    node.work.owners.poke(KEY)
    await town.send(*numbers(1, 2))
    await town.until(lambda: len(town.results("k")) == 3)
    await town.clock.sleep(5)
    assert losses(node) == []
    assert entry.last is not None
    assert entry.last.number == town.state.standing[KEY].number


async def test_every_command_of_an_owner_has_a_performer(town: Town) -> None:
    node = await town.start(app_of())
    assert node.work.owners.performed == {*get_args(Command)}
