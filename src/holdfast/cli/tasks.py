"""``holdfast tasks`` and ``holdfast briefs``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from holdfast.cli import output
from holdfast.cli.apart import apart
from holdfast.cli.auditing import audited
from holdfast.cli.options import DEFAULTS, Json, Limit, Options
from holdfast.cli.patience import ReadPatience
from holdfast.common.codec import decode_plain
from holdfast.common.text import counted
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.operate import tasks
from holdfast.operate.tasks import TaskRunner
from holdfast.rules.tasks.task import State, Task
from holdfast.tasks.opening import make_producer, producing
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import Outcome

if TYPE_CHECKING:
    from holdfast.tasks.producer import Producer
    from holdfast.wiring.services import Services

app = App(name="tasks", help="Send, show, cancel and retry tasks.")

LOOK_S = 0.5
PAGE = 500
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Owner = Annotated[str, Parameter(help="Name of the app whose tasks they are.")]
Trace = Annotated[str, Parameter(help="The task's id.")]
WaitTimeout = Annotated[
    float | None,
    Parameter(
        validator=Number(gte=0),
        help="Wait for this many seconds at most; the exit code is 1 if it hasn't ended by then.",
    ),
]
Since = Annotated[str, Parameter(help="Only within this time: 90s, 15m, 2h or 7d.")]


@app.command
async def send(
    owner: Owner,
    task_type: str,
    body: str = "null",
    /,
    *,
    file: Path | None = None,
    text: bool = False,
    trace_id: str = "",
    dedupe: str = "",
    group: str = "",
    priority: int = 0,
    delay_s: float = 0.0,
    at: datetime | None = None,
    timeout_s: float | None = None,
    tries: int | None = None,
    then: list[str] | None = None,
    on_failure: list[str] | None = None,
    wait: bool = False,
    wait_timeout_s: WaitTimeout = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Send a task; prints its task id.

    ```
    holdfast tasks send reports report.publish '{"customer": "acme"}' --group acme
    holdfast tasks send reports report.publish --file order.json --wait
    holdfast tasks send reports report.publish 7 --then '{"task_type": "mail.send", "body": "a@example.com"}'
    ```

    Args:
        task_type: One of the types that the app declares.
        body: The body for the handler, as JSON.
        file: Read the body from a file instead.
        text: The body is plain text, not JSON.
        trace_id: Its id; made up if left out.
        dedupe: Of the tasks of one type with the same key, only the first is run.
        group: The group whose limits count, such as a customer.
        priority: The higher the sooner.
        delay_s: Seconds before it may begin.
        at: Time at which it may begin, such as 2026-12-24T18:00+01:00; a past time means at once.
        timeout_s: Seconds for one attempt, instead of the time of its type.
        tries: The most attempts, instead of its type's.
        then: A task to send when it has succeeded, as a JSON object; may be repeated.
        on_failure: A task to send if it ends otherwise, as a JSON object; may be repeated.
        wait: Wait for its outcome; the exit code is 1 unless it succeeds.
        json: Print JSON.
    """
    given = body if file is None else await _text_of(file)
    try:
        value = given if text else decode_plain(given.encode())
    except ValueError as error:
        raise ConfigError(
            f"the body can't be read: {error}; quote it for the shell, or give --text"
        ) from None
    order = Order(
        task_type=task_type,
        body=value,
        task_id=trace_id,
        dedupe=dedupe,
        group=group,
        priority=priority,
        delay_s=delay_s,
        at=at,
        timeout_s=timeout_s,
        tries=tries,
        then=_followers("--then", then or ()),
        on_failure=_followers("--on-failure", on_failure or ()),
    )
    async with producing(options.load(), owner) as services:
        producer = make_producer(services, owner)
        (trace,) = await producer.send([order])
        return await _sent(services, producer, trace, wait, wait_timeout_s, json)


@app.command
async def batch(
    owner: Owner,
    file: Path,
    /,
    *,
    then: list[str] | None = None,
    on_failure: list[str] | None = None,
    trace_id: str = "",
    dedupe: str = "",
    wait: bool = False,
    wait_timeout_s: WaitTimeout = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Send tasks together, and follow-up tasks when all have ended; prints the id of the batch.

    ```
    holdfast tasks batch reports month.jsonl --then '{"task_type": "month.close", "body": "2026-11"}'
    ```

    Args:
        file: The tasks: on each line a JSON object with `task_type` and `body`.
        then: A task to send when all have succeeded, as a JSON object; may be repeated.
        on_failure: A task to send when all have ended and one has failed; as `then`.
        trace_id: The id of the batch; made up if left out.
        dedupe: Of the batches with the same key, only the first is run.
        wait: Wait until all have ended; the exit code is 1 unless all succeed.
        json: Print JSON.
    """
    text = await _text_of(file)
    orders = [
        order
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
        for order in _followers(f"line {number} of {file}", [line])
    ]
    follow_ups = {
        "then": _followers("--then", then or ()),
        "on_failure": _followers("--on-failure", on_failure or ()),
    }
    async with producing(options.load(), owner) as services:
        producer = make_producer(services, owner)
        trace = await producer.send_batch(orders, **follow_ups, task_id=trace_id, dedupe=dedupe)
        return await _sent(services, producer, trace, wait, wait_timeout_s, json)


async def _text_of(file: Path) -> str:
    try:
        return await apart(partial(file.read_text, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{str(file)!r} can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{str(file)!r} can't be read: byte {error.start} isn't UTF-8") from None


def _followers(option: str, texts: Sequence[str]) -> list[Order]:
    from holdfast.tasks.api import follow_up  # noqa: PLC0415

    try:
        return [follow_up(text) for text in texts]
    except InvalidMessage as error:
        raise ConfigError(f"{option}: {error}") from None


@app.command
async def ls(
    owner: Owner,
    /,
    *,
    state: State | None = None,
    task_type: Annotated[str, Parameter(name="--type")] = "",
    since: Since = "",
    limit: Limit = 100,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """List tasks, and the number of each type in each state.

    ```
    holdfast tasks ls reports
    holdfast tasks ls reports --state failed --since 2h --json
    ```

    Args:
        state: Only tasks in this state.
        task_type: Only tasks of this type.
        limit: The most to list.
        json: Print JSON lines.
    """
    from holdfast.tasks.api import shown  # noqa: PLC0415

    async with producing(options.load(), owner, reads_only=True) as services:
        found = await tasks.listed(services, owner, limit, state=state, task_type=task_type, since=ago(since))
        counts = await tasks.counts(services, owner)
    if json:
        for task in found:
            output.json_line(shown(task))
        return
    totals = ", ".join(f"{name} {state.value}: {count}" for (name, state), count in sorted(counts.items()))
    output.console().print(output.table(f"Tasks of {owner}", COLUMNS, map(_row, found)))
    output.say(totals or "no tasks are known")


@app.command
async def nodes(owner: Owner, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """List the types of tasks with the living nodes that run them, from the registry.

    ```
    holdfast tasks nodes reports
    ```

    Args:
        json: Print JSON lines, one for a type and a node.
    """
    async with producing(options.load(), owner, reads_only=True) as services:
        found = await tasks.runners(services, owner)
    title, records = f"Nodes that run the tasks of {owner}", [each._asdict() for each in found]
    output.show(title, TaskRunner._fields, found, records, json=json)


@app.command
async def show(owner: Owner, trace_id: Trace, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Show one task: state, progress, result or error.

    ```
    holdfast tasks show reports 0d9f5c
    ```

    Args:
        json: Print a JSON object.
    """
    from holdfast.tasks.api import shown  # noqa: PLC0415

    async with producing(options.load(), owner, reads_only=True) as services:
        task = await tasks.known(services, owner, trace_id)
    if json:
        output.json_line(shown(task))
        return
    for name, value in msgspec.to_builtins(shown(task)).items():
        output.say(f"{name}: {output.moment(value) if name.endswith('_at') else value}")


@app.command
async def stack(owner: Owner, trace_id: Trace, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Show where a running task is: the stack of its handler, and its progress. The handler goes on.

    ```
    holdfast tasks stack reports 0d9f5c
    ```

    Args:
        json: Print a JSON object.
    """
    async with producing(options.load(), owner, reads_only=True) as services:
        found = await tasks.look(services, owner, trace_id)
    if json:
        output.json_line(found)
        return
    numbers = "".join(f", {name} {value:g}" for name, value in found.numbers.items())
    output.say(
        f"on {found.node} for {found.ran_s:.1f} s; {found.progress:.0%} {found.note}{numbers},"
        f" reported {found.quiet_s:.1f} s ago"
    )
    output.say(tasks.NO_STACKS if found.stacks is None else found.stacks)


@app.command
async def cancel(
    owner: Owner,
    trace_id: Trace,
    /,
    *,
    reason: str = tasks.DEFAULT_REASON,
    options: Options = DEFAULTS,
) -> None:
    """Cancel a task: at once if it waits, within seconds if it runs. Its brief says FAILED, with the reason.

    ```
    holdfast tasks cancel reports 0d9f5c --reason "ordered twice"
    ```

    Args:
        reason: The reason that its producer gets.
    """
    async with (
        producing(options.load(), owner, reads_only=True) as services,
        audited(services, tasks.CANCEL_ACTION, f"{owner}/{trace_id}", {"reason": reason}),
    ):
        await tasks.cancel(services, owner, trace_id, reason)
    output.say(f"{trace_id}: being cancelled")


@app.command
async def retry(owner: Owner, *trace_ids: Trace, options: Options = DEFAULTS) -> None:
    """Run failed tasks in the dead letters again, with all their tries.

    ```
    holdfast tasks retry reports 0d9f5c 77ab01
    ```
    """
    async with producing(options.load(), owner, reads_only=True) as services:
        for trace_id in trace_ids:
            async with audited(services, tasks.RETRY_ACTION, f"{owner}/{trace_id}"):
                await tasks.retry(services, owner, trace_id)
            output.say(f"{trace_id}: sent again")


@app.command
async def watch(
    owner: Owner,
    *trace_ids: Trace,
    task_type: Annotated[str, Parameter(name="--type")] = "",
    options: Options = DEFAULTS,
) -> None:
    """Show the progress of running tasks: until the named tasks have ended or are deleted, or for ever.
    Reads of an unavailable store are repeated.

    ```
    holdfast tasks watch reports
    holdfast tasks watch reports 0d9f5c
    ```

    Args:
        task_type: Only tasks of this type.
    """
    bars = progress_bars()
    async with producing(options.load(), owner, reads_only=True) as services:
        store, patience = services.task_store(owner), ReadPatience(services.clock, ever=True)
        known: dict[str, Any] = {}
        awaited: Collection[str] = dict.fromkeys(trace_ids)

        async def read() -> Sequence[Task]:
            if trace_ids:
                return [task for trace in awaited if (task := await store.get(trace)) is not None]
            return await store.list(PAGE, state=State.RUNNING, type=task_type)

        with Live(bars, console=bars.console, refresh_per_second=4):
            while True:
                found = await patience.read(read)
                there = {task.task_id: task for task in found}
                gone = [trace for trace in awaited if trace not in there]
                if gone and not known:  # the first read
                    raise tasks.not_known(*gone)
                for trace in gone:
                    output.complain(f"task {trace!r} was deleted")
                awaited = [trace for trace in awaited if trace in there]
                draw(bars, known, found)
                if trace_ids and all(task.ended for task in found):
                    return
                await asyncio.sleep(LOOK_S)


async def briefs(
    owner: Owner,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    keep: bool = False,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"])] = None,
    json: Json = False,
    options: Options = DEFAULTS,
) -> None:
    """Print outcomes as JSON lines as they come, and acknowledge each, so that no other reader gets it.

    ```
    holdfast briefs reports --follow
    holdfast briefs reports --keep --limit 10
    ```

    Args:
        follow: Wait for more outcomes instead of ending.
        keep: Don't acknowledge: outcomes come again in a minute, here or to another reader.
        limit: End after this number of outcomes.
        json: No effect: the output is always JSON lines.
    """
    async with producing(options.load(), owner) as services:
        left = limit
        async with contextlib.aclosing(make_producer(services, owner).briefs(follow=follow)) as found:
            async for brief in found:
                output.json_line(outcome_record(brief.outcome))
                if not keep:
                    brief.ack()
                if left is not None:
                    left -= 1
                    if left <= 0:
                        return


COLUMNS = ["task id", "type", "state", "attempts", "progress", "node", "since", "detail"]


def _row(task: Task) -> Sequence[Any]:
    return [
        task.task_id,
        task.type,
        task.state.value,
        task.attempts,
        f"{task.progress:.0%}",
        task.node,
        output.local_moment(task.moved_at),
        task.note or task.detail.partition("\n")[0][:80],
    ]


def progress_bars() -> Progress:
    """Return the bars of tasks, without any yet."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=output.console(),
    )


def draw(bars: Progress, known: dict[str, Any], tasks: Sequence[Task]) -> None:
    """Draw a bar for each of the tasks. ``known`` keeps the bar of each task between two calls."""
    for task in tasks:
        if task.task_id not in known:
            known[task.task_id] = bars.add_task(f"{task.type} {task.task_id}", total=1.0, note="")
        note = task.note if task.state is State.RUNNING else task.state.value
        bars.update(known[task.task_id], completed=task.progress, note=note)
    for trace in known.keys() - {task.task_id for task in tasks}:
        bars.remove_task(known.pop(trace))


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a JSON record."""
    fields = {field.encode_name: getattr(outcome, field.name) for field in msgspec.structs.fields(outcome)}
    return {name: output.moment(value) if name.endswith("_at") else value for name, value in fields.items()}


async def _sent(
    services: Services, producer: Producer, trace: str, wait: bool, timeout_s: float | None, json: bool
) -> int:
    """Print the id of a sent task, or wait for its outcome and print that; returns the exit code."""
    output.go_on_unread()
    if wait or timeout_s is not None:
        output.remark(f"{trace}: sent")  # for a wait that is interrupted
        try:
            outcome = await producer.wait(trace, timeout_s, read=ReadPatience(services.clock).read)
        except TimeoutError as error:
            output.complain(f"{error}, and goes on; look at it with `holdfast tasks show`")
            return 1
        _print_outcome(outcome, json)
        return 0 if outcome.ok else 1
    if json:
        output.json_line({"trace_id": trace})
    else:
        output.say(trace)
    return 0


def _print_outcome(outcome: Outcome, json: bool) -> None:
    if json:
        output.json_line(outcome_record(outcome))
        return
    output.say(f"{outcome.task_id}: {outcome.state.value} after {counted(outcome.attempts, 'attempt')}")
    for text in (outcome.detail, "" if outcome.value is None else str(outcome.value)):
        if text:
            output.say(text)


def ago(text: str) -> float:
    """Return the wall time this long ago; 0 for an empty text. Raises ConfigError."""
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not found:
        raise ConfigError(f"--since {text!r} must be a number with s, m, h or d, such as 2h")
    return time.time() - float(found[1]) * UNITS_S[found[2]]
