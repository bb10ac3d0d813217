"""Commands on real SQLite files: what they print, what they change, how they end."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import all_commands, output, patience
from holdfast.cluster.effect_dead_letters import dead_letter_of
from holdfast.common.acts import Effect, effect_id
from holdfast.common.message import Place
from holdfast.common.retry import Backoff
from holdfast.errors import ConfigError, OperationRefused, TooLarge, Unavailable
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.ports.target import OutgoingEffect
from holdfast.rules.streams.ledger import Checkpoint, Commit, Result, RunLog, Timer
from holdfast.rules.streams.timers import place_of
from holdfast.rules.tasks.task import Task
from holdfast.services.sqlite.coordinator import SqliteCoordinator
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.wiring.services import Services

KEY = "detect/cam-1"


async def opened(services: Services, key: str = KEY) -> Checkpoint:
    standing = await services.state().peek(key)
    return await services.state().open(key, standing.epoch if standing else 0, "m")


async def commit(services: Services, results: int = 3, key: str = KEY) -> None:
    """Commit ``results`` messages of a stream, from seq 0."""
    now = await opened(services, key)
    await services.state().commit(
        Commit(
            key,
            now.epoch,
            now.number + 1,
            f"{now.epoch}.{now.number + 1}",
            RunLog(0, 0, results - 1),
            state=b"state",
            results=tuple(Result(Place(0, seq).name, b'{"count":%d}' % seq) for seq in range(results)),
            done=results,
        )
    )


async def bury(services: Services) -> None:
    await services.queue("detect").bury(
        [
            DeadLetter(
                "detect/cam-1:0:7",
                b'{"a":1}',
                "failed: boom",
                {"x": "y"},
                "Traceback",
                "detect",
                "cam-1",
                0,
                "7",
            ),
            DeadLetter("detect/cam-2:0:8", b"\xff", "late", {}, "", "detect", "cam-2", 0, "8"),
            DeadLetter("detect/cam-1:0:6", b"six", "parked: paused", {}, "", "detect", "cam-1", 0, "6"),
        ]
    )


# --- exit codes and help


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        ([], 0, "Usage: holdfast"),
        (["--version"], 0, "."),
        (["wat"], 2, "Unknown command"),
        (["status", "--wat"], 2, "Unknown option"),
        (["status", "--limit", "x"], 2, "--limit"),
        (["status", "--set", "ttl_s"], 2, "must be NAME=VALUE"),
        (["status", "--set", "ttl=1"], 2, "did you mean 'ttl_s'?"),
        (["status", "--url", "amqp://:hunter2@h"], 2, "url (as coordinator_url) is"),
        (["status", "--url", "sqlite://"], 2, "names no path"),
        (["status", "--config", "absent.toml"], 2, "isn't a file"),
        (["streams", "pause", "cam-1"], 2, "must be STREAM/KEY"),
        (["streams", "pause", KEY], 1, "no stream 'detect/cam-1'"),
        (["streams", "reset", KEY], 2, "--yes"),
        (["dlq", "purge", "a/b"], 2, "--yes"),
        (["dlq", "redrive"], 2, "--stream NAME --all"),
        (["dlq", "redrive", "a/b", "--all"], 2, "--stream NAME --all"),
        (["dlq", "redrive", "a/b", "--key", "k"], 2, "--stream NAME --all"),
        (["dlq", "show", "detect/x"], 1, "no dead letter 'detect/x'"),
        (["dlq", "redrive", "detect/x"], 1, "0 redriven; 1 not found"),
        (["dlq", "ls", "--limit", "0"], 2, "Must be >= 1"),
        (["results", "--limit", "-3"], 2, "Must be >= 1"),
        (["results", "--after", "-4"], 2, "Must be >= 0"),
        (["status", "--limit", "-1"], 2, "Must be >= 1"),
        (["top", "--limit", "-3"], 2, "Must be >= 1"),
        (["top", "--times", "0"], 2, "Must be >= 1"),
    ],
)
@pytest.mark.usefixtures("database")
def test_each_kind_of_error_has_its_exit_code(
    holdfast: Any, arguments: list[str], code: int, said: str
) -> None:
    outcome = holdfast(*arguments)
    assert outcome.code == code
    assert said in outcome.out + outcome.err
    assert "hunter2" not in outcome.out + outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "command",
    [["node"], ["ingest"], ["results"], ["status"], ["doctor"], ["config", "show"]]
    + [["streams", name] for name in ("pause", "resume", "skip", "reset")]
    + [["dlq", name] for name in ("ls", "show", "redrive", "purge")],
    ids=" ".join,
)
def test_every_command_explains_itself_with_an_example(holdfast: Any, command: list[str]) -> None:
    outcome = holdfast(*command, "--help")
    assert outcome.code == 0
    assert f"holdfast {' '.join(command)}" in outcome.out.replace("Usage: ", "").split("Parameters")[0]
    assert outcome.out.count(f"holdfast {' '.join(command)}") >= 2, "usage and an example"
    assert "--set" in outcome.out


def test_help_tells_what_each_command_does() -> None:
    """In a process of its own: no command is imported there before somebody asks for it."""
    told = subprocess.run([sys.executable, "-m", "holdfast"], capture_output=True, text=True, check=True)
    said = {words[0]: words[1:] for line in told.stdout.splitlines() if len(words := line.split()) > 3}
    assert [name for name in all_commands() if not said.get(name)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_service_that_does_not_answer(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: Any) -> None:
        raise Unavailable("the database is locked")

    monkeypatch.setattr(SqliteCoordinator, "members", fail)
    monkeypatch.setattr(patience, "PATIENCE_S", 0.5)  # longer than the first call takes to open the database
    monkeypatch.setattr(patience, "PAUSES", Backoff(0.001, 0.002))
    outcome = holdfast("status")
    told = "no answer yet, trying again: the database is locked\nthe database is locked\n"
    assert (outcome.code, outcome.err) == (3, told)


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_well(arrange: Any, place: Path) -> None:
    """As ``holdfast results | head -1`` ends: quietly, and well."""
    arrange(lambda services: commit(services, results=2000))
    reading, writing = os.pipe()
    program = "import sys; from holdfast import cli; sys.exit(cli.run(['results', '--follow']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, cwd=place
    ) as child:
        os.close(writing)
        with os.fdopen(reading) as lines:
            assert '"cursor":1' in lines.readline()
        assert child.stderr is not None
        assert child.stderr.read() == b""
        assert child.wait() == 0


# --- results


@pytest.mark.slow
def test_results_are_json_lines_that_go_on_from_a_cursor(holdfast: Any, arrange: Any) -> None:
    arrange(commit)
    arrange(lambda services: commit(services, 1, "track/cam-1"))
    every = holdfast("results").lines
    assert [line["cursor"] for line in every] == [1, 2, 3, 4]
    first = every[0]
    assert (first["stream"], first["key"], first["run"], first["seq"]) == ("detect", "cam-1", 0, 0)
    assert first["result"] == {"count": 0}
    assert first["name"] == Place(0, 0).name
    assert first["at"].endswith("Z")
    assert holdfast("results", "--after", "2").lines == every[2:]
    assert holdfast("results", "--stream", "track").lines == every[3:]
    assert holdfast("results", "--limit", "2", "--json").lines == every[:2]
    assert holdfast("results", "--follow", "--limit", "4").lines == every


def test_the_result_of_a_timer_is_a_line_like_any_other(holdfast: Any, arrange: Any) -> None:
    async def fired(services: Services) -> None:
        now = await opened(services)
        fire = place_of(Timer("silent", 1.0, b"{}", "1.1"))
        await services.state().commit(
            Commit(
                KEY,
                now.epoch,
                now.number + 1,
                "a",
                RunLog(0, 0, 0),
                results=(Result(fire.name, b'"late"'), Result(Place(0, 0, "m-1").name, b"1")),
            )
        )

    arrange(fired)
    timer, message = holdfast("results").lines
    assert (timer["timer"], timer["run"], timer["seq"], timer["result"]) == ("silent", None, None, "late")
    assert (message["run"], message["seq"], message["result"]) == (0, "m-1", 1)


# --- status


async def busy(services: Services) -> None:
    await commit(services)
    member = Member("m", "node-a", "http://127.0.0.1:1", Load(streams=1, slots=2, draining=True))
    await services.coordinator().join(member, 30)
    await services.coordinator().claim(KEY, "m")
    await services.queue("detect").send([Outgoing(b"1"), Outgoing(b"2"), Outgoing(b"3", delay_s=60)])
    await bury(services)


def test_status_as_json_has_all_figures(holdfast: Any, arrange: Any) -> None:
    arrange(busy)
    (found,) = holdfast("status", "--json").lines
    assert [(node["name"], node["load"]["draining"]) for node in found["nodes"]] == [("node-a", True)]
    [queue] = found["queues"]
    assert queue.pop("lag_s") > 0
    assert queue == {"stream": "detect", "ready": 2, "in_flight": 0, "delayed": 1, "dead": 3, "error": ""}
    (stream,) = found["streams"]
    assert stream.pop("quiet_s") >= 0
    assert stream == {
        "stream": "detect",
        "key": "cam-1",
        "owner": "node-a",
        "epoch": 1,
        "run": 0,
        "seq": 2,
        "done": 3,
        "skipped": 0,
        "parked": "",
        "waits": "",
        "timers": 0,
        "next_timer_s": None,
        "due_s": None,
        "effects": None,
        "runs": "",
    }
    (trouble,) = found["troubles"]
    assert trouble.startswith("node-a does not answer: ")


def test_status_tells_what_a_node_says_keeps_it_from_working(holdfast: Any, arrange: Any) -> None:
    async def troubled(services: Services) -> None:
        load = Load(troubles=("1 of the 1 shards of the outbox 'doors' here have no connection",))
        await services.coordinator().join(Member("m", "node-a", "http://127.0.0.1:1", load), 30)

    arrange(troubled)
    (found,) = holdfast("status", "--json").lines
    assert "node-a: 1 of the 1 shards of the outbox 'doors' here have no connection" in found["troubles"]


def test_status_as_text_shows_nodes_and_streams(holdfast: Any, arrange: Any) -> None:
    arrange(busy)
    arrange(lambda services: commit(services, key="track/cam-9"))
    text = holdfast("status", "--limit", "1").out
    assert "node-a" in text
    assert "draining" in text
    assert "Streams: 2, the first 1 shown" in text
    assert "cam-9" in text, "what nobody owns comes first"
    assert "cam-9" not in holdfast("status", "--stream", "detect").out


def test_status_tells_how_many_calls_a_message_costs(holdfast: Any, arrange: Any) -> None:
    async def two_nodes(services: Services) -> None:
        for name, load in {"a": Load(handled=1000, calls=250), "b": Load()}.items():
            await services.coordinator().join(Member(f"id-{name}", f"node-{name}", "http://x", load), 60)

    arrange(two_nodes)
    assert holdfast("status", "--json").lines[0]["calls_per_message"] == 0.25
    text = holdfast("status").out
    assert "Nodes: 2, 0.250 calls per message" in text
    (row,) = [line for line in text.splitlines() if line.startswith("node-a")]
    assert row.split()[4:6] == ["1000", "0.250"]


def test_status_tells_who_serves_which_devices(holdfast: Any, arrange: Any) -> None:
    async def two_nodes(services: Services) -> None:
        for name in "ab":
            member = Member(f"id-{name}", f"node-{name}", "http://x", Load(offers=("faces",)))
            await services.coordinator().join(member, 60)
        for shard in range(3):
            await services.coordinator().claim(f"outbox:faces/{shard}", "id-a")

    arrange(two_nodes)
    (found,) = holdfast("status", "--json").lines
    assert found["outboxes"] == [
        {"outbox": "faces", "shards": {"node-a": 3, "node-b": 0}, "waiting": None, "paused": ""}
    ]
    assert (found["streams"], found["queues"]) == ([], [])
    rows = [line.split() for line in holdfast("status").out.splitlines()]
    assert ["faces", "node-a", "3"] in rows
    assert ["faces", "node-b", "0"] in rows


@pytest.mark.usefixtures("database")
def test_status_of_a_stream_that_has_not_begun(holdfast: Any) -> None:
    (found,) = holdfast("status", "--json", "--stream", "detect").lines
    assert [queue["stream"] for queue in found["queues"]] == ["detect"]


@pytest.mark.parametrize("command", [("status",), ("top", "--times", "1")], ids=" ".join)
def test_square_brackets_in_troubles_are_shown_as_they_are(
    holdfast: Any, arrange: Any, command: tuple[str, ...]
) -> None:
    gone = Member("id-a", "[/models/a.onnx]", "http://127.0.0.1:1", Load())
    arrange(lambda services: services.coordinator().join(gone, 60))
    shown = holdfast(*command)
    assert (shown.code, "! [/models/a.onnx] does not answer" in shown.out) == (0, True), shown.err


def test_square_brackets_in_titles_and_columns_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.console().print(output.table("[/title]", ["[/column]"], [["[/cell]"]]))
    drawn = capsys.readouterr().out
    assert [text in drawn for text in ("[/title]", "[/column]", "[/cell]")] == [True] * 3


# --- streams


@pytest.mark.slow
def test_streams_are_paused_resumed_skipped_and_reset(holdfast: Any, arrange: Any) -> None:
    arrange(commit)
    (paused,) = holdfast("streams", "pause", KEY, "--json").lines
    assert (paused["parked"], paused["epoch"], paused["told"]) == ("paused", 2, "")
    arrange(bury)
    outcome = holdfast("streams", "resume", KEY)
    assert "detect/cam-1 goes on; 1 dead letter sent to its queue again" in outcome.out
    assert "it stands at run 0, seq 2, epoch 3" in outcome.out
    (skipped,) = holdfast("streams", "skip", KEY, "--through", "9", "--json").lines
    assert (skipped["seq"], skipped["skipped"]) == (9, 7)
    (kept,) = holdfast("streams", "reset", KEY, "--keep-place", "--yes", "--json").lines
    assert (kept["seq"], kept["state_bytes"]) == (9, 0)
    (reset,) = holdfast("streams", "reset", KEY, "--yes", "--json").lines
    assert (reset["run"], reset["seq"]) == (None, None)
    assert holdfast("streams", "skip", KEY, "--through", "1", "--run", "0").code == 0


def test_a_run_without_a_seq_in_it_skips_nothing(holdfast: Any, arrange: Any) -> None:
    arrange(commit)
    refused = holdfast("streams", "skip", KEY, "--run", "3")
    assert (refused.code, "'run' says in which run 'through' is; give both" in refused.err) == (2, True)
    (paused,) = holdfast("streams", "pause", KEY, "--json").lines
    assert (paused["run"], paused["seq"], paused["skipped"]) == (0, 2, 0)


# --- dead letters


def test_dead_letters_are_listed_and_shown_with_reason_and_body(holdfast: Any, arrange: Any) -> None:
    arrange(commit)
    arrange(bury)
    text = holdfast("dlq", "ls").out
    assert "Dead letters: 3" in text
    assert "failed: boom" in text
    listed = holdfast("dlq", "ls", "detect", "--key", "cam-1", "--json").lines
    assert [(letter["id"], letter["body"]) for letter in listed] == [
        ("detect/cam-1:0:6", "six"),
        ("detect/cam-1:0:7", {"a": 1}),
    ]
    assert len(holdfast("dlq", "ls", "--limit", "2", "--json").lines) == 2
    (shown,) = holdfast("dlq", "show", "detect/cam-2:0:8", "--json").lines
    assert (shown["reason"], shown["body_base64"]) == ("late", "/w==")
    assert "detail: Traceback" in holdfast("dlq", "show", "detect/cam-1:0:7").out


@pytest.mark.parametrize("away", ["task_apps", "task_store"])
def test_a_task_store_that_fails_hides_no_dead_letters_of_streams(
    holdfast: Any, arrange: Any, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    async def queue_task(services: Services) -> None:
        await services.task_store("shop").queue([Task("t1", "bill")])

    def fail(self: Services, *_: Any) -> Any:
        raise OperationRefused("the task store is closed")

    arrange(commit)
    arrange(bury)
    arrange(queue_task)
    monkeypatch.setattr(Services, away, fail)
    listed = holdfast("dlq", "ls", "--json")
    assert len(listed.lines) == 3
    assert "tasks" in listed.err
    assert "the task store is closed" in listed.err


@pytest.mark.parametrize("depth", [450, 900, 990, 50_000])
def test_a_deeply_nested_body_hides_no_dead_letters(holdfast: Any, arrange: Any, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth

    async def bury_deep(services: Services) -> None:
        letter = DeadLetter("detect/cam-0:0:1", deep, "late", {}, "", "detect", "cam-0", 0, "1")
        await services.queue("detect").bury([letter])

    arrange(commit)
    arrange(bury)
    arrange(bury_deep)
    listed = holdfast("dlq", "ls", "--json")
    assert (listed.code, listed.out.count("\n"), deep.decode() in listed.out) == (0, 4, True)
    assert deep.decode() in holdfast("dlq", "show", "detect/cam-0:0:1").out
    assert holdfast("dlq", "show", "detect/cam-0:0:1", "--json").code == 0


def test_a_queue_that_fails_hides_no_dead_letters_of_others(
    holdfast: Any, arrange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrange(commit)
    arrange(lambda services: commit(services, key="broken/cam-1"))
    arrange(bury)
    queue = Services.queue

    def opened(self: Services, name: str) -> Any:
        if name == "broken":
            raise ConfigError("no queue 'broken'; make it")
        return queue(self, name)

    monkeypatch.setattr(Services, "queue", opened)
    listed = holdfast("dlq", "ls", "--json")
    assert (listed.code, len(listed.lines)) == (0, 3)
    assert "broken: no queue 'broken'" in listed.err
    assert holdfast("dlq", "ls", "broken").code == 2
    sent = holdfast("dlq", "redrive", "broken/x", "detect/cam-2:0:8")
    assert (sent.code, "1 redriven; 1 not" in sent.out) == (1, True)
    assert "broken: no queue 'broken'" in sent.err
    assert "Dead letters: 2" in holdfast("dlq", "ls", "detect").out


def test_a_letter_that_can_t_be_sent_again_stops_no_other(
    holdfast: Any, arrange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrange(commit)
    arrange(bury)
    redrive = SqliteQueue.redrive

    async def refusing(self: SqliteQueue, ids: list[str]) -> int:
        if "detect/cam-1:0:6" in ids:
            raise TooLarge("its attributes leave no room")
        return await redrive(self, ids)

    monkeypatch.setattr(SqliteQueue, "redrive", refusing)
    sent = holdfast("dlq", "redrive", "--stream", "detect", "--all")
    assert (sent.code, "2 redriven; 1 not" in sent.out) == (1, True)
    assert "detect/cam-1:0:6: its attributes leave no room" in sent.err
    assert [letter["id"] for letter in holdfast("dlq", "ls", "--json").lines] == ["detect/cam-1:0:6"]


def test_the_letter_of_a_timer_keeps_no_other_and_is_told_by_its_id(
    holdfast: Any, arrange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = dead_letter_of(
        OutgoingEffect(effect_id(KEY, 1, 1, 0), "", "", b"{}", KEY, "wake:up:1.1"), "detect", 1.0
    )

    async def bury_all(services: Services) -> None:
        await bury(services)
        await services.queue("detect").bury([timer])

    made = SqliteQueue.__init__

    def small(self: SqliteQueue, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **{**kwargs, "max_batch": 2})

    arrange(commit)
    arrange(bury_all)
    monkeypatch.setattr(SqliteQueue, "__init__", small)
    chosen = ("detect/cam-1:0:6", timer.id, "detect/cam-1:0:7", "detect/cam-2:0:8")
    sent = holdfast("dlq", "redrive", *chosen, "--json")
    assert (sent.code, sent.lines) == (1, [{"redriven": 3, "asked": 4}])
    assert f"{timer.id}: it is of a timer" in sent.err
    assert [letter["id"] for letter in holdfast("dlq", "ls", "--json").lines] == [timer.id]


def test_letters_that_would_come_back_are_named_before_they_are_sent_again(
    holdfast: Any, arrange: Any
) -> None:
    def letter(key: str, place: Place) -> DeadLetter:
        stream, _, plain = key.partition("/")
        seq, own = place.id or place.name[2:], {"id": place.id} if place.id else {}
        return DeadLetter(f"{key}:{place.name}", b"{}", "failed", own, "", stream, plain, place.run, seq)

    async def skipped(services: Services) -> None:
        await commit(services)
        opening = await opened(services, "notes/a")
        skips = Commit(
            "notes/a", opening.epoch, 1, "a", RunLog(0, 0, 1), identities=("!0:gone",), window=9, skipped=1
        )
        await services.state().commit(skips)
        places = [Place(0, 1), Place(0, 2), Place(0, 3)]
        await services.queue("detect").bury([letter(KEY, place) for place in places])
        notes = [letter("notes/a", Place(0, 0, "gone")), letter("notes/a", Place(0, 0, "new"))]
        await services.queue("notes").bury(notes)

    arrange(skipped)
    sent = holdfast("dlq", "redrive", "--stream", "detect", "--all")
    assert (sent.code, sent.out) == (0, "3 redriven\n")
    assert f"passed the places of 2 of these, such as {KEY}:{Place(0, 1).name}: no handler" in sent.err
    sent = holdfast("dlq", "redrive", "notes/a:0:gone", "notes/a:0:new")
    assert "passed the places of 1 of these, such as notes/a:0:gone:" in sent.err
    assert "have passed" not in holdfast("dlq", "redrive", "notes/a:0:new").err


@pytest.mark.parametrize("chosen", [["--stream", "notes", "--all"], ["notes/a:0:7"]])
def test_no_letter_is_said_to_come_back_whose_message_gets_another_identity(
    holdfast: Any, arrange: Any, chosen: list[str]
) -> None:
    async def failed(services: Services) -> None:
        opening = await opened(services, "notes/a")
        commit = Commit("notes/a", opening.epoch, 1, "a", RunLog(0, 0, 1), identities=("0:7",), window=9)
        await services.state().commit(commit)
        letter = DeadLetter("notes/a:0:7", b"{}", "broken", {}, "", "notes", "a", 0, "7")
        await services.queue("notes").bury([letter])

    arrange(failed)
    sent = holdfast("dlq", "redrive", *chosen)
    assert (sent.code, sent.out, sent.err) == (0, "1 redriven\n", "")


OF_QUEUES = {
    "ids": ["detect/x"],
    "--stream": ["--stream", "detect"],
    "--key": ["--key", "a"],
    "--all": ["--all"],
}
OF_APPS = [["--type", "bill"], ["--trace", "t1"], ["--since", "1s"], ["--error", "zzz"]]


@pytest.mark.parametrize(
    "arguments, said",
    [([*given, "--app", "shop"], f"leave out {name}, or --app") for name, given in OF_QUEUES.items()]
    + [(["--stream", "detect", "--all", *given], f"give --app with {given[0]}:") for given in OF_APPS],
)
def test_a_choice_of_dead_letters_that_would_be_passed_over_is_refused(
    holdfast: Any, arrange: Any, arguments: list[str], said: str
) -> None:
    arrange(commit)
    arrange(bury)
    refused = holdfast("dlq", "redrive", *arguments)
    assert (refused.code, said in refused.err) == (2, True), refused.err
    assert "Dead letters: 3" in holdfast("dlq", "ls").out


@pytest.mark.slow
def test_dead_letters_sent_again_and_removed(holdfast: Any, arrange: Any) -> None:
    arrange(commit)
    arrange(bury)
    assert holdfast("dlq", "redrive", "detect/cam-2:0:8", "detect/none", "--json").lines == [
        {"redriven": 1, "asked": 2}
    ]
    assert "2 redriven" in holdfast("dlq", "redrive", "--stream", "detect", "--key", "cam-1", "--all").out

    async def bodies(services: Services) -> list[bytes]:
        return [d.body for d in await services.queue("detect").receive(10, 0, 30, "m")]

    assert arrange(bodies) == [b"\xff", b"six", b'{"a":1}']
    arrange(bury)
    assert "1 purged; 1 not found" in holdfast("dlq", "purge", "detect/cam-2:0:8", "detect/none", "--yes").out
    assert "2 purged" in holdfast("dlq", "purge", "--stream", "detect", "--all", "--yes").out
    assert holdfast("dlq", "ls", "--json").lines == []


def test_the_dead_letter_of_an_effect_is_shown_and_goes_to_its_target_again(
    holdfast: Any, arrange: Any
) -> None:
    sender = "detect/cam-1"
    refused = OutgoingEffect(effect_id(sender, 1, 1, 0), "alerts", "door", b"{}", sender, "0:1")
    letter = dead_letter_of(refused, "detect", 7.0)

    async def bury_it(services: Services) -> None:
        await services.queue("detect").bury([letter])

    arrange(commit)
    arrange(bury_it)
    (shown,) = holdfast("dlq", "show", letter.id, "--json").lines
    assert (shown["attributes"]["target"], shown["attributes"]["target_key"]) == ("alerts", "door")
    assert "1 redriven" in holdfast("dlq", "redrive", letter.id).out

    async def pending(services: Services) -> list[tuple[str, str]]:
        checkpoint = await services.state().peek("detect/cam-1")
        assert checkpoint is not None
        return [(effect.id, effect.target) for effect in checkpoint.effects]

    assert arrange(pending) == [(refused.id, "alerts")]
    assert holdfast("dlq", "ls", "--json").lines == []


async def act(services: Services) -> None:
    """Commit two pending effects and a timer."""
    now, wall = await opened(services), services.clock.wall()
    number = now.number + 1
    effects = tuple(
        Effect(
            number, place, effect_id(KEY, now.epoch, number, place), target, "k", b"{}", "0:1", wall - 60.0
        )
        for place, target in enumerate(("alerts", "https://hooks.example.com/a"))
    )
    timers = (Timer("silent", wall + 600.0, b"", "1.1"),)
    made = Commit(KEY, now.epoch, number, "acts", None, effects=effects, timers=timers, due=wall + 5.0)
    await services.state().commit(made)


def test_what_a_stream_has_to_do_by_itself_is_shown(holdfast: Any, arrange: Any) -> None:
    arrange(act)
    told = holdfast("why", KEY).out
    assert "2 effects are pending, the oldest for 60 s, for alerts" in told
    assert "its next timer is 'silent', due in" in told
    (why,) = holdfast("why", KEY, "--json").lines
    assert (why["pending_effects"], why["oldest_target"], why["next_timer"]) == (2, "alerts", "silent")
    (status,) = holdfast("status", "--json").lines
    (stream,) = status["streams"]
    assert (stream["timers"], 500 < stream["next_timer_s"] <= 600) == (1, True)
    assert "timer in" in holdfast("status").out


@pytest.mark.slow
def test_pending_effects_are_listed_and_dropped_to_the_dead_letters(holdfast: Any, arrange: Any) -> None:
    arrange(act)
    assert "Pending effects: 2" in holdfast("streams", "effects", KEY).out
    listed = holdfast("streams", "effects", KEY, "--json").lines
    assert [(effect["target"], effect["body"]) for effect in listed] == [
        ("alerts", {}),
        ("https://hooks.example.com/a", {}),
    ]
    for wrong in ([KEY, "--all"], [KEY, "--yes"], [KEY, "--yes", "--all", "--target", "alerts"]):
        assert holdfast("streams", "drop-effects", *wrong).code == 2
    assert (
        f"1 effect of {KEY} moved to"
        in holdfast("streams", "drop-effects", KEY, "--target", "alerts", "--yes").out
    )
    assert holdfast("streams", "drop-effects", KEY, "--target", "alerts", "--yes").code == 1
    assert holdfast("streams", "effects", "detect/none").code == 1
    assert [effect["refused"] for effect in holdfast("streams", "effects", KEY, "--json").lines] == [
        "dropped by the operator",
        "",
    ]


SECRET = "https://hooks.example.com/a?token=s3cr3t-abc"
HIDDEN = "https://hooks.example.com/a?token=***"


@pytest.mark.parametrize("said", [SECRET, HIDDEN])
def test_effects_are_dropped_by_the_target_that_is_shown(holdfast: Any, arrange: Any, said: str) -> None:
    async def send(services: Services) -> None:
        now = await opened(services)
        effect = Effect(1, 0, effect_id(KEY, 1, 1, 0), SECRET, "", b"{}", "0:1", 5.0)
        await services.state().commit(Commit(KEY, now.epoch, 1, "acts", None, effects=(effect,), due=1.0))

    arrange(send)
    assert holdfast("streams", "effects", KEY, "--json").lines[0]["target"] == HIDDEN
    assert (
        f"1 effect of {KEY} moved to"
        in holdfast("streams", "drop-effects", KEY, "--target", said, "--yes").out
    )


def test_the_dead_letter_of_an_effect_is_shown_without_the_secrets_of_its_target(
    holdfast: Any, arrange: Any
) -> None:
    letter = dead_letter_of(
        OutgoingEffect(effect_id(KEY, 1, 1, 0), SECRET, "", b"{}", KEY, "0:1"), "detect", 7.0
    )
    arrange(commit)
    arrange(lambda services: services.queue("detect").bury([letter]))
    for command in (("show", letter.id), ("show", letter.id, "--json"), ("ls", "--json")):
        shown = holdfast("dlq", *command).out
        assert (HIDDEN in shown, "s3cr3t" in shown) == (True, False)


# --- config and doctor


def test_config_show_names_value_and_source(holdfast: Any, place: Path) -> None:
    (place / "holdfast.toml").write_text('peer_secret = "correct-horse-battery"\nttl_s = 9\n')
    (shown,) = holdfast("config", "show", "--set", "port=80", "--json").lines
    assert shown["port"] == {"value": 80, "source": "the command line"}
    assert shown["ttl_s"] == {"value": 9.0, "source": "holdfast.toml"}
    assert shown["create_queues"] == {"value": False, "source": "default"}
    assert shown["advertise"] == {"value": None, "source": "default"}
    assert shown["peer_secret"] == {"value": "***", "source": "holdfast.toml"}
    for_people = holdfast("config", "show").out
    assert "correct-horse" not in for_people
    assert ["create_queues", "false", "default"] in [line.split() for line in for_people.splitlines()]


def test_a_variable_that_is_no_setting_is_named_with_the_nearest_one(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TTLS", "3")
    monkeypatch.setenv("HOLDFAST_CREDENTIAL_ACME", "{}")
    (place / ".env").write_text("HOLDFAST_SLOT=1\nOTHER_SLOT=1\n")
    told = [json.loads(line) for line in holdfast("config", "show").err.splitlines()]
    assert {line["variable"]: line["fix"] for line in told} == {
        "HOLDFAST_TTLS": "did you mean HOLDFAST_TTL_S?",
        "HOLDFAST_SLOT": "did you mean HOLDFAST_SLOTS?",
    }


@pytest.mark.parametrize("setting", ["TTL_S=abc", "Ttl_S=abc"])
def test_a_setting_may_be_written_as_in_the_environment(holdfast: Any, place: Path, setting: str) -> None:
    outcome = holdfast("config", "show", "--set", setting)
    assert outcome.code == 2
    assert "ttl_s is 'abc' (from the command line): it should be a valid number" in " ".join(
        outcome.err.split()
    )
    (place / "holdfast.toml").write_text("TTL_S = 9\n")
    (shown,) = holdfast("config", "show", "--json").lines
    assert shown["ttl_s"] == {"value": 9.0, "source": "holdfast.toml"}


READING = [
    ("status",),
    ("results",),
    ("why", "s/k"),
    ("move", "s/k", "--to", "a"),
    ("streams", "pause", "s/k"),
    ("dlq", "ls", "s"),
    ("dlq", "redrive", "--app", "reports"),
    ("tasks", "ls", "reports"),
    ("tasks", "nodes", "reports"),
    ("reports", "status"),
    ("limits", "ls", "reports"),
    ("outbox", "ls", "faces", "--set", "outbox_url=sqlite:///office.db"),
]


@pytest.mark.parametrize("command", READING)
def test_what_only_reads_makes_no_database(holdfast: Any, place: Path, command: tuple[str, ...]) -> None:
    outcome = holdfast(*command)
    assert [*place.iterdir()] == []
    assert outcome.code == 2
    assert "doesn't exist" in outcome.err


@pytest.mark.parametrize("more", [(), ("bare:app",)], ids=["alone", "app"])
def test_doctor_makes_nothing_and_says_what_is_not_there_yet(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (place / "bare.py").write_text(
        "from holdfast import App\n"
        "app = App('bare')\n"
        "@app.stream('detect', archive='file:archive')\n"
        "def detect(message, context):\n"
        "    return None\n"
    )
    before = [*place.iterdir()]
    outcome = holdfast("doctor", *more, "--json", "--set", "outbox_url=sqlite:///office.db")
    assert {path for path in place.iterdir() if path.name != "__pycache__"} == {*before}
    found = {line["check"]: line for line in outcome.lines}
    assert not {"coordinator", "queue"} & {*found}, "it is the same database"
    for check, name in (("state store", "holdfast.db"), ("outbox", "office.db")):
        assert found[check]["verdict"] == "warning"
        assert f"there is no database {place / name} yet" in found[check]["text"]
        assert "start a node, which makes it" in found[check]["fix"]
    assert f"there is no folder {place / 'holdfast-objects'} yet" in found["objects"]["text"]
    if more:
        assert "bare declares detect" in found["app"]["text"]
        assert f"there is no folder {place / 'archive'} yet" in found["archive"]["text"]
    assert outcome.code == 0


def test_doctor_says_what_can_not_be_made(holdfast: Any, place: Path) -> None:
    (place / "way").write_text("in the way")
    outcome = holdfast(
        "doctor", "--json", "--url", "sqlite:///way/holdfast.db", "--set", "objects_url=file:way/objects"
    )
    assert outcome.code == 2
    found = {line["check"]: line for line in outcome.lines}
    assert f"and {place / 'way'} isn't a directory" in found["state store"]["text"]
    assert f"and {place / 'way'} isn't a directory" in found["objects"]["text"]
    assert {found[check]["verdict"] for check in ("state store", "objects")} == {"failed"}


@pytest.fixture
def closed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that another user keeps to himself. For root no modes count, so the system's answer is put in
    place of it."""
    folder, stat = place / "closed", os.stat
    folder.mkdir()

    def refuse(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if not isinstance(path, int) and folder in (place / os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", refuse)
    return folder


@pytest.mark.parametrize(
    "name, command",
    [
        ("holdfast.db", ("doctor",)),
        ("holdfast.db", ("doctor", "--upgrade")),
        ("holdfast.db", ("status",)),
        ("office.db", ("outbox", "ls", "faces")),
    ],
)
def test_a_database_in_a_folder_that_is_closed_to_this_user_is_named(
    holdfast: Any, closed: Path, name: str, command: tuple[str, ...]
) -> None:
    urls = ("--url", "sqlite:///closed/holdfast.db", "--set", "outbox_url=sqlite:///closed/office.db")
    outcome = holdfast(*command, *urls)
    assert outcome.code == 2
    assert f"{name} can't be reached by this user: Permission denied" in outcome.out + outcome.err


def test_doctor_says_once_that_a_database_can_not_be_reached(holdfast: Any, closed: Path) -> None:
    outcome = holdfast("doctor", "--json", "--url", "sqlite:///closed/holdfast.db")
    found = {line["check"]: line for line in outcome.lines}
    assert found["state store"]["verdict"] == "failed"
    assert not {"coordinator", "queue", "files"} & {*found}, "it is the same database"


def test_doctor_looks_at_a_queue_though_the_database_of_streams_is_missing(
    holdfast: Any, arrange: Any, place: Path, database: None
) -> None:
    outcome = holdfast("doctor", "--json", "--set", "coordinator_url=sqlite:///other.db")
    assert outcome.code == 0
    found = {line["check"]: (line["verdict"], line["text"]) for line in outcome.lines}
    assert (found["state store"][0], found["coordinator"][0]) == ("ok", "warning")
    assert found["queue"] == ("ok", "sqlite:///holdfast.db: no stream known yet")


@pytest.mark.usefixtures("database")
def test_doctor_names_files_that_others_may_use(holdfast: Any, place: Path) -> None:
    path = place / "holdfast.db"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    (found,) = [line for line in holdfast("doctor", "--json").lines if line["check"] == "files"]
    assert (found["verdict"], found["fix"].startswith("chmod go= ")) == ("warning", True)
    assert "644" in found["text"]
    told = holdfast("doctor", "--json", "--set", "file_access=umask").lines
    assert not [line for line in told if line["check"] == "files"]


@pytest.mark.parametrize("setting, mode", [("owner", 0o600), ("umask", 0o664)])
def test_what_doctor_stores_has_the_mode_of_what_nodes_store(
    holdfast: Any, place: Path, setting: str, mode: int
) -> None:
    (place / "objects").mkdir()
    before = os.umask(0o002)
    try:
        holdfast("doctor", "--set", "objects_url=file:objects", "--set", f"file_access={setting}")
    finally:
        os.umask(before)
    assert (place / "objects" / "holdfast-doctor").stat().st_mode & 0o777 == mode


@pytest.mark.usefixtures("database")
def test_doctor_passes_where_all_is_well(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TTLS", "1")
    outcome = holdfast("doctor", "--json", "--set", "slot_memory_mb=1", "--set", "slots=1")
    assert outcome.code == 0
    found = {line["check"]: line["verdict"] for line in outcome.lines}
    assert set(found) == {
        "settings",
        "environment",
        "machine",
        "state store",
        "coordinator",
        "queue",
        "objects",
        "peer",
    }
    assert {check for check, verdict in found.items() if verdict != "ok"} == {"environment"}
    assert "HOLDFAST_TTLS isn't a setting and has no effect" in holdfast("doctor").out
    assert "did you mean HOLDFAST_TTL_S?" in holdfast("doctor").out


@pytest.mark.usefixtures("database")
def test_doctor_says_what_is_wrong_and_what_to_do(holdfast: Any, place: Path) -> None:
    assert holdfast("doctor", "--set", "port=x").code == 2
    (place / "broken.db").write_bytes(b"no database " * 1000)
    outcome = holdfast(
        "doctor", "--json", "--set", "state_url=sqlite:///broken.db", "--set", "slot_memory_mb=9999999"
    )
    assert outcome.code == 2
    found = {line["check"]: line for line in outcome.lines}
    assert found["state store"]["verdict"] == "failed"
    assert found["coordinator"]["verdict"] == "ok"
    assert "set slot_memory_mb to" in found["machine"]["fix"]


def test_doctor_tells_of_a_node_that_it_cannot_reach(holdfast: Any, arrange: Any) -> None:
    arrange(busy)
    outcome = holdfast("doctor", "--json")
    assert outcome.code == 3
    node = outcome.lines[-1]
    assert (node["check"], node["verdict"]) == ("node node-a", "failed")
    assert "can be reached from here" in node["fix"]


def test_doctor_checks_the_streams_of_an_app(
    holdfast: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (place / "cameras.py").write_text(
        "from holdfast import App\n"
        "app = App('cameras')\n"
        "@app.stream('detect', seq='frame', gap_timeout_s=45.0)\n"
        "def detect(message, context):\n"
        "    return None\n"
    )
    assert "cameras declares detect" in holdfast("doctor", "cameras:app").out
    outcome = holdfast("doctor", "cameras:app", "--set", "visibility_s=60")
    assert outcome.code == 2
    assert "gap_timeout_s is 45.0 and visibility_s is 60.0" in outcome.out
