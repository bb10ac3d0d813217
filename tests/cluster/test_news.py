"""Reports of changed claims, and the answers that they overtake."""

from collections.abc import Callable

import pytest

from holdfast.cluster import host
from holdfast.cluster.host import News
from holdfast.ports.coordinator import Claim

ANSWER = Claim("s/k", "a", 4)


def test_an_answer_is_overtaken_by_a_newer_change_of_its_own_claim_alone() -> None:
    news = News()
    assert not news.overtook(ANSWER)
    news.claimed(ANSWER)
    news.claimed(Claim("s/other", "b", 9))
    assert not news.overtook(ANSWER)
    news.claimed(Claim("s/k", "", 5))
    assert news.overtook(ANSWER)


@pytest.mark.parametrize("gap", [News.lost, News.missed])
def test_after_a_gap_in_the_news_every_answer_is_believed(gap: Callable[[News], None]) -> None:
    news = News()
    news.claimed(Claim("s/k", "b", 5))
    gap(news)
    assert not news.overtook(ANSWER)


def test_only_so_many_changes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "VERSIONS_MAX", 2)
    news = News()
    for key in ("s/k", "s/1", "s/2"):
        news.claimed(Claim(key, "b", 5))
    assert not news.overtook(ANSWER)
    assert news.overtook(Claim("s/2", "a", 4))
