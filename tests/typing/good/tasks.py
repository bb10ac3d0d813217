"""Types of tasks that are declared, sent and called as they should be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type

from holdfast import App, Client, Job, Order, Outcome, SentTask, Signature, TaskType

app = App("reports")


@dataclass
class Invoice:
    customer: str
    number: int = 0


@app.task(
    "invoice.send",
    body=Invoice,
    timeout_s=60,
    permanent=(KeyError, ValueError),
    group=lambda invoice: invoice.customer,
)
def send_invoice(invoice: Invoice, job: Job) -> str:
    job.progress(1.0)
    return invoice.customer


@app.task("publish")
async def publish(body: dict[str, Any], job: Job) -> int:
    return len(body)


@app.task("mail", body=str, permanent=KeyError)
def mail(body: str, job: Job) -> None: ...


class Convert:
    def run(self, body: Invoice, job: Job) -> int:
        return body.number

    def terminate(self, job: Job) -> None: ...


convert = app.task("convert", body=Invoice)(Convert)

assert_type(send_invoice, TaskType[Invoice, str])
assert_type(mail, TaskType[str, None])
assert_type(convert, TaskType[Invoice, int])


def sent(job: Job) -> None:
    assert_type(send_invoice.send(Invoice("acme"), dedupe="7", priority=1, delay_s=1.5), SentTask[str])
    assert_type(send_invoice.s(Invoice("acme"), group="acme"), Signature[str])
    assert_type(send_invoice.send(Invoice("acme")).result(), str)
    assert_type(send_invoice.send(Invoice("acme")).outcome(5).value, str)
    assert_type(send_invoice(Invoice("acme")), str)
    assert_type(send_invoice(Invoice("acme"), job), str)
    assert_type(convert(Invoice("acme")), int)
    mail.send("text", task_id="t")
    with Client(app, url="sqlite:///a.db") as client:
        assert_type(client.send_many([send_invoice.s(Invoice("acme")), Order(task_type="mail")]), list[str])
        assert_type(client.send("mail", "text", dedupe="7"), str)


async def sent_async() -> None:
    assert_type(await publish.asend({"pages": 3}), SentTask[int])
    assert_type(await publish.s({"pages": 3}).asend(), SentTask[int])
    assert_type(await publish({}), int)
    sent = await publish.asend({})
    assert_type(await sent.aresult(timeout_s=5), int)
    assert_type(await sent.aoutcome(), Outcome[int])


@app.periodic("nightly", "30 2 * * *", zone="Europe/Berlin", missed="all")
def nightly(when: datetime) -> list[Signature]:
    return [send_invoice.s(Invoice(customer)) for customer in ("acme", "globex")]
