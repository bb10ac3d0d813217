"""Dead letters of tasks: which are meant, and what a file of them holds."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.cluster.effect_dead_letters import dead_letter_of, effect_again
from holdfast.common.acts import decode_effects, effect_id, encode_effects
from holdfast.errors import ConfigError, OperationRefused, TooLarge, Unavailable
from holdfast.ports.backup import Kept
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.ports.target import OutgoingEffect
from holdfast.rules.tasks.task import EffectsLeft, EndAttempt, StartAttempt, State, Task
from holdfast.services.file.backup import FileBackup
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.tasks.dead_letters import Choice, TaskDeadLetters
from holdfast.tasks.discovery import Directory, NodeEntry, announced
from holdfast.tasks.names import task_queue
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer
from simulator.loop import SimClock
from tests.cluster.fakes import Log

APP = "reports"
LETTER = DeadLetter("publish/t-1", b"\xff\x00", "failed: no such table", detail="line 3", key="t-1", at=100.0)


@pytest.mark.parametrize(
    "choice, holds",
    [
        ({}, True),
        ({"task_id": "t-1"}, True),
        ({"task_id": "t-2"}, False),
        ({"since": 100.0}, True),
        ({"since": 100.1}, False),
        ({"until": 100.0}, False),
        ({"error": "no such (table|file)"}, True),
        ({"error": "^line 3$"}, False),
        ({"error": r"(?m)^line 3$"}, True),
        ({"error": "refused"}, False),
        ({"task_id": "t-1", "error": "refused"}, False),
    ],
)
def test_dead_letters_are_chosen_by_trace_time_and_error(choice: dict[str, Any], holds: bool) -> None:
    assert Choice(**choice).holds(LETTER) is holds


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match="isn't a regular expression"):
        Choice(error="(")


@pytest.mark.parametrize("choice", [{"since": "2h"}, {"until": None}, {"task_id": 5}, {"error": 5}])
def test_what_is_of_another_type_is_refused(choice: dict[str, Any]) -> None:
    (setting,) = choice
    with pytest.raises(ConfigError, match=rf"choice: {setting} is .*; it must be a"):
        Choice(**choice)


class Rig:
    """Dead letters in queues in memory, of an app of which a node runs one type more than the store knows."""

    def __init__(self) -> None:
        self.clock = SimClock(Random(1), "c")
        self.queues: dict[str, MemoryQueue] = {}
        self.missing = set[str]()
        self.log = Log()
        self.store = MemoryTasks(self.clock)
        self.registry = MemoryRegistry(self.clock)
        self.directory = Directory(self.registry, APP, self.clock)
        self.producer = Producer(APP, self.queue, self.store, self.clock, self.log)
        self.letters = TaskDeadLetters(APP, self.queue, self.store, self.directory, self.producer, self.log)

    def queue(self, name: str) -> MemoryQueue:
        if name in self.missing:
            raise ConfigError(f"no queue {name!r}; make it")
        return self.queues.setdefault(name, MemoryQueue(self.clock))

    async def bury(self, task_type: str, *reasons: str) -> None:
        """One letter for each reason, of a task that failed."""
        await self.store.queue([Task(f"{task_type}-{n}", task_type) for n in range(len(reasons))])
        queue = self.queue(task_queue(APP, task_type))
        for n, reason in enumerate(reasons):
            task_id = f"{task_type}-{n}"
            (task,) = await self.store.start([StartAttempt(task_id, task_type, "m", "n", 1, 30.0)])
            await self.store.end([EndAttempt(task_id, task.epoch, State.FAILED)])
            await queue.bury([DeadLetter(f"{task_type}/{task_id}", b"{}", reason, key=task_id)])


async def test_letters_of_types_are_found_by_what_they_say(tmp_path: Path) -> None:
    rig = Rig()
    for kind in ("publish", "mail.send", "other"):
        await rig.bury(kind, *["refused", "no such table"] * 300)  # more than a page
    backup = FileBackup(tmp_path / "letters.jsonl")
    refused = Choice(error="refused")
    assert await rig.letters.back_up(backup, ["publish", "mail.send"], refused) == 600
    found = [kept async for kept in backup.dead_letters(APP)]
    assert {kept.dead_letter.reason for kept in found} == {"refused"}
    assert {kept.type for kept in found} == {"publish", "mail.send"}
    assert await rig.letters.back_up(backup, (), Choice()) == 1200
    assert await rig.letters.redrive(["publish"], refused) == 300
    assert await rig.letters.redrive((), refused) == 600
    assert await rig.letters.redrive_kept(backup, (), Choice()) == (900, 900)
    assert not any(queue.letters for queue in rig.queues.values())


async def test_types_that_nodes_run_are_known_too(tmp_path: Path) -> None:
    rig = Rig()
    entry = NodeEntry("node-1", "http://127.0.0.1:1", ("odd",))
    await rig.directory.change(lambda known: announced(known, "m", entry, ["m"], {}))
    await rig.queue(task_queue(APP, "odd")).bury([DeadLetter("odd/1", b"{ no json", "malformed")])
    backup = FileBackup(tmp_path / "letters.jsonl")
    assert await rig.letters.back_up(backup, (), Choice()) == 1
    assert await rig.letters.redrive((), Choice()) == 1
    assert await rig.letters.redrive_kept(backup, (), Choice(error="malformed")) == (1, 0)


async def test_the_record_of_a_batch_is_taken_for_no_type_with_dead_letters(tmp_path: Path) -> None:
    rig = Rig()
    await rig.bury("publish", "refused")
    await rig.producer.send_batch([Order(task_type="publish")])
    backup = FileBackup(tmp_path / "letters.jsonl")
    assert await rig.letters.back_up(backup, (), Choice()) == 1
    assert await rig.letters.redrive((), Choice()) == 1
    assert rig.log.entries == []


async def test_a_type_without_a_queue_stops_no_other(tmp_path: Path) -> None:
    rig = Rig()
    await rig.bury("publish", "refused")
    await rig.store.queue([Task("typo", "pubish"), Task("odd", "briefs"), Task("long", "x" * 99)])
    rig.missing.add(task_queue(APP, "pubish"))
    backup = FileBackup(tmp_path / "letters.jsonl")
    assert await rig.letters.back_up(backup, (), Choice()) == 1
    await backup.add([Kept(APP, "pubish", LETTER)])
    with pytest.raises(OperationRefused, match="not done for pubish; done for all others: no queue"):
        await rig.letters.redrive_kept(backup, (), Choice())
    assert rig.store.standing["publish-0"].state is State.QUEUED, "the other was sent"
    assert await rig.letters.redrive((), Choice()) == 0
    told = {fields["type"] for _, event, fields in rig.log.entries if "dead letters" in event}
    assert told == {"pubish", "briefs", "x" * 99}
    with pytest.raises(OperationRefused, match="no queue"):
        await rig.letters.back_up(backup, ["pubish"], Choice())


async def test_a_queue_that_does_not_answer_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    for kind in ("first", "second"):
        await rig.bury(kind, "refused")

    async def away(limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        raise Unavailable("timed out")

    monkeypatch.setattr(rig.queue(task_queue(APP, "first")), "dead_letters", away)
    backup = FileBackup(tmp_path / "letters.jsonl")
    with pytest.raises(Unavailable, match="not done for first; done for all others: timed out"):
        await rig.letters.back_up(backup, (), Choice())
    assert [kept.type async for kept in backup.dead_letters(APP)] == ["second"]
    with pytest.raises(Unavailable, match="not done for first"):
        await rig.letters.redrive((), Choice())
    assert rig.store.standing["second-0"].state is State.QUEUED


async def test_a_letter_that_can_t_be_sent_again_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    await rig.bury("publish", *["refused"] * 3)
    queue = rig.queue(task_queue(APP, "publish"))
    redrive = queue.redrive

    async def refusing(ids: Sequence[str]) -> int:
        if "publish/publish-1" in ids:
            raise TooLarge("its attributes leave no room")
        return await redrive(ids)

    monkeypatch.setattr(queue, "redrive", refusing)
    assert await rig.letters.redrive((), Choice()) == 2
    assert list(queue.letters) == ["publish/publish-1"]
    assert "cannot resend dead letter" in rig.log.events("warning")


def effect_letter(number: int, task_id: str = "t") -> DeadLetter:
    sender = f"publish/{task_id}"
    effect = OutgoingEffect(
        effect_id(sender, 1, 0, number), f"https://a/{number}", "k", b"{}", sender, task_id, 3
    )
    return dead_letter_of(effect, "publish", 0.0)


async def succeeded(rig: Rig, task_id: str = "t", *, told: bool = True) -> None:
    """Have a task succeed."""
    [task] = await rig.store.start([StartAttempt(task_id, "publish", "m", "n", 1, 30.0)])
    await rig.store.end([EndAttempt(task_id, task.epoch, State.SUCCEEDED)])
    if told:
        await rig.store.briefed([(task_id, task.epoch)])


async def test_effects_that_were_refused_are_handed_over_again_in_order(tmp_path: Path) -> None:
    rig = Rig()
    for task_id in ("t", "u"):
        await succeeded(rig, task_id)
    queue = rig.queue(task_queue(APP, "publish"))
    for number in (0, 1, 2):
        rig.clock.set_by_s += 1.0
        await queue.bury([effect_letter(number)])
    await queue.bury([effect_letter(0, "u")])
    assert await rig.letters.redrive(["publish"], Choice()) == 4
    assert not queue.letters
    pending = decode_effects(rig.store.standing["t"].effects)
    assert [(each.id, each.target, each.key, each.hops) for each in pending] == [
        (effect_id("publish/t", 1, 0, number), f"https://a/{number}", "k", 3) for number in range(3)
    ]
    assert len(queue.messages) == 2, "for a node to look at each of the two tasks"
    assert {message.attributes["id"] for message in queue.messages.values()} == {"t", "u"}


async def test_effects_in_a_backup_are_handed_over_again_too(tmp_path: Path) -> None:
    rig = Rig()
    await succeeded(rig)
    await rig.queue(task_queue(APP, "publish")).bury([effect_letter(0), effect_letter(0, "unknown")])
    backup = FileBackup(tmp_path / "letters.jsonl")
    assert await rig.letters.back_up(backup, (), Choice()) == 2
    assert await rig.letters.redrive_kept(backup, ["publish"], Choice()) == (1, 1)
    assert [each.target for each in decode_effects(rig.store.standing["t"].effects)] == ["https://a/0"]


async def test_effects_are_handed_over_again_though_the_call_before_was_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each step: a letter stays until the effect is in the record, and a message for it sent."""
    for cut_off in ("bury", "purge", "send"):
        rig = Rig()
        await succeeded(rig)
        queue = rig.queue(task_queue(APP, "publish"))
        await queue.bury([effect_letter(0)])

        async def away(*args: object) -> None:
            raise Unavailable("no connection")

        with monkeypatch.context() as patch:
            patch.setattr(queue, cut_off, away)
            with pytest.raises(Unavailable):
                await rig.letters.redrive(["publish"], Choice())
        assert queue.letters
        assert await rig.letters.redrive(["publish"], Choice()) in (1, 2)
        assert not queue.letters
        assert [each.id for each in decode_effects(rig.store.standing["t"].effects)] == [
            effect_letter(0).attributes["effect"]
        ]
        assert len(queue.messages) == 1


async def test_effects_wait_until_others_of_their_task_are_taken() -> None:
    rig = Rig()
    await succeeded(rig)
    queue = rig.queue(task_queue(APP, "publish"))
    await queue.bury([effect_letter(0)])
    await rig.letters.redrive(["publish"], Choice())
    await queue.bury([effect_letter(1)])
    assert await rig.letters.redrive(["publish"], Choice()) == 0
    assert list(queue.letters) == [effect_letter(1).id]
    assert "cannot resend dead letter" in rig.log.events("warning")


async def test_an_effect_of_a_task_that_is_refused_again_before_its_letter_is_gone_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    await succeeded(rig)
    queue = rig.queue(task_queue(APP, "publish"))
    await queue.bury([effect_letter(0)])
    send = queue.send

    async def refused_at_once(messages: Sequence[Outgoing]) -> list[str]:
        ids = await send(messages)
        await queue.bury([effect_letter(0)])
        await rig.store.handed_over([EffectsLeft("t", rig.store.standing["t"].epoch)])
        return ids

    monkeypatch.setattr(queue, "send", refused_at_once)
    assert await rig.letters.redrive(["publish"], Choice()) == 1
    assert list(queue.letters) == [effect_letter(0).id]


async def test_an_effect_is_sent_again_though_its_node_has_yet_to_note_that_its_letter_is_sent() -> None:
    rig = Rig()
    [task] = await rig.store.start([StartAttempt("t", "publish", "m", "n", 1, 30.0)])
    letters = [effect_letter(0), effect_letter(1)]
    marked = [msgspec.structs.replace(effect_again(each, 0.0), refused="no") for each in letters]
    await rig.store.end([EndAttempt("t", task.epoch, State.SUCCEEDED, effects=encode_effects(marked))])
    await rig.store.briefed([("t", task.epoch)])
    queue = rig.queue(task_queue(APP, "publish"))
    await queue.bury(letters[:1])
    assert await rig.letters.redrive(["publish"], Choice()) == 1
    assert not queue.letters
    await rig.store.handed_over([EffectsLeft("t", task.epoch)])
    pending = decode_effects(rig.store.standing["t"].effects)
    assert [(each.id, each.refused) for each in pending] == [(marked[0].id, ""), (marked[1].id, "no")]
    assert len(queue.messages) == 1, "for a node to look at the task"


async def test_an_effect_that_its_node_has_yet_to_note_waits_while_others_are_pending() -> None:
    rig = Rig()
    [task] = await rig.store.start([StartAttempt("t", "publish", "m", "n", 1, 30.0)])
    letter, other = effect_letter(0), effect_again(effect_letter(1), 0.0)
    marked = msgspec.structs.replace(effect_again(letter, 0.0), refused="no")
    await rig.store.end(
        [EndAttempt("t", task.epoch, State.SUCCEEDED, effects=encode_effects([marked, other]))]
    )
    await rig.store.briefed([("t", task.epoch)])
    queue = rig.queue(task_queue(APP, "publish"))
    await queue.bury([letter])
    assert await rig.letters.redrive(["publish"], Choice()) == 0
    assert list(queue.letters) == [letter.id]


async def test_effects_of_a_task_whose_outcome_is_not_told_yet_wait() -> None:
    rig = Rig()
    await succeeded(rig, told=False)
    queue = rig.queue(task_queue(APP, "publish"))
    await queue.bury([effect_letter(0)])
    assert await rig.letters.redrive(["publish"], Choice()) == 0
    assert (len(queue.letters), len(queue.messages)) == (1, 0)


async def test_an_effect_that_was_refused_is_not_sent_as_a_task(tmp_path: Path) -> None:
    rig = Rig()
    effect = dead_letter_of(
        OutgoingEffect("0" * 32, "https://a", "", b"{}", "publish/t", "t"), "publish", 1.0
    )
    await rig.bury("publish", "refused")
    queue = rig.queue(task_queue(APP, "publish"))
    await queue.bury([effect])
    backup = FileBackup(tmp_path / "letters.jsonl")
    assert await rig.letters.back_up(backup, (), Choice()) == 2
    assert await rig.letters.redrive(["publish"], Choice()) == 1
    assert await rig.letters.redrive_kept(backup, ["publish"], Choice(task_id="t")) == (0, 1)
    assert list(queue.letters) == [effect.id]
    assert rig.log.events("warning").count("cannot resend dead letter") == 2


async def test_a_listing_that_can_t_be_read_hides_no_letters(tmp_path: Path) -> None:
    rig = Rig()
    await rig.bury("publish", "refused")
    await rig.registry.put(f"apps/{APP}", b"no listing", 0)
    assert await rig.letters.back_up(FileBackup(tmp_path / "letters.jsonl"), (), Choice()) == 1


async def test_of_a_task_that_failed_twice_the_last_letter_is_sent(tmp_path: Path) -> None:
    rig = Rig()
    backup = FileBackup(tmp_path / "letters.jsonl")
    again = msgspec.structs.replace(LETTER, body=b"again", reason="failed: refused", at=200.0)
    await backup.add([Kept(APP, "publish", letter) for letter in (again, LETTER)])
    assert await rig.letters.redrive_kept(backup, ["other"], Choice()) == (0, 0)
    assert await rig.letters.redrive_kept(backup, ["publish"], Choice()) == (1, 0)
    (message,) = await rig.queue(task_queue(APP, "publish")).receive(10, 0.0, 30.0, "m")
    assert message.body == b"again"
