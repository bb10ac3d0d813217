"""Tasks: statements of account to write, for many customers, each run once it is its turn.

Run it:    holdfast node examples.tasks:app
Feed it:   holdfast tasks send statements write '{"customer": "acme", "pages": 3}' --wait
Watch it:  holdfast tasks watch statements
"""

from datetime import datetime
from pathlib import Path

import msgspec

from holdfast import App, Job, Order

app = App("statements")


class Statement(msgspec.Struct):
    """What is asked for."""

    customer: str
    pages: int = 1


class NoSuchCustomer(Exception):
    """No retry helps."""


@app.task("write", body=Statement, timeout_s=60, group="customer", group_limit=2, permanent=NoSuchCustomer)
def write(statement: Statement, job: Job) -> str:
    """Write one customer's statement, page by page; returns where it is."""
    if not statement.customer:
        raise NoSuchCustomer("customer is empty")
    file = Path(f"{statement.customer}.txt")
    with file.open("w") as out:
        for page in range(1, statement.pages + 1):
            out.write(f"{statement.customer}, page {page}\n")
            job.progress(page / statement.pages, f"page {page}")
    return str(file)


@app.periodic("nightly", "30 2 * * *", zone="Europe/Berlin")
def nightly(when: datetime) -> list[Order]:
    """At half past two in the night, one task for each customer."""
    customers = ("acme", "globex")
    return [write.s(Statement(customer, pages=3)) for customer in customers]
