"""A site: its cameras, its people, its doors. Five parts that pass work on and lose none.

    cameras ──▶ sites      a stream sends to a stream:  people are counted
            ──▶ webhook    a timer, then an effect:     a camera is silent
            ──▶ doors      an outbox:                   a door opens for a known person
    sites   ◀── report     a task asks a stream:        each night, who came

See it:    make demo-site    (python -m examples.site_demo)
Run it:    holdfast node examples.site:app

Needs pip install 'holdfast-streams[outbox,webhooks]', and an MQTT broker. docs/site.md walks through it.
"""

import datetime as dt
import os
from typing import Any

import msgspec

from holdfast import App, Context, Job, Order, StreamHandler

SITES = ("harbour",)
KNOWN = {"ada", "grace"}
SILENT_S = float(os.environ.get("SITE_SILENT_S", "30"))
ALERTS = os.environ.get("SITE_ALERTS", "https://hooks.example.com/alerts")
DAYS_KEPT = 7

app = App("site")
doors = app.outbox("doors", expires_in_s=10)  # a door opens now, or not at all


class Sight(msgspec.Struct):
    """The people in front of a camera, and the door in its view."""

    camera: str
    site: str
    at: dt.datetime
    people: set[str]
    door: str = ""


class Entry(msgspec.Struct):
    """A person who came."""

    site: str
    day: str
    person: str


@app.stream("cameras", key="camera", message=Sight)
class Camera(StreamHandler[Sight]):
    """Reports new people to the site, opens the door for known ones, and reports a silent camera."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.there = msgspec.json.decode(state, type=set[str]) if state else set()

    def process(self, sight: Sight, context: Context) -> None:
        for person in sorted(sight.people - self.there):
            entry = Entry(sight.site, sight.at.date().isoformat(), person)
            context.send("sites", entry, key=sight.site)
            if sight.door and person in KNOWN:
                context.send("doors", {"open": True, "person": person}, key=sight.door)
        self.there = sight.people
        context.wake("silent", after_s=SILENT_S, body=sight.site)  # instead of the one that is set

    def wake(self, name: str, site: str, context: Context) -> None:
        self.there = set()
        context.send(ALERTS, {"site": site, "camera": context.key, "silent_s": SILENT_S})

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.there)


@app.stream("sites", key="site", message=Entry)
class Site(StreamHandler[Entry]):
    """Counts the people of each day. A query for a day returns who they were."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.days = msgspec.json.decode(state, type=dict[str, set[str]]) if state else {}

    def process(self, entry: Entry, context: Context) -> dict[str, Any]:
        people = self.days.setdefault(entry.day, set())
        people.add(entry.person)
        for old in sorted(self.days)[:-DAYS_KEPT]:
            del self.days[old]
        return {"day": entry.day, "people": len(people)}

    def query(self, day: str, context: Context) -> list[str]:
        return sorted(self.days.get(day, ()))

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.days)


class Report(msgspec.Struct):
    """The report to write."""

    site: str
    day: str


@app.task("report", body=Report)
def report(asked: Report, job: Job) -> str:
    """Ask the site who came, and return it as text."""
    people = app.client.query("sites", asked.site, asked.day).value
    return f"{asked.site}, {asked.day}: {len(people)} people: {', '.join(people)}"


@app.periodic("nightly", "30 2 * * *", zone="Europe/Berlin")
def nightly(when: dt.datetime) -> list[Order]:
    """At half past two in the night, a report of yesterday for each site."""
    yesterday = (when.date() - dt.timedelta(days=1)).isoformat()
    return [report.s(Report(site, yesterday), dedupe=f"{site} {yesterday}") for site in SITES]
