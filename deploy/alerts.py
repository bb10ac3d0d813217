"""The recordings and alerts of Prometheus. The rules in ``deploy/prometheus`` and the table in the docs are
made from them.

Rules keep the label ``job``, so one Prometheus may watch several clusters, each by a job of its own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Recording(NamedTuple):
    """A series that Prometheus computes from others."""

    name: str
    expr: str


class Alert(NamedTuple):
    """A warning: it fires once ``expr`` has been true for ``lasts``.

    ``summary`` says what is wrong, with the labels of the series; ``meaning`` explains it, and ``to_do`` says
    what to do. ``see`` is the section of the docs with more about it."""

    name: str
    severity: Literal["critical", "warning", "info"]
    lasts: str
    expr: str
    summary: str
    meaning: str
    to_do: str
    see: str


def _quantile(metric: str, label: str, window: str) -> Recording:
    return Recording(
        f"{label}:{metric}:p99",
        f"histogram_quantile(0.99, sum by (job, {label}, le) (rate({metric}_bucket[{window}])))",
    )


RECORDINGS = (
    _quantile("holdfast_delivery_seconds", "stream", "5m"),
    _quantile("holdfast_handler_seconds", "stream", "5m"),
    _quantile("holdfast_commit_seconds", "stream", "5m"),
    _quantile("holdfast_stall_seconds", "stream", "30m"),
    _quantile("holdfast_effect_seconds", "target", "5m"),
    _quantile("holdfast_task_wait_seconds", "type", "5m"),
    _quantile("holdfast_task_run_seconds", "type", "5m"),
    Recording("job:holdfast_committed:rate", "sum by (job) (rate(holdfast_committed_total[5m]))"),
    Recording("queue:holdfast_queue_messages:max", "max by (job, queue, state) (holdfast_queue_messages)"),
    Recording("queue:holdfast_queue_age_seconds:max", "max by (job, queue) (holdfast_queue_age_seconds)"),
)

OPERATIONS = "operations.md"
NOW = "0m"

ALERTS = (
    Alert(
        "HoldfastNodeDown",
        "critical",
        "1m",
        'up{job=~".*holdfast.*"} == 0',
        "node {{ $labels.instance }} doesn't answer Prometheus",
        "The process has ended, or its host can't be reached. Its streams continue on other nodes, if any.",
        "Check that its supervisor restarts it, and read the end of its log. If the node was removed for"
        " good, remove it from Prometheus' targets.",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastNodeLost",
        "warning",
        NOW,
        "sum by (job) (increase(holdfast_evictions_total[5m])) > 0",
        "nodes of {{ $labels.job }} have found a dead node",
        "A node's process ended without a drain. Its work continued on other nodes.",
        "Find the cause in its log, the kernel's log (out of memory) or the events of its container or unit."
        " Stop nodes with SIGTERM, so that they drain.",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastNodeCutOff",
        "critical",
        "1m",
        "holdfast_member == 0 unless holdfast_draining == 1",
        "node {{ $labels.instance }} has no valid membership",
        "The node can't reach the coordinator. It starts nothing new, and other nodes take its streams.",
        "Run `holdfast doctor` on the host: does the coordinator run, and can this host reach it?",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastStreamsParked",
        "warning",
        "1m",
        "sum by (job) (holdfast_parked_streams) > 0",
        "{{ $value }} streams of {{ $labels.job }} are parked",
        "A parked stream handles nothing until an operator resumes it: its handler failed for good and"
        " on_failure is `park`, its state can't be loaded, or an operator paused it.",
        "`holdfast status` shows them with their reasons. Repair the cause, then `holdfast streams resume`.",
        f"{OPERATIONS}#look",
    ),
    Alert(
        "HoldfastStreamWaitsLong",
        "warning",
        "1m",
        'max by (job, reason) (holdfast_longest_wait_seconds{reason!="parked"}) > 300',
        "a stream of {{ $labels.job }} has waited for {{ $value | humanizeDuration }}: {{ $labels.reason }}",
        "A stream has messages and can't continue. The reason says what it waits for, such as a missing"
        " message (`gap`), a model, its archive, or a target that accepts nothing (`effects`).",
        "`holdfast status` shows the stream and its reason; `holdfast why` has more about one stream.",
        f"{OPERATIONS}#look",
    ),
    Alert(
        "HoldfastDeadLettersGrow",
        "warning",
        NOW,
        "sum by (job) (increase(holdfast_set_aside_total[15m]))"
        " + sum by (job) (increase(holdfast_malformed_total[15m])) > 0",
        "{{ $value | humanize }} messages of {{ $labels.job }} went to the dead letters in 15 minutes",
        "Messages or tasks became dead letters: their handler failed in every attempt, they couldn't be read,"
        " or a target refused an effect.",
        "`holdfast dlq ls` shows reasons and tracebacks. Once the cause is repaired, `holdfast dlq redrive`"
        " sends them again.",
        f"{OPERATIONS}#dead-letters",
    ),
    Alert(
        "HoldfastQueueAges",
        "warning",
        "5m",
        "max by (job, queue) (holdfast_queue_age_seconds) > 300"
        " and max by (job, queue) (delta(holdfast_queue_age_seconds[10m])) > 0",
        "the oldest message of queue {{ $labels.queue }} is {{ $value | humanizeDuration }} old, and grows"
        " older",
        "More messages arrive than are handled, or the oldest one isn't handled at all.",
        "If slots are busy, add nodes or slots. If they aren't, a stream waits: `holdfast status` shows"
        " the reason.",
        f"{OPERATIONS}#look",
    ),
    Alert(
        "HoldfastQueueGrows",
        "warning",
        "15m",
        'max by (job, queue) (holdfast_queue_messages{state="ready"}) > 1000'
        ' and max by (job, queue) (delta(holdfast_queue_messages{state="ready"}[30m])) > 0',
        "{{ $value }} messages wait in queue {{ $labels.queue }}, and more arrive",
        "More messages arrive than are handled. This is for queues without the age of their oldest message,"
        " such as SQS.",
        "If slots are busy, add nodes or slots. If they aren't, a stream waits: `holdfast status` shows"
        " the reason.",
        f"{OPERATIONS}#look",
    ),
    Alert(
        "HoldfastQueueUnknown",
        "warning",
        "5m",
        "max by (job, instance) (holdfast_queues_unknown) > 0",
        "node {{ $labels.instance }} can't read the depth of {{ $value }} queues",
        "The queue doesn't answer, refuses the request (a missing permission), or takes longer than 2 s."
        " Until then, alerts on these queues can't fire.",
        "`holdfast doctor` on the host shows the queue's answer.",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastFailoverSlow",
        "warning",
        NOW,
        "histogram_quantile(0.99, sum by (job, le) (rate(holdfast_stall_seconds_bucket[15m]))) > 2",
        "streams of {{ $labels.job }} stood still for {{ $value | humanizeDuration }} when they changed"
        " nodes",
        "When a node ends or a stream moves, its next commit elsewhere should follow in less than 0.3 s.",
        "Check whether the new owner had to load models (declare them, so that they are loaded before a"
        " move), whether the state is large, and whether coordinator and store were slow at that time.",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastCommitsSlow",
        "warning",
        "10m",
        "histogram_quantile(0.99, sum by (job, le) (rate(holdfast_commit_seconds_bucket[5m]))) > 1",
        "one in a hundred commits of {{ $labels.job }} takes {{ $value | humanizeDuration }}",
        "The state store is slow, or its calls fail and are repeated.",
        "Check the store's load, disk and locks. For PostgreSQL see also HoldfastHorizonHeld.",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastStoreMayForget",
        "critical",
        "10m",
        'max by (job) (holdfast_store_risks{verdict="failed"}) > 0',
        "the servers of {{ $labels.job }} are set so that commits will be lost",
        "The queue or the state store keeps committed data only in memory, may drop it when memory is short,"
        " or is a replica.",
        "`holdfast doctor` names the server, the setting and what to set instead.",
        f"{OPERATIONS}#durability",
    ),
    Alert(
        "HoldfastStoreForgot",
        "critical",
        NOW,
        "sum by (job) (increase(holdfast_states_lost_total[1h])) > 0",
        "the state store of {{ $labels.job }} has lost commits",
        "A node opened a stream and found fewer commits than it had seen: the store was emptied, or was"
        " restored from an older snapshot.",
        "The log names each stream and how it continues (`commits lost by the state store`). Find out what"
        " happened to the store before more is lost.",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastModelDoesNotLoad",
        "warning",
        "1m",
        "max by (job, instance) (holdfast_streams_without_models) > 0",
        "node {{ $labels.instance }} can't run {{ $value }} of its streams: a model doesn't load",
        "A model's file is missing or damaged there, or there isn't enough memory. Its streams move to nodes"
        " that can load it; without such a node, their messages wait.",
        "`holdfast status` shows the error. The node tries again by itself, so repairing the file is enough.",
        f"{OPERATIONS}#look",
    ),
    Alert(
        "HoldfastEffectsStuck",
        "warning",
        "5m",
        "max by (job) (holdfast_pending_effects_seconds) > 300",
        "an effect of {{ $labels.job }} has waited for its target for {{ $value | humanizeDuration }}",
        "A target accepts nothing: it is down, answers with errors, or asks for pauses. Effects stay in order"
        " and are tried again. Above max_pending_effects, their streams stand still.",
        "`holdfast status` names stream and target. Check that the target runs and accepts effects.",
        "acting.md#when-something-goes-wrong",
    ),
    Alert(
        "HoldfastTasksFail",
        "warning",
        "5m",
        "(sum by (job) (increase(holdfast_tasks_failed_total[15m]))"
        " + sum by (job) (increase(holdfast_tasks_timed_out_total[15m])))"
        " > 0.1 * sum by (job) (increase(holdfast_tasks_started_total[15m]))",
        "more than one in ten attempts of {{ $labels.job }} ends in a task that fails for good",
        "Tasks fail in all their attempts, or exceed their time limit.",
        "`holdfast tasks ls` shows them, and their dead letters have the tracebacks.",
        "tasks.md#retries-timeouts-and-dead-letters",
    ),
    Alert(
        "HoldfastSlotsDie",
        "warning",
        NOW,
        "sum by (job, instance) (increase(holdfast_slot_deaths_total[15m])) > 3",
        "slots of node {{ $labels.instance }} have died {{ $value | humanize }} times in 15 minutes",
        "Processes that run handlers hang and are killed, run out of memory, or crash. The messages are tried"
        " again; one that kills its slot in every attempt goes to the dead letters.",
        "The log says why each died, with its tracebacks (`slot died`, `slot hung`).",
        f"{OPERATIONS}#when-something-dies",
    ),
    Alert(
        "HoldfastGapsSkipped",
        "info",
        NOW,
        "sum by (job) (increase(holdfast_gaps_skipped_total[15m])) > 0",
        "streams of {{ $labels.job }} continued without missing messages",
        "A message was missing for gap_timeout_s, and the stream skipped it, as on_gap says.",
        "The log names stream and numbers (`gap skipped`). Check whether its sender lost them.",
        f"{OPERATIONS}#look",
    ),
    Alert(
        "HoldfastOutboxOffline",
        "critical",
        "2m",
        "sum by (job, outbox) (holdfast_outbox_connected) < sum by (job, outbox) (holdfast_outbox_shards)",
        "outbox {{ $labels.outbox }} has parts without a connection to the MQTT server",
        "The devices of these parts get no commands, which wait in the outbox.",
        "Run `holdfast doctor` on a node: does the MQTT server run, and does it accept nodes?",
        "outbox.md#when-something-dies",
    ),
    Alert(
        "HoldfastOutboxStuck",
        "warning",
        "5m",
        "sum by (job, outbox) (holdfast_outbox_in_flight) > 0"
        " and sum by (job, outbox) (rate(holdfast_outbox_turns_total[10m])) == 0",
        "outbox {{ $labels.outbox }} waits for devices, and writes nothing",
        "Commands are unanswered, and neither answers nor repetitions were written for ten minutes: the"
        " dispatcher stands still, as when its database is locked.",
        "Read the log of the node that serves these devices, and check the outbox's database for locks.",
        "outbox.md#when-something-dies",
    ),
    Alert(
        "HoldfastHorizonHeld",
        "warning",
        "5m",
        "max by (job, setting, holder) (holdfast_database_snapshot_seconds) > 900"
        " or max by (job, setting, holder) (holdfast_database_snapshot_transactions) > 1000000",
        "PostgreSQL can't remove old rows: a {{ $labels.holder }} holds them back ({{ $labels.setting }})",
        "Old versions of rows stay while a session may still read them, so Holdfast's tables become slow.",
        "`holdfast doctor` names the holder. End the transaction, resolve the prepared one, drop the"
        " replication slot, or end the standby's long queries.",
        "postgres.md#old-versions-of-rows",
    ),
    Alert(
        "HoldfastDeadRows",
        "warning",
        "30m",
        'max by (job, setting, table) (holdfast_database_rows{kind="dead"}) > 100000 and'
        ' max by (job, setting, table) (holdfast_database_rows{kind="dead"})'
        ' > max by (job, setting, table) (holdfast_database_rows{kind="live"})',
        "table {{ $labels.table }} has {{ $value | humanize }} old versions of rows ({{ $labels.setting }})",
        "Vacuum can't keep up with this table, so it becomes slow.",
        "Check that autovacuum runs, and that no session holds it back (HoldfastHorizonHeld).",
        "postgres.md#old-versions-of-rows",
    ),
)
