"""An environment written for consumers that lock each video, run as it is."""

import os
from pathlib import Path

import pytest

from holdfast.config import legacy_names
from holdfast.config.settings import Config
from holdfast.config.sources import explain, load
from holdfast.errors import ConfigError

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/frames"
WHOLE = {
    "AWS_REGION": "eu-west-1",
    "SQS_QUEUE_URL": QUEUE,
    "REDIS_HOST": "redis.internal",
    "REDIS_PORT": "6380",
    "LOCK_TTL_SECONDS": "30",
    "LOCK_RENEWAL_INTERVAL_SECONDS": "10",
    "PROCESSING_IDLE_TIMEOUT_SECONDS": "120",
}
REDIS = "redis://redis.internal:6380"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an environment without settings, old or new."""
    monkeypatch.chdir(tmp_path)
    for name in (*(f"HOLDFAST_{name.upper()}" for name in Config.model_fields), *legacy_names.NAMES):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_REGION", "AWS_SECRET_ACCESS_KEY"):  # so that what a test sets by .env ends with it
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)


def shown(name: str) -> tuple[str | float | bool | None, str]:
    """A setting's value and source, as they are shown."""
    (found,) = [setting for setting in explain(load()) if setting.name == name]
    return found.value, found.source


def told(**given: str) -> dict[str, str]:
    """The settings that follow from some variables."""
    return {name: value for name, (value, _) in legacy_names.settings(given, {}, ()).items()}


def refusal(**given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        legacy_names.settings(given, {}, ())
    return str(caught.value)


@pytest.mark.usefixtures("environment")
def test_the_whole_older_environment_is_understood() -> None:
    config = load()
    assert config.queue_url == QUEUE
    assert config.coordinator_url == config.state_url == REDIS
    assert config.objects_url == "s3://"
    assert (config.ttl_s, config.renew_s, config.idle_timeout_s) == (30, 10, 120)


@pytest.mark.usefixtures("environment")
def test_a_setting_s_source_is_its_older_name() -> None:
    assert shown("queue_url") == (QUEUE, "SQS_QUEUE_URL in the environment")
    assert shown("state_url") == (REDIS, "REDIS_HOST in the environment")
    assert shown("ttl_s") == (30.0, "LOCK_TTL_SECONDS in the environment")
    assert shown("renew_s") == (10.0, "LOCK_RENEWAL_INTERVAL_SECONDS in the environment")
    assert shown("idle_timeout_s") == (120.0, "PROCESSING_IDLE_TIMEOUT_SECONDS in the environment")
    assert shown("objects_url")[1] == "the buckets that messages name, by SQS_QUEUE_URL in the environment"


def test_older_names_are_read_from_a_dotenv_file_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / ".env").write_text("\n".join(f"{name}={value}" for name, value in WHOLE.items()))
    monkeypatch.setenv("LOCK_TTL_SECONDS", "60")
    config = load()
    assert (config.queue_url, config.state_url, config.ttl_s, config.renew_s) == (QUEUE, REDIS, 60, 10)
    assert shown("queue_url")[1] == "SQS_QUEUE_URL in .env"
    assert shown("ttl_s")[1] == "LOCK_TTL_SECONDS in the environment"


def test_what_the_file_says_of_aws_reaches_the_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / ".env").write_text("AWS_REGION=eu-west-1\nAWS_SECRET_ACCESS_KEY=of-the-file\nOTHER=1\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    load()
    assert os.environ["AWS_REGION"] == "eu-west-1"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "of-the-environment"
    assert "OTHER" not in os.environ


@pytest.mark.usefixtures("environment")
def test_own_settings_come_before_older_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "holdfast.toml").write_text('state_url = "sqlite:///state.db"\nidle_timeout_s = 7\n')
    monkeypatch.setenv("HOLDFAST_OBJECTS_URL", "file:frames")
    config = load({"queue_url": "sqs:///frames"})
    assert config.queue_url == "sqs:///frames"
    assert config.state_url == "sqlite:///state.db"
    assert config.coordinator_url == REDIS
    assert config.objects_url == "file:frames"
    assert (config.idle_timeout_s, config.ttl_s) == (7, 30)


@pytest.mark.usefixtures("environment")
def test_an_own_url_names_all_three_services() -> None:
    config = load({"url": "sqlite:///own.db"})
    assert config.queue_url == config.coordinator_url == config.state_url == "sqlite:///own.db"
    assert config.objects_url.startswith("file:")


@pytest.mark.usefixtures("environment")
def test_an_interval_belongs_to_its_ttl() -> None:
    config = load({"ttl_s": 6})
    assert (config.ttl_s, config.renew_s) == (6, 2)
    assert (load({"renew_s": 4}).ttl_s, load({"renew_s": 4}).renew_s) == (30, 4)


@pytest.mark.usefixtures("environment")
def test_a_child_process_loads_the_same_config(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load()
    for name, value in config.environment().items():
        monkeypatch.setenv(name, value)
    assert load().model_dump() == config.model_dump()


def test_the_names_mean_nothing_without_a_service() -> None:
    assert told(REDIS_PORT="1", LOCK_TTL_SECONDS="1", LOCK_RENEWAL_INTERVAL_SECONDS="2") == {}
    assert told(SQS_QUEUE_URL="", REDIS_HOST="") == {}


@pytest.mark.parametrize(
    "given, url",
    [
        ({"REDIS_HOST": "h"}, "redis://h:6379"),
        ({"REDIS_HOST": " h ", "REDIS_PORT": " 7000 "}, "redis://h:7000"),
        ({"REDIS_HOST": "::1"}, "redis://[::1]:6379"),
    ],
)
def test_older_names_of_redis_become_a_url(given: dict[str, str], url: str) -> None:
    assert told(**given) == {"coordinator_url": url, "state_url": url}


@pytest.mark.parametrize(
    "given, named",
    [
        ({"REDIS_HOST": "redis://h"}, ["REDIS_HOST is 'redis://h'", "a host's name"]),
        ({"REDIS_HOST": "h", "REDIS_PORT": "tcp://10.0.0.1:6379"}, ["REDIS_PORT is 'tcp://", "a port"]),
        ({"REDIS_HOST": "h", "REDIS_PORT": "65536"}, ["REDIS_PORT is '65536'"]),
        ({"SQS_QUEUE_URL": "frames", "REDIS_HOST": "h"}, ["SQS_QUEUE_URL is 'frames'", "a queue's URL"]),
        ({"SQS_QUEUE_URL": QUEUE}, ["REDIS_HOST isn't", "set REDIS_HOST", "coordinator_url and state_url"]),
    ],
)
def test_impossible_older_names_are_refused(given: dict[str, str], named: list[str]) -> None:
    text = refusal(**given)
    for part in named:
        assert part in text


def test_a_queue_alone_needs_to_be_told_where_the_rest_is() -> None:
    own = {"coordinator_url", "state_url"}
    assert legacy_names.settings({"SQS_QUEUE_URL": QUEUE}, {}, own)["queue_url"].value == QUEUE
    assert "queue_url" not in legacy_names.settings({"SQS_QUEUE_URL": QUEUE}, {}, {"url"})


# --- times


def times(ttl: str | None, interval: str | None) -> dict[str, str]:
    given = {"LOCK_TTL_SECONDS": ttl or "", "LOCK_RENEWAL_INTERVAL_SECONDS": interval or ""}
    return {
        name: value for name, value in told(REDIS_HOST="h", **given).items() if name in ("ttl_s", "renew_s")
    }


def test_older_names_of_lock_times_become_ttl_and_renewal() -> None:
    assert times("30", "10") == {"ttl_s": "30", "renew_s": "10"}
    assert times("30", None) == {"ttl_s": "30"}
    assert times(None, "10") == {"ttl_s": "30.0", "renew_s": "10"}
    assert times("soon", "10") == {"ttl_s": "soon", "renew_s": "10"}
    assert times("30", "soon") == {"ttl_s": "30", "renew_s": "soon"}


@pytest.mark.parametrize("interval", ["15", "20", "29.9"])
def test_an_interval_over_half_the_ttl_runs_and_is_shortened(interval: str) -> None:
    given = {"REDIS_HOST": "h", "LOCK_TTL_SECONDS": "30", "LOCK_RENEWAL_INTERVAL_SECONDS": interval}
    found = legacy_names.settings(given, {}, ())["renew_s"]
    assert found.value == "10.0"
    assert found.source == (
        "LOCK_TTL_SECONDS / 3, as LOCK_RENEWAL_INTERVAL_SECONDS in the environment is over half of it"
    )


@pytest.mark.parametrize("interval", ["30", "31", "300"])
def test_an_interval_that_is_no_shorter_than_the_ttl_is_refused(interval: str) -> None:
    text = refusal(REDIS_HOST="h", LOCK_TTL_SECONDS="30", LOCK_RENEWAL_INTERVAL_SECONDS=interval)
    assert f"LOCK_RENEWAL_INTERVAL_SECONDS is {interval} and LOCK_TTL_SECONDS is 30" in text
    assert "would lapse before it is renewed" in text
    assert "set LOCK_RENEWAL_INTERVAL_SECONDS to a third of LOCK_TTL_SECONDS" in text


def test_a_wrong_time_is_told_by_its_older_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_HOST", "h")
    monkeypatch.setenv("LOCK_TTL_SECONDS", "soon")
    monkeypatch.setenv("PROCESSING_IDLE_TIMEOUT_SECONDS", "0")
    with pytest.raises(ConfigError) as caught:
        load()
    assert "ttl_s is 'soon' (from LOCK_TTL_SECONDS in the environment)" in str(caught.value)
    assert "idle_timeout_s is '0' (from PROCESSING_IDLE_TIMEOUT_SECONDS" in str(caught.value)


def test_a_short_ttl_is_no_matter_of_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_HOST", "h")
    monkeypatch.setenv("LOCK_TTL_SECONDS", "2")
    assert load().ttl_s == 2
