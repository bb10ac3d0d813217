"""What an app declares, and what its tasks are sent by."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import App, Job, Order
from holdfast.app.app import named_targets
from holdfast.common.retry import Backoff
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import ConfigError, InvalidMessage
from holdfast.streams.spec import StreamSpec
from holdfast.tasks.spec import TaskSettings, TaskSpec
from holdfast.testing import TaskTest

app = App("reports")


class Invoice(msgspec.Struct):
    customer: str
    number: int = 0


@app.task("invoice.send", body=Invoice, tries=7)
def send_invoice(invoice: Invoice, job: Job) -> str:
    """Send one invoice."""
    job.progress(0.5, "half")
    job.log.info("sending", number=invoice.number)
    return f"{invoice.customer} {job.attempt}/{job.tries} {job.deadline_s > 0}"


@app.task("count")
async def count(body: dict[str, Any], job: Job) -> int:
    return len(body)


class Convert:
    def run(self, body: dict[str, Any], job: Job) -> int:
        return len(body)


convert = app.task("convert")(Convert)


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def declared(spec: type[msgspec.Struct], *but: str) -> dict[str, Any]:
    """The settings of a spec, with their defaults."""
    fields = {field.name: field for field in msgspec.structs.fields(spec) if field.name not in but}
    return {name: field.default for name, field in fields.items()}


def test_a_setting_of_a_stream_is_declared_twice_and_the_same() -> None:
    said = keywords(App.stream)
    assert [said.pop(name) for name in ("message", "state", "initial", "version")] == [None] * 4
    assert (said.pop("seq_kind"), said.pop("max_jump")) == (None, "auto")
    assert said == declared(StreamSpec, "name", "handler", "message", "seq_kind", "max_jump")


def test_a_setting_of_a_task_is_declared_twice_and_the_same() -> None:
    said = keywords(App.task)
    assert said.keys() - {"body"} == TaskSettings.__annotations__.keys()
    assert said.pop("body") == dict[str, Any]
    assert said == declared(TaskSpec, "name", "handler", "body")


def test_a_setting_of_an_outbox_is_declared_twice_and_the_same() -> None:
    said = keywords(App.outbox)
    objects = ("topics", "dialect", "patience", "presence", "group_rates")
    assert {said.pop(name) for name in objects} == {None}
    assert said == declared(OutboxSpec, "name", *objects)
    made, default = App("a").outbox("doors").spec, OutboxSpec(name="doors")
    assert type(made.dialect) is type(default.dialect)
    assert msgspec.structs.replace(made, dialect=default.dialect) == default


# --- tasks that are called, and sent


def test_a_task_can_be_called_as_the_function_that_it_is() -> None:
    assert send_invoice(Invoice("acme")) == "acme 1/7 True"
    assert convert({"a": 1, "b": 2}) == 2
    assert send_invoice.__name__ == "send_invoice"
    assert send_invoice.__doc__ == "Send one invoice."
    assert repr(send_invoice) == "<task 'invoice.send' of app 'reports'>"


async def test_an_async_task_can_be_called_too() -> None:
    assert await count({"a": 1}) == 1


def test_a_task_is_tested_by_itself() -> None:
    test = TaskTest(send_invoice)
    assert test.run({"customer": "acme"}) == "acme 1/7 True"
    assert test.steps[0].note == "half"
    with pytest.raises(InvalidMessage, match="customer"):
        test.run({})


def test_one_function_may_be_two_tasks() -> None:
    other = App("other")
    again = other.task("again", body=Invoice)(send_invoice)
    assert again.handler is send_invoice.handler
    assert again(Invoice("acme")).startswith("acme 1/3")


def test_what_is_sent_later_is_an_order() -> None:
    order = send_invoice.s(Invoice("acme", 7), dedupe="7", group="acme", priority=3, delay_s=1.5)
    assert isinstance(order, Order)
    assert (order.task_type, order.body) == ("invoice.send", Invoice("acme", 7))
    assert (order.dedupe, order.group, order.priority, order.delay_s) == ("7", "acme", 3, 1.5)
    with pytest.raises(InvalidMessage, match="priority"):
        send_invoice.s(Invoice("acme"), priority=2**40)


async def test_tasks_are_sent_by_the_client_of_their_app(tmp_path: Path) -> None:
    app.connect(url=f"sqlite:///{tmp_path}/holdfast.db")
    try:
        first = send_invoice.send(Invoice("acme"), dedupe="7")
        assert send_invoice.s(Invoice("acme"), dedupe="7").send() == first
        assert await send_invoice.asend(Invoice("acme"), dedupe="7") == first
        assert await send_invoice.s(Invoice("acme"), task_id="mine").asend() == "mine"
        both = app.client.send_many([send_invoice.s(Invoice("acme"), task_id="a"), count.s({}, task_id="b")])
        assert both == ["a", "b"]
        standing = app.client.status("b")
        assert standing is not None
        assert (standing.type, standing.group) == ("count", "")
    finally:
        app.disconnect()


def test_an_app_finds_its_services_as_a_node_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        count.send({}, task_id="a")
        assert (tmp_path / "holdfast.db").exists()
        client = app.client
        app.disconnect()
        with pytest.raises(RuntimeError, match="closed"):
            client.status("a")
        assert app.client.status("a") is not None, "a new one, at the same place"
    finally:
        app.disconnect()


@pytest.mark.slow
def test_a_program_that_has_sent_ends_in_silence(tmp_path: Path) -> None:
    """Though it closes nothing."""
    program = """
from holdfast import App
app = App("reports")
count = app.task("count")(lambda body, job: None)
print(count.send({}, trace_id="a"))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")


@pytest.mark.slow
def test_after_a_fork_an_app_sends_where_it_was_connected(tmp_path: Path) -> None:
    program = """
import os
from holdfast import App
app = App("reports")
count = app.task("count")(lambda body, job: None)
app.connect(url="sqlite:///connected.db")
client = app.client
if not (child := os.fork()):
    print(count.send({}, trace_id="a"))
    try:
        client.status("a")
    except RuntimeError as error:
        print(error, flush=True)
    client.close()
    os._exit(0)
os.waitpid(child, 0)
print(app.client.status("a").type)
app.disconnect()
print(count.send({}, trace_id="b"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    said = ["a", "the client was made before a fork; make one in each process", "count", "b"]
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
    assert (tmp_path / "holdfast.db").exists(), "what was connected ends with disconnect"


def test_what_a_task_gets_is_of_the_type_that_was_sent(tmp_path: Path) -> None:
    import pydantic

    class Model(pydantic.BaseModel):
        at: int = pydantic.Field(alias="when")

    made = App("models")

    @made.task("model", body=Model)
    def read(body: Model, job: Job) -> int:
        return body.at

    assert TaskTest(read).run(Model(when=7)) == 7


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="keyy"):
        app.stream("s", keyy="a")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"backoff\.first_s"):
        app.task("t", backoff=Backoff(-1.0))(count)


def test_a_name_that_two_kinds_have_needs_its_kind() -> None:
    assert named_targets({"stream": ["alerts", "sites"], "task": ["alerts"]}) == {
        "sites": ("stream", "sites"),
        "stream:alerts": ("stream", "alerts"),
        "stream:sites": ("stream", "sites"),
        "task:alerts": ("task", "alerts"),
    }
