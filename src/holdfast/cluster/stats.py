"""The counters of a node: plain numbers, which the metrics page renders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

BUSY = "Slots that are at work, by kind of work."
SLOTS_MAX = "Slots that may be at work at once (limits: slots, task_slots)."


class Numbers(NamedTuple):
    """The values of one metric by the value of its label, which must be a name that the app or this code
    declares: there are as many with ten keys as with a million."""

    kind: Literal["counter", "gauge"]
    name: str
    meaning: str
    label: str
    values: Mapping[str, float]


class Stats(msgspec.Struct):
    """Counters since the node's start."""

    received: int = 0
    malformed: int = 0
    forwarded: int = 0
    accepted: int = 0
    redirected: int = 0
    given_back: int = 0
    put_back: int = 0
    reissued: int = 0
    handled: int = 0
    committed: int = 0
    commits: int = 0
    effects: int = 0
    nudges: int = 0
    queries: int = 0
    queries_failed: int = 0
    query_seconds: float = 0.0
    duplicates: int = 0
    set_aside: int = 0
    gaps_skipped: int = 0
    seqs_missed: int = 0
    fenced: int = 0
    opened: int = 0
    states_lost: int = 0
    moved_out: int = 0
    slot_deaths: int = 0
    evictions: int = 0
    memberships: int = 0
    extend_calls: int = 0
    delete_calls: int = 0
    receive_calls: int = 0
    tasks_started: int = 0
    tasks_retried: int = 0
    tasks_paused: int = 0
    tasks_succeeded: int = 0
    tasks_failed: int = 0
    tasks_timed_out: int = 0
    tasks_duplicated: int = 0
    tasks_lapsed: int = 0
    tasks_followed: int = 0


MEANINGS = {
    "received": "Deliveries received from the queue.",
    "malformed": "Of these, without a usable key.",
    "forwarded": "Messages that other nodes accepted from this one.",
    "accepted": "Messages accepted from other nodes.",
    "redirected": "Messages sent on to the owner that another node named.",
    "given_back": "Messages given back to the queue.",
    "put_back": "Messages that went back to the queue at once, for their owner had reserved their key.",
    "reissued": "Messages sent again before the queue's limit on one delivery.",
    "handled": "Messages that handlers have handled, committed or not.",
    "committed": "Messages handled and committed.",
    "commits": "Commits.",
    "effects": "Effects that their targets have taken.",
    "nudges": "Streams without an owner at work that were due, and were brought to one.",
    "queries": "Queries that were answered or failed here.",
    "queries_failed": "Of these, without an answer.",
    "query_seconds": "The time that they took, with their waits for their slots.",
    "duplicates": "Deliveries found done.",
    "set_aside": "Dead letters sent for keyed messages.",
    "gaps_skipped": "Gaps that nobody closed in time, and that were passed over.",
    "seqs_missed": "Seqs in them.",
    "fenced": "Refusals by the state store: another opening was ahead.",
    "opened": "Openings of streams.",
    "states_lost": "Openings that found fewer commits at the state store than this node has seen of the"
    " stream: a store that was emptied, or went back to an older snapshot. The log names each stream.",
    "moved_out": "Streams moved to other nodes.",
    "slot_deaths": "Slots that ended.",
    "evictions": "Memberships of others ended on evidence.",
    "memberships": "Own memberships; more than one says that some were lost.",
    "extend_calls": "Extend calls to the queue.",
    "delete_calls": "Delete calls to the queue.",
    "receive_calls": "Receive calls to the queue.",
    "tasks_started": "Attempts begun.",
    "tasks_retried": "Attempts that failed, and are followed by another.",
    "tasks_paused": "Attempts that asked, by Retry, for another after a pause.",
    "tasks_succeeded": "Tasks that succeeded.",
    "tasks_failed": "Tasks that failed for good, cancelled ones included.",
    "tasks_timed_out": "Tasks that were over their time once too often.",
    "tasks_duplicated": "Messages whose task had ended before.",
    "tasks_followed": "Tasks sent because those before them have ended.",
    "tasks_lapsed": "Tasks let go because their deliveries had lapsed.",
}
"""What each counter counts since the node's start."""
