"""Dead letters of effects, which go to their targets again, and to nowhere that somebody else names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.cluster.effect_dead_letters import dead_letter_of
from holdfast.common.acts import effect_id
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter
from holdfast.ports.target import OutgoingEffect
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.state import MemoryState
from holdfast.streams import operations
from holdfast.streams.redrive import redrive
from tests.streams.test_operations import KEY, clock, commit, queue, state  # noqa: F401 (fixtures)

REFUSED = OutgoingEffect(
    effect_id(KEY, 1, 1, 0), "https://hooks.example.com/a", "door", b"{}", KEY, "0:1", 3, "it said 400"
)
LETTER = dead_letter_of(REFUSED, "detect", 7.0)
MESSAGE = DeadLetter(f"{KEY}:0:2", b"2", "failed", {}, "", "detect", "cam-1", 0, "2")


async def nobody(key: str) -> None:
    """No node has any of these streams."""


def fail(where: str, error: HoldfastError) -> None:
    """No letter may stay."""
    pytest.fail(f"{where}: {error}")


class Failures(list[tuple[str, str]]):
    """What is told of letters that stay."""

    def __call__(self, where: str, error: HoldfastError) -> None:
        self.append((where, str(error)))


def test_a_letter_tells_where_its_effect_was_to_go_and_of_which_stream_it_is() -> None:
    assert LETTER.id == f"{KEY}:{REFUSED.id}"
    assert LETTER.attributes == {
        "effect": REFUSED.id,
        "target": "https://hooks.example.com/a",
        "target_key": "door",
        "hops": "3",
    }
    assert (LETTER.stream, LETTER.key, LETTER.seq, LETTER.reason) == ("detect", "cam-1", "0:1", "it said 400")


async def test_an_effect_goes_to_its_target_again_with_its_id(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
    clock: Clock,  # noqa: F811
) -> None:
    await commit(state, due=0.0)
    await queue.bury([LETTER, MESSAGE])
    assert await redrive(state, queue, [LETTER.id, MESSAGE.id], nobody, fail) == 2
    standing = state.standing[KEY]
    [effect] = standing.effects
    assert (effect.id, effect.target, effect.key, effect.body) == (
        REFUSED.id,
        REFUSED.target,
        REFUSED.key,
        REFUSED.body,
    )
    assert (effect.cause, effect.hops, effect.refused, effect.number) == ("0:1", 3, "", standing.number)
    assert 0.0 < standing.due == effect.at <= clock.wall(), "so a node looks after it"
    assert queue.letters == {}
    assert [message.body for message in queue.messages.values()] == [b"2"], "and the message to its queue"


async def test_effects_whose_letters_each_call_must_search_share_their_calls(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await commit(state)
    letters = [
        dead_letter_of(msgspec.structs.replace(REFUSED, id=effect_id(KEY, 1, 1, place)), "detect", 7.0)
        for place in range(queue.max_batch)
    ]
    await queue.bury(letters)
    queue.hides_dead_letters = True
    searches: list[int] = []
    purge = queue.purge

    async def counted(ids: Sequence[str]) -> int:
        searches.append(len(ids))
        return await purge(ids)

    monkeypatch.setattr(queue, "purge", counted)
    assert await redrive(state, queue, [letter.id for letter in letters], nobody, fail) == len(letters)
    assert {effect.id for effect in state.standing[KEY].effects} == {
        letter.attributes["effect"] for letter in letters
    }
    assert searches == [len(letters)] * 2, "of the letters, and of what guards them"
    assert queue.letters == {}


async def test_a_redrive_that_is_repeated_adds_no_second_effect(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
) -> None:
    await commit(state, due=5.0)
    for _ in range(2):  # it ended before the letter was gone
        await queue.bury([LETTER])
        assert await redrive(state, queue, [LETTER.id], nobody, fail) == 1
    assert [effect.id for effect in state.standing[KEY].effects] == [REFUSED.id]
    assert state.standing[KEY].due == 5.0, "which is earlier"


async def test_what_a_sender_wrote_into_its_message_names_no_target(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
) -> None:
    await commit(state)
    forged = msgspec.structs.replace(
        LETTER, id=f"{KEY}:0:{REFUSED.id}", attributes={**LETTER.attributes, "target": "https://10.0.0.1"}
    )
    await queue.bury([forged])
    assert await redrive(state, queue, [forged.id], nobody, fail) == 1
    assert state.standing[KEY].effects == ()
    assert len(queue.messages) == 1, "it is a message, as it was"


async def test_the_letter_of_a_timer_is_no_message_and_stops_no_other(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
) -> None:
    await commit(state)
    fired = msgspec.structs.replace(REFUSED, target="", id=effect_id(KEY, 1, 2, 0), cause="wake:up:1.1")
    timer = dead_letter_of(fired, "detect", 8.0)
    await queue.bury([timer, LETTER, MESSAGE])
    failed = Failures()
    assert await redrive(state, queue, [timer.id, LETTER.id, MESSAGE.id], nobody, failed) == 2
    [(where, said)] = failed
    assert (where, "is of a timer, so it is no message" in said) == (timer.id, True)
    assert list(queue.letters) == [timer.id]


async def test_the_owner_of_an_effect_is_told_to_hand_it_over_even_if_a_later_letter_fails(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
) -> None:
    await commit(state)
    other = msgspec.structs.replace(REFUSED, sender="detect/gone", id=effect_id("detect/gone", 1, 1, 0))
    later = dead_letter_of(other, "detect", 8.0)
    await queue.bury([LETTER, later])
    told = list[str]()

    async def tell(key: str) -> None:
        told.append(key)

    failed = Failures()
    assert await redrive(state, queue, [LETTER.id, later.id], tell, failed) == 1
    assert failed == [(later.id, "no stream 'detect/gone' in the state store, so it stays")]
    assert told == [KEY]
    assert list(queue.letters) == [later.id]


async def test_an_effect_that_is_refused_again_before_its_letter_is_gone_keeps_it(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await commit(state)
    await queue.bury([LETTER])
    add_effect = operations.add_effect

    async def refused_at_once(*args: Any) -> Checkpoint:
        added = await add_effect(*args)
        await queue.bury([LETTER])
        return added

    monkeypatch.setattr(operations, "add_effect", refused_at_once)
    assert await redrive(state, queue, [LETTER.id], nobody, fail) == 1
    assert list(queue.letters) == [LETTER.id]


async def test_an_effect_whose_redrive_is_cut_off_is_sent_again_by_the_letter_that_stays(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await commit(state)
    await queue.bury([LETTER, MESSAGE])

    async def away(*_: Any) -> Checkpoint:
        raise Unavailable("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(operations, "add_effect", away)
        failed = Failures()
        assert await redrive(state, queue, [LETTER.id, MESSAGE.id], nobody, failed) == 1
        assert failed == [(LETTER.id, "no connection")]
    [stays] = queue.letters
    assert stays != LETTER.id
    assert await redrive(state, queue, [stays], nobody, fail) == 1
    assert not queue.letters
    assert [effect.id for effect in state.standing[KEY].effects] == [REFUSED.id]


async def test_an_effect_counts_as_sent_again_though_its_owner_cant_be_told(
    state: MemoryState,  # noqa: F811
    queue: MemoryQueue,  # noqa: F811
) -> None:
    await commit(state)
    await queue.bury([LETTER])

    async def tell(key: str) -> None:
        raise ConfigError("peer_tls_ca can't be read")

    failed = Failures()
    assert await redrive(state, queue, [LETTER.id], tell, failed) == 1
    assert failed == [(KEY, "peer_tls_ca can't be read")]
