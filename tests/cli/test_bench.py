"""``holdfast bench``: it measures two real nodes, of which it kills one."""

import pytest

from tests.command_line import Holdfast


@pytest.mark.slow
def test_a_benchmark_measures_and_finds_nothing_wrong(holdfast: Holdfast) -> None:
    ran = holdfast("bench", "--seconds", "2", "--json", "--set", "slots=1", "--set", "durability=normal")
    assert ran.code == 0, ran.err
    (report,) = ran.lines
    assert (report["lost"], report["doubled"], report["out_of_order"]) == (0, 0, 0)
    assert report["messages"] > 400
    assert report["messages_per_s"] > 0
    assert 0 < report["latency_p50_ms"] <= report["latency_p99_ms"]
    assert report["failover_ms"] >= report["latency_p50_ms"]
    assert report["services"]["queue_url"].startswith("sqlite:")


def test_a_benchmark_of_services_that_are_away_says_so(holdfast: Holdfast) -> None:
    ran = holdfast("bench", "--seconds", "0")
    assert ran.code == 2
    ran = holdfast("bench", "--url", "redis://127.0.0.1:1")
    assert ran.code == 3, ran.err
