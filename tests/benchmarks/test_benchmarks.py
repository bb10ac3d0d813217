"""The benchmarks run, and the last line is as programs expect it."""

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SMALL = {
    "console": (
        "--streams 500 --letters 50 --requests 10 --idle-s 1",
        {"first_byte_p99_ms", "page_kb", "streams_p99_ms", "cpu_percent", "memory_mb"},
    ),
    "move": (
        "--moves 6",
        {"move_ms", "move_p50_ms", "answer_p50_ms", "answer_p99_ms", "lost", "out_of_order"},
    ),
    "streams": ("--only holdfast --messages 200 --keys 8 --rounds 1", {"messages_per_s"}),
    "deep_key": (
        "--services sqs-fifo --messages 200",
        {
            "one_key_vs_100_sqs_fifo",
            "one_key_per_s_sqs_fifo",
            "inversions_sqs_fifo",
            "set_aside_sqs_fifo",
            "delayed_max_sqs_fifo",
            "memory_mb_sqs_fifo",
        },
    ),
    "effects": (
        "--messages 200 --paced 5 --keys 4 --rounds 1",
        {"messages_per_s", "vs_follower", "effect_p50_ms", "effect_p99_ms", "follower_p50_ms"},
    ),
    "timers": (
        "--timers 100 --keys 10 --lead-s 3 --spread-s 2 --idle-s 2",
        {
            "late_p50_ms",
            "late_p99_ms",
            "late_max_ms",
            "timers_per_s",
            "done_per_s",
            "cpu_us_per_timer",
            "memory_growth",
            "idle_calls_per_node_5s",
        },
    ),
    "traced": ("--messages 200 --keys 8 --rounds 1", {"ms_per_message", "vs_untraced"}),
    "observed": ("--messages 200 --keys 8 --pages 4 --rounds 1", {"vs_without", "pages_vs_without"}),
    "overhead": (
        "--seconds 0.4 --width 160 --streams 2 --processes 1 --rounds 1",
        {"frames_per_s", "vs_bare_loop"},
    ),
    "sqs_cost": (
        "--workers 2 --videos 4 --frames 80 --per-s 100 --visibility-s 1",
        {
            "calls_per_frame",
            "replaced_calls_per_frame",
            "paced_calls_per_frame",
            "replaced_paced_calls_per_frame",
            "p50_ms",
            "p99_ms",
            "replaced_p50_ms",
            "replaced_p99_ms",
            "p99_vs_replaced",
            "dead_lettered",
            "replaced_dead_lettered",
        },
    ),
    "sqs_throughput": (
        "--frames 4000",
        {
            "frames_per_s",
            "best_consumer_per_s",
            "vs_best_consumer",
            "cpu_per_call_us",
            "cpu_per_call_vs_boto3",
            "server_cpu",
        },
    ),
    "s3_client": (
        "--calls 40 --rounds 1",
        {
            "first_call_cpu_vs_aiobotocore",
            "first_call_mb_vs_aiobotocore",
            "get_cpu_vs_aiobotocore",
            "get_us",
            "parts_cpu_vs_aiobotocore",
            "put_cpu_vs_aiobotocore",
            "put_us",
        },
    ),
    "redis_client": (
        "--calls 200 --rounds 1",
        {
            "single_cpu_us",
            "single_cpu_vs_redis_py",
            "single_rate_vs_redis_py",
            "cluster_cpu_us",
            "cluster_cpu_vs_redis_py",
            "cluster_rate_vs_redis_py",
        },
    ),
    "redis_queue": (
        "--only holdfast --messages 200 --keys 8 --tasks 200 --rounds 1",
        {"streams_per_s", "tasks_per_s"},
    ),
    "redis_coordinator": (
        "--nodes 2 --streams 50 --locks 100",
        {
            "claims_per_s",
            "claims_vs_redis_lock",
            "commits_per_s",
            "lock_renewals_per_s",
            "renewals_per_s",
        },
    ),
    "failover": (
        "--services redis,sqs --rounds 1",
        {
            "crash_p50_ms",
            "handover_p50_ms",
            "handover_p99_ms",
            "hidden_max_ms",
            "lost",
            "out_of_order",
            "resumed_p50_ms",
            "resumed_p99_ms",
            "resumed_share",
            "undisturbed_p50_ms",
            "undisturbed_p99_ms",
        },
    ),
    "tasks": (
        "--tasks 200 --ones 5 --rounds 1 --peers",
        {"tasks_per_s", "durable_tasks_per_s", "p50_ms", "p99_ms"},
    ),
    "tasks_cost": (
        "--tasks 200 --paced 20 --unbatched 5",
        {"calls_per_task", "paced_calls_per_task", "unbatched_calls_per_task"},
    ),
    "hung": (
        "--tasks 20 --peers",
        {
            "timeout_brief_max_s",
            "hangs_without_end",
            "others_without_end",
            "others_p99_ms",
            "others_p99_ratio",
        },
    ),
    "fairness": (
        "--large 20 --customers 5 --each 2 --rounds 1",
        {
            "small_p99_ratio",
            "small_p99_ms",
            "small_alone_p99_ms",
            "ungrouped_small_p99_ratio",
            "ungrouped_small_p99_ms",
        },
    ),
    "publish_night": ("--orders 8", {"makespan_vs_limit", "failed", "small_p99_s"}),
    "outbox": (
        "--devices 40 --seconds 0.2 --rounds 1",
        {"vs_raw_mqtt_sqlite", "vs_raw_mqtt_postgres", "added_p50_ms", "added_p50_ms_postgres"},
    ),
    "postgres_horizon": (
        "--messages 5000 --tasks 0",
        {"late_commit_s", "messages_per_s", "rate_end_vs_start", "cpu_end_vs_start", "vs_free"},
    ),
    "outbox_depth": (
        "--devices 20 --rows 500 2000 --silent 0.8 --seconds 0.2",
        {"rate_1m_vs_10k", "rate_1m_vs_10k_silent", "vs_replaced_1m", "vs_replaced_1m_silent"},
    ),
    "scaling": (
        "--cameras 2000",
        {"follow_s", "below_need_s", "flaps", "vs_fixed", "vs_ideal", "waits_max_s"},
    ),
    "outbox_silent": (
        "--devices 40 --seconds 0.5",
        {"commands_per_s_each", "rate_half_silent_vs_none"},
    ),
    "outbox_recovery": (
        "--devices 40 --each 100 --seconds 0.4",
        {"recovery_s", "lost", "max_in_flight"},
    ),
}
"""Arguments for those that can be small, and their figures."""

ZERO = {
    "dead_lettered",
    "flaps",
    "hangs_without_end",
    "lost",
    "others_without_end",
    "out_of_order",
    "failed",
} | {
    "inversions_sqs_fifo",
    "set_aside_sqs_fifo",
}
"""Figures that are promises."""

PEERS = {"sqs_throughput": "aiobotocore", "s3_client": "aiobotocore", "redis_coordinator": "redis_lock"}
"""What some compare with in every run, which is installed for benchmarks only (``make bench``): without it
there is nothing to test."""

RUN = [name for name in SMALL if name not in PEERS or find_spec(PEERS[name])]


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("name", RUN)
def test_every_benchmark_runs_and_reports_its_figures(name: str) -> None:
    arguments, figures = SMALL[name]
    line = json.loads(run(name, *arguments.split()).splitlines()[-1])
    assert line["benchmark"] == name
    assert line["cores"] >= 1
    assert line["figures"].keys() == figures
    assert all(line["figures"][promise] == 0 for promise in ZERO & figures)
    assert {"versions", "durability"} <= line["detail"].keys()


@pytest.mark.parametrize("name", [*SMALL, "idle", "gateway", "gateway_failover", "cold_load", "check"])
def test_every_benchmark_has_a_help_page(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 0
    assert "--full" in capsys.readouterr().out


def test_where_a_stream_sent_nothing_the_stall_is_said_to_be_unmeasurable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failover = import_module("benchmarks.gateway_failover")
    assert failover.heard([4, 7], [[1.0, 3.0], [2.0]]) == [[1.0, 3.0], [2.0]]

    async def measure(report: object, *_: object) -> None:
        failover.heard([4, 7], [[1.0, 3.0], []])

    monkeypatch.setattr(failover, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["gateway_failover"])
    with pytest.raises(SystemExit, match=r"can't be measured: 1 of 2 streams \(cam-7 for one\) .* too busy"):
        failover.main()


def test_where_a_stream_has_no_commit_the_failover_is_said_to_be_unmeasurable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failover = import_module("benchmarks.failover")
    traffic = failover.Traffic(None, ["k1"])
    traffic.sent_at = {("k1", 0): 4.0, ("k1", 1): 5.0}
    history = failover.History(traffic)
    history.commits["live/k1"] = [(0, 4.25), (1, 6.0)]
    assert history.crash_ms([(5.5, ["live/k1"])]) == [500.0]
    assert history.handover_ms([(4.0, 5.0, ["live/k1"])]) == [1000.0]
    for measured, given, none in (
        (history.crash_ms, [(7.0, ["live/k1"])], "live/k1 had no commit"),
        (history.crash_ms, [(7.0, [])], "no node that was killed owned a stream"),
        (history.handover_ms, [(7.0, 8.0, ["live/k1"])], "live/k1 was sent nothing"),
        (history.handover_ms, [], "no stream was moved"),
    ):
        with pytest.raises(failover.Unmeasurable, match=none):
            measured(given)

    async def measure(report: object, *_: object) -> None:
        history.crash_ms([(7.0, ["live/k1"])])

    monkeypatch.setattr(failover, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["failover"])
    with pytest.raises(SystemExit, match=r"can't be measured: live/k1 had no commit .* too busy"):
        failover.main()
