"""The benchmarks run, and the last line is as programs expect it."""

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as benchmarks
from benchmarks.__main__ import BENCHMARKS
from benchmarks.kept import RESULTS, TOLERANCE, worse

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
    "streams": ("--alone --messages 200 --keys 8 --rounds 1", {"messages_per_s"}),
    "deep-key": (
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
    "traced": ("--messages 200 --keys 8 --rounds 1", {"ms_per_message", "vs_untraced"}),
    "observed": ("--messages 200 --keys 8 --pages 4 --rounds 1", {"vs_without", "pages_vs_without"}),
    "overhead": (
        "--seconds 0.4 --width 160 --streams 2 --processes 1 --rounds 1",
        {"frames_per_s", "vs_bare_loop"},
    ),
    "sqs-throughput": (
        "--frames 4000",
        {"frames_per_s", "best_consumer_per_s", "vs_best_consumer", "server_cpu"},
    ),
    "failover": (
        "--rounds 1",
        {
            "crash_p50_ms",
            "crash_p99_ms",
            "handover_p50_ms",
            "handover_p99_ms",
            "lost",
            "out_of_order",
            "undisturbed_p50_ms",
            "undisturbed_p99_ms",
        },
    ),
    "tasks": (
        "--tasks 200 --ones 5 --rounds 1 --peers",
        {"tasks_per_s", "durable_tasks_per_s", "p50_ms", "p99_ms", "pick_up_p50_ms"},
    ),
    "postgres-horizon": (
        "--messages 5000",
        {"late_commit_s", "messages_per_s", "rate_end_vs_start", "cpu_end_vs_start", "vs_free"},
    ),
    "outbox-depth": (
        "--devices 20 --rows 500 2000 --silent 0.8 --seconds 0.2",
        {"rate_1m_vs_10k", "rate_1m_vs_10k_silent"},
    ),
}
"""Arguments for those that can be small, and their figures."""

ZERO = {"lost", "out_of_order", "inversions_sqs_fifo", "set_aside_sqs_fifo"}
"""Figures that are promises."""

PEERS = {"sqs-throughput": "aiobotocore"}
"""What some compare with in every run, which is installed for benchmarks only (``make bench``): without it
there is nothing to test."""

RUN = [name for name in SMALL if name not in PEERS or find_spec(PEERS[name])]


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", name, *arguments]
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


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmarks.run(name, ["--help"])
    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_kept_result_says_what_was_measured_where(file: Path) -> None:
    result = json.loads(file.read_text())
    assert result["benchmark"] == file.stem
    assert file.stem in BENCHMARKS
    assert result["cores"] >= 1
    assert result["figures"]
    assert {"versions", "durability"} <= result["detail"].keys()


def result(targets: dict[str, str], **figures: float) -> dict[str, Any]:
    return {"figures": figures, "detail": {"targets": targets}}


def test_a_ratio_that_falls_beyond_the_tolerance_is_found() -> None:
    kept = result({}, vs_peer=1.0, per_s=100.0)
    assert worse(kept, result({}, vs_peer=1.01 - TOLERANCE, per_s=1.0)) == []
    assert worse(kept, result({}, vs_peer=0.99 - TOLERANCE, per_s=1.0)) == ["vs_peer is 0.69, and was 1"]


def test_a_ratio_whose_target_is_a_ceiling_is_found_where_it_rises() -> None:
    targets = {"time_vs_peer": "≤ 1.1"}
    kept = result(targets, time_vs_peer=1.0)
    assert worse(kept, result(targets, time_vs_peer=0.1)) == []
    assert worse(kept, result(targets, time_vs_peer=1.5)) == ["time_vs_peer is 1.5, and was 1"]


def test_results_of_different_sizes_are_not_compared() -> None:
    kept = {"figures": {"vs_peer": 1.0}, "detail": {"arguments": ["--messages", "200"]}}
    now = {"figures": {"vs_peer": 0.1}, "detail": {"arguments": []}}
    assert worse(kept, now) == []
    assert worse(kept | {"detail": {"arguments": []}}, now) == ["vs_peer is 0.1, and was 1"]


def test_a_broken_promise_is_found_whatever_was_kept() -> None:
    assert worse(result({}), result({"lost": "0"}, lost=0)) == []
    assert worse(result({}), result({"lost": "0"}, lost=2)) == ["lost is 2, and has to be 0"]


def test_where_a_stream_sent_nothing_the_stall_is_said_to_be_unmeasurable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failover = import_module("benchmarks.gateway_failover")
    assert failover.heard(["cam-4", "cam-7"], [[1.0, 3.0], [2.0]]) == [[1.0, 3.0], [2.0]]

    async def measure(report: object, *_: object) -> None:
        failover.heard(["cam-4", "cam-7"], [[1.0, 3.0], []])

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
