"""Targets at URLs: which are refused where a handler sends to them, and queues of other programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.config.sources import load
from holdfast.errors import ConfigError, EffectRefused
from holdfast.ports.target import OutgoingEffect
from holdfast.registration.targets import check_target
from holdfast.registration.urls import find_secret, with_password
from holdfast.wiring.services import Services
from holdfast.wiring.target_urls import TargetUrls


@pytest.fixture
async def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    monkeypatch.chdir(tmp_path)
    async with Services(load()) as services:
        yield services


async def test_a_queue_takes_the_body_as_it_is(services: Services, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    target = TargetUrls(services)(f"{url}#door%20bells")
    await target.take([OutgoingEffect("ID7", "", "gate", b"\xff\x00", "cameras/gate", "0:1", hops=3)])
    async with Services(load({"url": url})) as other:
        [delivery] = await other.queue("door bells").receive(10, 0.0, 30.0, "reader")
    assert delivery.body == b"\xff\x00"
    assert delivery.attributes == {"id": "ID7", "source": "cameras/gate", "hops": "3"}


@pytest.mark.parametrize(
    "url, said",
    [
        ("gopher://host/x", r"target is 'gopher://host/x': nothing serves that; use a URL such as 'https://"),
        ("s3://bucket/x", "nothing serves that"),
        ("zookeeper://host#x", "nothing serves that.*'sqlite:///holdfast.db#queue'"),
        ("sqlite:///other.db", "names no queue; put the queue's name behind it"),
        ("sqlite:///other.db#", "names no queue"),
        ("sqlite://user:pw1234@host/other.db#x", "holds a password.*target_secrets"),
        ("redis://[::1/0#x", "target is 'redis://.*': it isn't a URL"),
        ("sqs://eu-west-1/", "names no queue"),
        ("sqs://eu-west-1/frames-{stream}", "names no queue"),
        ("sqs+https://", "target is 'sqs\\+https://': use one such as"),
    ],
)
def test_a_url_that_names_no_target_is_refused(services: Services, url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_target(url)
    assert "pw1234" not in str(caught.value)
    with pytest.raises(EffectRefused, match=said):
        TargetUrls(services)(url)


def test_a_url_that_only_its_service_finds_wrong_is_refused(services: Services) -> None:
    with pytest.raises(EffectRefused, match=r"target is .sqlite:///.*null"):
        TargetUrls(services)("sqlite:///a\0b.db#x")


@pytest.mark.parametrize(
    "url",
    [
        "sqs://eu-west-1/alerts.fifo",
        "sqs://eu-west-1/#alerts",
        "sqs://eu-west-1/site-{stream}#alerts",
        "sqs+https://sqs.eu-west-1.amazonaws.com/123456789012/alerts",
        "https://hooks.example.com",
    ],
)
def test_a_url_of_a_queue_of_sqs_or_a_web_server_is_a_target(url: str) -> None:
    check_target(url)


def test_a_secret_is_found_by_the_longest_url_that_the_target_begins_with() -> None:
    secrets = {"https://a": "host", "https://a/b/": "b", "https://a/b/c": "c", "https://ab": "other"}
    found = {
        "https://a": "host",
        "https://A/": "host",
        "https://a/bc": "host",
        "https://a/b": "b",
        "https://a/b/cd": "b",
        "https://a/b/c?d": "c",
        "https://a:444/b": "",
        "http://a/b": "",
        "https://a.b/": "",
    }
    assert {url: find_secret(url, secrets) for url in found} == found


def test_a_password_is_put_into_the_url_of_a_service() -> None:
    assert with_password("redis://host/0", "p/w@1") == "redis://:p%2Fw%401@host/0"
    assert with_password("redis://me@host:1/0", "pw") == "redis://me:pw@host:1/0"
    assert with_password("redis://host/0", "") == "redis://host/0"
