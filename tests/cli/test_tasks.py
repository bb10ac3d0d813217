"""``holdfast tasks``, ``holdfast briefs``, and ``holdfast dlq`` for the letters of tasks."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import exits, output
from holdfast.cli.tasks import draw, progress_bars
from holdfast.operate import tasks
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.rules.tasks.task import EndAttempt, StartAttempt, State, Task
from holdfast.services.sqlite.tasks import SqliteTasks
from holdfast.tasks.discovery import Directory, NodeEntry, announced
from holdfast.tasks.names import event_queue, task_queue
from holdfast.tasks.outcome import outcome_of
from holdfast.tasks.wire import Envelope, SentTask, decode_task, encode_event
from holdfast.wiring.services import Services
from tests.command_line import Arrange, Holdfast

APP, TYPE = "reports", "report.publish"


def ended(
    trace: str, state: State = State.SUCCEEDED, detail: str = ""
) -> Callable[[Services], Awaitable[None]]:
    """A node that takes one task's message, and brings it to its end."""

    async def end(services: Services) -> None:
        store, queue = services.task_store(APP), services.queue(task_queue(APP, TYPE))
        (task,) = await store.start([StartAttempt(trace, TYPE, "m", "node-1", 3, 30.0)])
        (task,) = await store.end([EndAttempt(trace, task.epoch, state, b'{"pages":3}', detail)])  # type: ignore[assignment]
        for delivery in await queue.receive(10, 0.0, 30.0, "m"):
            message = decode_task(delivery.body, Envelope(app=APP, task_id="-", task_type=TYPE))
            if message.envelope.task_id != trace:
                await queue.give_back([delivery.receipt], 0.0)
                continue
            if state is not State.SUCCEEDED:
                at = services.clock.wall()
                letter = DeadLetter(f"{TYPE}/{trace}", delivery.body, detail, stream=TYPE, key=trace, at=at)
                await queue.bury([letter])
            await queue.delete([delivery.receipt])
        brief = encode_event(Envelope(app=APP, task_id=trace, task_type=TYPE), outcome_of(APP, task))
        await services.queue(event_queue(APP)).send([Outgoing(brief)])

    return end


async def bodies(services: Services) -> list[str]:
    """The bodies in the queue, which stay."""
    queue = services.queue(task_queue(APP, TYPE))
    found = await queue.receive(10, 0.0, 30.0, "looking")
    await queue.give_back([delivery.receipt for delivery in found], 0.0)
    default = Envelope(app=APP, task_id="-", task_type=TYPE)
    return sorted(decode_task(delivery.body, default).body.data.decode() for delivery in found)


def send(holdfast: Holdfast, *more: str) -> str:
    done = holdfast("tasks", "send", APP, TYPE, *more)
    assert done.code == exits.OK, done.err
    return done.out.strip()


@pytest.mark.slow
def test_what_is_sent_waits_and_is_shown(holdfast: Holdfast, arrange: Arrange[Any], place: Path) -> None:
    trace = send(holdfast, '{"customer": "acme"}', "--group", "acme")
    (place / "order.json").write_text('{"customer": "file"}')
    send(holdfast, "--file", "order.json")
    send(holdfast, "plain words", "--text")
    sent = holdfast("tasks", "send", APP, TYPE, "--trace-id", "mine", "--json").lines
    assert sent == [{"trace_id": "mine"}]
    assert arrange(bodies) == ["null", "plain words", '{"customer":"acme"}', '{"customer":"file"}']
    (task,) = holdfast("tasks", "show", APP, trace, "--json").lines
    assert (task["state"], task["task_type"], task["group"]) == ("queued", TYPE, "acme")
    assert f"trace_id: {trace}" in holdfast("tasks", "show", APP, trace).out


def test_what_is_to_follow_is_sent_with_its_task(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    then = '{"task_type": "mail.send", "body": "a@example.com"}'
    options = ("--then", then, "--then", then, "--on-failure", then, "--tries", "2", "--timeout-s", "1.5")
    send(holdfast, "7", *options)

    async def sent(services: Services) -> SentTask:
        (delivery,) = await services.queue(task_queue(APP, TYPE)).receive(10, 0.0, 30.0, "looking")
        return decode_task(delivery.body, Envelope(app=APP, task_id="-", task_type=TYPE))

    task = arrange(sent)
    assert (task.envelope.tries, task.envelope.timeout_s) == (2, 1.5)
    assert [(each.task.envelope.task_type, each.on_failure) for each in task.follow_ups] == [
        ("mail.send", False),
        ("mail.send", False),
        ("mail.send", True),
    ]
    refused = holdfast("tasks", "send", APP, TYPE, "7", "--then", "mail.send")
    assert (refused.code, "a JSON object with a task to send" in refused.err) == (exits.USAGE, True)


def test_a_task_may_begin_at_a_time(holdfast: Holdfast) -> None:
    trace = send(holdfast, "--at", "2126-12-24T18:00+01:00")
    (task,) = holdfast("tasks", "show", APP, trace, "--json").lines
    assert task["state"] == "queued"
    for wrong, says in (("2126-12-24T18:00", "field 'at' has no time zone"), ("tomorrow", "tomorrow")):
        refused = holdfast("tasks", "send", APP, TYPE, "--at", wrong)
        assert refused.code
        assert says in refused.err
    assert len(holdfast("tasks", "ls", APP, "--json").lines) == 1


def test_a_batch_is_sent_from_a_file(holdfast: Holdfast, arrange: Arrange[Any], place: Path) -> None:
    separator = "\N{LINE SEPARATOR}"  # no end of a line in JSON
    orders = [{"task_type": TYPE, "body": f"{n}{separator}", "delay_s": 0.5} for n in range(3)]
    lines = [json.dumps(order, ensure_ascii=False) for order in orders]
    (place / "month.jsonl").write_text("\r\n".join([*lines, ""]), encoding="utf-8")
    then = '{"task_type": "mail.send", "body": "a@example.com"}'
    sent = holdfast(
        "tasks", "batch", APP, "month.jsonl", "--then", then, "--dedupe", "2026-11", "--json"
    ).lines
    again = holdfast("tasks", "batch", APP, "month.jsonl", "--then", then, "--dedupe", "2026-11")
    assert again.out.strip() == sent[0]["trace_id"], "it is one batch"
    listed = holdfast("tasks", "ls", APP, "--json").lines
    assert [task["trace_id"] for task in listed] == [sent[0]["trace_id"]] + [
        f"{sent[0]['trace_id']}-{n}" for n in range(3)
    ]


@pytest.mark.parametrize(
    "text,code,says",
    [
        ("", exits.FAILED, "a batch has 1 to 10000 tasks; this one has 0"),
        ('{"task_type": "report.publish"}\n{"task_type": 7}', exits.USAGE, "line 2 of month.jsonl"),
        ('{"task_type": "a", "trace_id": "t"}', exits.FAILED, "a task of a batch has no task_id"),
    ],
)
def test_a_batch_that_can_t_be_is_refused(
    holdfast: Holdfast, place: Path, text: str, code: int, says: str
) -> None:
    (place / "month.jsonl").write_text(text)
    refused = holdfast("tasks", "batch", APP, "month.jsonl")
    assert refused.code == code
    assert says in refused.err
    assert holdfast("tasks", "ls", APP, "--json").lines == []


@pytest.mark.parametrize(
    "file,says",
    [("missing", "No such file or directory"), (".", "Is a directory"), ("latin", "byte 9 isn't UTF-8")],
)
@pytest.mark.parametrize("command", [("send", APP, TYPE, "--file"), ("batch", APP)], ids=lambda c: c[0])
def test_a_file_that_can_t_be_read_is_named(
    holdfast: Holdfast, place: Path, command: tuple[str, ...], file: str, says: str
) -> None:
    (place / "latin").write_bytes(b'{"to": "J\xfcrgen"}')
    refused = holdfast("tasks", *command, file)
    assert (refused.code, refused.err) == (exits.USAGE, f"{file!r} can't be read: {says}\n")


def test_of_orders_with_one_dedupe_key_one_is_run(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    trace = send(holdfast, "--dedupe", "monday")
    arrange(ended(trace))
    assert send(holdfast, "--dedupe", "monday") == trace
    assert arrange(bodies) == []


def test_send_with_wait_shows_the_outcome(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    arrange(ended("fine"))
    arrange(ended("bad", State.FAILED, "no such table\nTraceback"))
    done = holdfast("tasks", "send", APP, TYPE, "--trace-id", "fine", "--wait")
    assert (done.code, done.out) == (exits.OK, "fine: succeed after 1 attempt\n{'pages': 3}\n")
    done = holdfast("tasks", "send", APP, TYPE, "--trace-id", "bad", "--wait", "--json")
    assert (done.code, done.lines[0]["state"], done.lines[0]["node"]) == (1, "failed", "node-1")


@pytest.mark.usefixtures("database")
def test_a_wait_for_an_outcome_ends_in_the_time_that_it_has(holdfast: Holdfast) -> None:
    late = holdfast("tasks", "send", APP, TYPE, "--trace-id", "slow", "--wait-timeout-s", "0")
    assert (late.code, late.out) == (1, "")
    assert "task 'slow' is queued after 0 s, and goes on" in late.err


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_tasks_are_listed_by_state_type_and_time(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    assert "no tasks are known" in holdfast("tasks", "ls", APP).out
    send(holdfast, "--trace-id", "waits")
    arrange(ended("fine"))
    arrange(ended("bad", State.FAILED, "no such table\nTraceback"))
    shown = holdfast("tasks", "ls", APP).out
    assert f"{TYPE} failed: 1, {TYPE} queued: 1, {TYPE} succeed: 1" in shown

    def traces(*more: str) -> set[str]:
        return {line["trace_id"] for line in holdfast("tasks", "ls", APP, "--json", *more).lines}

    assert traces() == {"waits", "fine", "bad"}
    assert traces("--state", "failed", "--since", "2h") == {"bad"}
    assert traces("--type", "other") == set()
    assert len(traces("--limit", "2")) == 2
    refused = holdfast("tasks", "ls", APP, "--since", "yesterday")
    assert (refused.code, "such as 2h" in refused.err) == (exits.USAGE, True)


def test_cancel_ends_a_waiting_task(holdfast: Holdfast) -> None:
    trace = send(holdfast)
    assert holdfast("tasks", "cancel", APP, trace, "--reason", "ordered twice").code == exits.OK
    (task,) = holdfast("tasks", "show", APP, trace, "--json").lines
    assert (task["state"], task["detail"]) == ("failed", "cancelled: ordered twice")
    again = holdfast("tasks", "cancel", APP, trace)
    assert (again.code, "has ended already: failed" in again.err) == (exits.FAILED, True)


def test_retry_runs_a_failed_task_again(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    trace = send(holdfast, "7")
    arrange(ended(trace, State.FAILED, "no such table"))
    assert arrange(bodies) == []
    assert holdfast("tasks", "retry", APP, trace).code == exits.OK
    assert arrange(bodies) == ["7"]
    (task,) = holdfast("tasks", "show", APP, trace, "--json").lines
    assert (task["state"], task["attempts"]) == ("queued", 0)
    again = holdfast("tasks", "retry", APP, trace)
    assert (again.code, "no dead letter holds it" in again.err) == (exits.FAILED, True)


@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
@pytest.mark.usefixtures("database")
def test_what_is_not_known_is_refused(holdfast: Holdfast, command: str) -> None:
    done = holdfast("tasks", command, APP, "unheard")
    assert (done.code, "no task 'unheard' is known" in done.err) == (exits.FAILED, True)


def test_what_is_no_body_is_refused(holdfast: Holdfast) -> None:
    done = holdfast("tasks", "send", APP, TYPE, "{customer: acme}")
    assert (done.code, "quote it for the shell" in done.err) == (exits.USAGE, True)


def test_watching_ends_with_what_is_watched(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    arrange(ended("fine"))
    done = holdfast("tasks", "watch", APP, "fine")
    assert (done.code, "fine" in done.out) == (exits.OK, True)


def test_what_is_watched_must_be_known(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    arrange(ended("fine"))
    refused = holdfast("tasks", "watch", APP, "fine", "unheard", "misspelt")
    assert refused.code == exits.FAILED
    assert "no task 'unheard', 'misspelt' is known" in refused.err


def test_what_is_gone_is_told_and_watched_no_more(
    holdfast: Holdfast, arrange: Arrange[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrange(ended("past"))
    send(holdfast, "--trace-id", "waits")
    looks = iter(range(100))
    get = SqliteTasks.get

    async def look(store: SqliteTasks, trace: str) -> Task | None:
        match next(looks):
            case 2:  # the second look begins
                assert (waits := await get(store, "waits")) is not None
                assert await store.expire(waits.moved_at) == 1
            case 4:
                await store.cancel("waits", "watched for long enough")
        return await get(store, trace)

    monkeypatch.setattr(SqliteTasks, "get", look)
    monkeypatch.setattr("holdfast.cli.tasks.LOOK_S", 0.0)
    done = holdfast("tasks", "watch", APP, "past", "waits")
    assert (done.code, next(looks)) == (exits.OK, 5)
    assert (done.out + done.err).count("task 'past' was deleted") == 1


def test_square_brackets_of_a_task_are_drawn_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    bars = progress_bars()
    draw(bars, {}, [Task("[/t1]", TYPE, State.RUNNING, note="reads [/data]")])
    output.console().print(bars)
    drawn = capsys.readouterr().out
    assert f"{TYPE} [/t1]" in drawn
    assert "reads [/data]" in drawn


def test_a_brief_that_was_read_is_not_read_again(holdfast: Holdfast, arrange: Arrange[Any]) -> None:
    for trace in ("a", "b", "c"):
        arrange(ended(trace))
    first = holdfast("briefs", APP, "--limit", "2").lines
    assert {(line["state"], line["value"]["pages"]) for line in first} == {("succeed", 3)}
    rest = holdfast("briefs", APP).lines
    assert sorted(line["trace_id"] for line in [*first, *rest]) == ["a", "b", "c"]
    assert holdfast("briefs", APP).lines == []


@pytest.mark.slow
def test_letters_are_copied_once_and_sent_again_by_choice(
    holdfast: Holdfast, arrange: Arrange[Any], place: Path
) -> None:
    for number, error in enumerate(("connection refused", "no such table", "connection refused")):
        arrange(ended(send(holdfast, str(number), "--trace-id", f"t{number}"), State.FAILED, error))
    backup = ("dlq", "backup", "letters.jsonl", "--app", APP, "--json")
    assert holdfast(*backup, "--error", "refused").lines[0]["copied"] == 2
    assert holdfast(*backup).lines[0]["copied"] == 1
    assert holdfast(*backup).lines[0]["copied"] == 0
    kept = [json.loads(line) for line in (place / "letters.jsonl").read_text().splitlines()]
    assert sorted(letter["trace_id"] for letter in kept) == ["t0", "t1", "t2"]

    listed = ("dlq", "ls", "--app", APP, "--json")
    assert [line["key"] for line in holdfast(*listed, "--error", "table").lines] == ["t1"]
    assert len(holdfast(*listed, "--type", TYPE, "--since", "1h", "--limit", "2").lines) == 2
    assert holdfast(*listed, "--trace", "t9").lines == []

    redrive = ("dlq", "redrive", "--app", APP, "--json")
    assert holdfast(*redrive, "--type", "other").lines == [{"redriven": 0}]
    assert holdfast(*redrive, "--error", "refused", "--trace", "t1").lines == [{"redriven": 0}]
    assert holdfast(*redrive, "--type", TYPE, "--error", "refused", "--since", "1h").lines == [
        {"redriven": 2}
    ]
    assert arrange(bodies) == ["0", "2"]
    assert {line["state"] for line in holdfast("tasks", "ls", APP, "--json").lines} == {"queued", "failed"}
    assert holdfast(*redrive).lines == [{"redriven": 1}]
    wrong = holdfast(*redrive, "--error", "(")
    assert (wrong.code, "isn't a regular expression" in wrong.err) == (exits.USAGE, True)

    told = holdfast(*redrive, "--from", "letters.jsonl").lines
    assert told == [{"redriven": 0, "passed_over": 3}], "they wait already"
    arrange(ended("t1", State.FAILED, "again"))
    database = f"sqlite:///{place}/letters.db"
    assert holdfast("dlq", "backup", database, "--app", APP, "--json").lines[0]["copied"] == 1
    arrange(gone)
    assert "1 redriven" in holdfast(*redrive[:-1], "--from", database).out
    assert arrange(bodies) == ["0", "1", "2"]
    wrong = holdfast("dlq", "redrive", "--from", database)
    assert (wrong.code, "give --app with --from" in wrong.err) == (exits.USAGE, True)
    wrong = holdfast("dlq", "backup", "mysql://host/letters", "--app", APP)
    assert (wrong.code, "nothing serves that" in wrong.err) == (exits.USAGE, True)


async def gone(services: Services) -> None:
    """Nothing lies with the dead letters any more."""
    queue = services.queue(task_queue(APP, TYPE))
    await queue.purge([letter.id for letter in await queue.dead_letters(10)])


def test_letters_that_were_never_tasks_are_found_by_the_types_that_nodes_run(
    holdfast: Holdfast, arrange: Arrange[Any]
) -> None:
    async def malformed(services: Services) -> None:
        letter = DeadLetter("odd", b"{ no json", "malformed", at=services.clock.wall())
        await services.queue(task_queue(APP, TYPE)).bury([letter])
        listing = Directory(services.registry(), APP, services.clock)
        entry = NodeEntry("node-1", "http://127.0.0.1:1", (TYPE,))
        await listing.change(lambda known: announced(known, "m", entry, ["m"], {}))

    arrange(malformed)
    assert holdfast("dlq", "backup", "l.jsonl", "--app", APP, "--json").lines[0]["copied"] == 1
    row = {"type": TYPE, "node": "node-1", "address": "http://127.0.0.1:1"}
    assert holdfast("tasks", "nodes", APP, "--json").lines == [row]
    assert "node-1" in holdfast("tasks", "nodes", APP).out


@pytest.mark.parametrize(
    "stacks,said", [("Thread MainThread:\n  File ...", "MainThread"), (None, tasks.NO_STACKS)]
)
def test_a_running_task_shows_where_it_is(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, stacks: str | None, said: str
) -> None:
    trace = send(holdfast)
    refused = holdfast("tasks", "stack", APP, trace)
    assert refused.code != exits.OK
    assert "doesn't run: it is queued" in refused.err

    async def look(services: Services, app: str, trace_id: str) -> tasks.TaskLook:
        assert (app, trace_id) == (APP, trace)
        return tasks.TaskLook("node-1", stacks, 12.0, 3.0, 0.4, "page 3", {"rows": 7.0})

    monkeypatch.setattr(tasks, "look", look)
    shown = holdfast("tasks", "stack", APP, trace).out
    assert "on node-1 for 12.0 s; 40% page 3, rows 7, reported 3.0 s ago" in shown
    assert said in shown
    (record,) = holdfast("tasks", "stack", APP, trace, "--json").lines
    assert record["stacks"] == stacks


QUEUE = task_queue(APP, TYPE)


@pytest.mark.parametrize(
    "chosen",
    [("--stream", QUEUE, "--all"), ("--stream", QUEUE, f"{TYPE}/t0"), (f"{TYPE}/t0",)],
    ids=["all of a queue", "id and queue", "id"],
)
def test_dead_letters_of_tasks_get_their_tries_again(
    holdfast: Holdfast, arrange: Arrange[Any], chosen: tuple[str, ...]
) -> None:
    """Sent again like a message, such a task would be taken for a duplicate, and be gone."""
    arrange(ended(send(holdfast, "0", "--trace-id", "t0"), State.FAILED, "refused"))
    (letter,) = holdfast("dlq", "ls", QUEUE, "--json").lines
    assert letter["id"] == f"{TYPE}/t0"
    assert holdfast("dlq", "redrive", *chosen, "--json").lines == [{"redriven": 1, "asked": 1}]
    (task,) = holdfast("tasks", "ls", APP, "--json").lines
    assert (task["state"], task["attempts"]) == ("queued", 0)
    assert arrange(bodies) == ["0"]


async def lie(services: Services) -> None:
    """The letter of a task, and that of a follow-up of another type, lie in one queue of tasks. A stream has
    the name of the first type."""
    await services.state().open(f"{TYPE}/cam-1", 0, "m")
    await services.task_store(APP).queue([Task("t1", TYPE), Task("t2", "mail.send")])
    await services.queue(task_queue(APP, TYPE)).bury(
        [DeadLetter(f"{TYPE}/t1", b"1", "failed", key="t1"), DeadLetter("mail.send/t2", b"2", "x", key="t2")]
    )


@pytest.mark.parametrize("letter", [f"{TYPE}/t1", "mail.send/t2"])
def test_the_id_that_is_listed_names_the_dead_letter_of_a_task(
    holdfast: Holdfast, arrange: Arrange[Any], letter: str
) -> None:
    arrange(lie)
    assert letter in [line["id"] for line in holdfast("dlq", "ls", "--json").lines]
    shown = holdfast("dlq", "show", letter, "--json")
    assert [line["id"] for line in shown.lines] == [letter], shown.err
    assert holdfast("dlq", "purge", letter, "--yes", "--json").lines == [{"purged": 1, "asked": 1}]
    assert letter not in holdfast("dlq", "ls").out
