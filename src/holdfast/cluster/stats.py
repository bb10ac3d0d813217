"""The counters of a node: plain numbers, which the metrics page renders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, get_type_hints

import msgspec

BUSY = "Busy slots, by kind of work."
SLOTS_MAX = "The most busy slots at once (limits: slots, task_slots)."


class Numbers(NamedTuple):
    """The values of one metric by the value of its label. The label's values are names that the app or this
    code declares, so that their number doesn't grow with the number of keys."""

    kind: Literal["counter", "gauge"]
    name: str
    meaning: str
    label: str
    values: Mapping[str, float]


class Stats(msgspec.Struct):
    """Counters since the node's start, each with its meaning."""

    received: Annotated[int, "Deliveries received from the queue."] = 0
    malformed: Annotated[int, "Of these, without a usable key."] = 0
    forwarded: Annotated[int, "Messages that other nodes accepted from this one."] = 0
    accepted: Annotated[int, "Messages accepted from other nodes."] = 0
    redirected: Annotated[int, "Messages sent on to the owner that another node named."] = 0
    given_back: Annotated[int, "Messages given back to the queue."] = 0
    put_back: Annotated[int, "Messages put back at once, because their owner had reserved their key."] = 0
    reissued: Annotated[int, "Messages sent again before the queue's limit on one delivery."] = 0
    handled: Annotated[int, "Messages that handlers have handled, committed or not."] = 0
    committed: Annotated[int, "Messages handled and committed."] = 0
    commits: Annotated[int, "Commits."] = 0
    effects: Annotated[int, "Effects that their targets have taken."] = 0
    nudges: Annotated[int, "Streams without a working owner that were due, and got one."] = 0
    queries: Annotated[int, "Queries that were answered or failed here."] = 0
    queries_failed: Annotated[int, "Of these, without an answer."] = 0
    query_seconds: Annotated[float, "The time that they took, with their waits for their slots."] = 0.0
    duplicates: Annotated[int, "Deliveries found done."] = 0
    set_aside: Annotated[int, "Dead letters sent for keyed messages."] = 0
    gaps_skipped: Annotated[int, "Gaps that stayed open too long, and were skipped."] = 0
    seqs_missed: Annotated[int, "Seqs in them."] = 0
    fenced: Annotated[int, "Refusals by the state store: another opening was ahead."] = 0
    opened: Annotated[int, "Openings of streams."] = 0
    states_lost: Annotated[
        int, "Openings that found an emptied or older state store; the log names each stream."
    ] = 0
    moved_out: Annotated[int, "Streams moved to other nodes."] = 0
    slot_deaths: Annotated[int, "Slots that ended."] = 0
    evictions: Annotated[int, "Memberships of others ended on evidence."] = 0
    memberships: Annotated[int, "Own memberships; more than one says that some were lost."] = 0
    extend_calls: Annotated[int, "Extend calls to the queue."] = 0
    delete_calls: Annotated[int, "Delete calls to the queue."] = 0
    receive_calls: Annotated[int, "Receive calls to the queue."] = 0
    tasks_started: Annotated[int, "Attempts begun."] = 0
    tasks_retried: Annotated[int, "Attempts that failed, and are followed by another."] = 0
    tasks_paused: Annotated[int, "Attempts that asked, by Retry, for another after a pause."] = 0
    tasks_succeeded: Annotated[int, "Tasks that succeeded."] = 0
    tasks_failed: Annotated[int, "Tasks that failed for good, cancelled ones included."] = 0
    tasks_timed_out: Annotated[int, "Tasks whose last attempt timed out."] = 0
    tasks_duplicated: Annotated[int, "Messages whose task had ended before."] = 0
    tasks_lapsed: Annotated[int, "Tasks whose deliveries lapsed."] = 0
    tasks_followed: Annotated[int, "Tasks sent because those before them have ended."] = 0


MEANINGS = {name: hint.__metadata__[0] for name, hint in get_type_hints(Stats, include_extras=True).items()}
"""The meaning of each counter."""
