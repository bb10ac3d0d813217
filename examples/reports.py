"""Reports: every night each customer's sales, from the lake to the customer's own server.

Run it:     holdfast node examples.reports:app
Order one:  holdfast tasks send reports report.publish --file order.json
See them:   holdfast reports status --of reports

Needs pip install 'holdfast-streams[reports]'. Secrets are in the environment (HOLDFAST_CREDENTIAL_ACME), or
in the file that HOLDFAST_CREDENTIALS names.
"""

import datetime as dt
import os
from pathlib import Path

import msgspec

from holdfast import App, Order, reports

LAKE = "s3://lake/sales/"
CUSTOMERS = {"acme": "sftp://sftp.acme.example/in"}

app = App("reports")
secrets = os.environ.get("HOLDFAST_CREDENTIALS")
reports.publish_reports(
    app,
    credentials=reports.Credentials(file=Path(secrets) if secrets else None),
    limits=reports.PoolLimits(bytes_rate=reports.Rate(per_s=50_000_000, burst=10_000_000)),
    roots=[LAKE],  # an order can't read anything else
    group_limit=2,  # of one customer's reports at once, on a node
)


@app.periodic("nightly", "30 2 * * *", zone="Europe/Berlin", missed="all")
def nightly(at: dt.datetime) -> list[Order]:
    """Yesterday's sales, for each customer."""
    day = at.date() - dt.timedelta(days=1)
    return [
        Order(
            task_type="report.publish",
            body=msgspec.to_builtins(sales(customer, destination, day)),
            task_id=f"sales-{customer}-{day}",
        )
        for customer, destination in CUSTOMERS.items()
    ]


def sales(customer: str, destination: str, day: dt.date) -> reports.ReportOrder:
    """The report of one customer's day."""
    return reports.ReportOrder(
        customer=customer,
        report="sales",
        date=day,
        time_zone="Europe/Berlin",
        tables=(
            reports.Table(
                sources=(f"{LAKE}day={day}/customer={customer}/",),
                columns=(
                    reports.Column(source="id"),
                    reports.Column(source="sold_at", title="Sold"),
                    reports.Column(source="price", decimals=2),
                ),
            ),
        ),
        name="{report}/{date:%Y-%m}/{customer}-{date}.csv.gz",
        format=reports.Csv(delimiter=";", decimal_separator=",", compression="gzip"),
        delivery=reports.ReportDelivery(
            destination=destination, credentials=customer, companions=("sha256", "ok")
        ),
    )
