"""Types of tasks with a setting that there isn't, a value that can't be, or another body than declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast import App, Client, Job

app = App("reports")


@dataclass
class Invoice:
    customer: str


app.task("a", trise=3)  # error
app.task("a", hold="for ever")  # error
app.task("a", permanent="KeyError")  # error


@app.task("a", body=Invoice)  # error
def of_text(body: str, job: Job) -> None: ...


@app.task("a")  # error
def of_invoices(body: Invoice, job: Job) -> None: ...


@app.task("a")  # error
def without_job(body: dict[str, Any]) -> None: ...


@app.task("a", body=Invoice)  # error
class OfText:
    def run(self, body: str, job: Job) -> None: ...


@app.task("a", body=Invoice)  # error
class NoRun:
    pass


@app.task("a", body=Invoice)
def send(invoice: Invoice, job: Job) -> None: ...


send.send({"customer": "acme"})  # error
send.send(Invoice("acme"), dedup="7")  # error
send.s("acme")  # error
send("acme")  # error
send.send(Invoice("acme"), delay_s="1")  # error

with Client("reports") as client:
    client.send("a", {}, dedup="7")  # error
    client.send("a", {}, priority="high")  # error
    client.redrive(trace_id="t")  # error

Client("reports", registry="redis://localhost")  # error
Client("reports", receive_wait_s="20")  # error
