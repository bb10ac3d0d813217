"""What a node counts. Plain integers here; the metrics page renders them."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct):
    """Counters since the node's start."""

    received: int = 0
    malformed: int = 0
    forwarded: int = 0
    accepted: int = 0
    redirected: int = 0
    given_back: int = 0
    reissued: int = 0
    handled: int = 0
    committed: int = 0
    commits: int = 0
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
    tasks_succeeded: int = 0
    tasks_failed: int = 0
    tasks_timed_out: int = 0
    tasks_duplicated: int = 0
    tasks_lapsed: int = 0
