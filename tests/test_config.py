"""The config: where settings come from, what is refused and how it is said."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, get_type_hints

import pytest
from pydantic import SecretStr

from holdfast.config.contradictions import check
from holdfast.config.problems import reference
from holdfast.config.settings import ClientSettings, Config, NodeSettings
from holdfast.config.sources import explain, load
from holdfast.errors import ConfigError
from holdfast.rules.streams.options import OwnerOptions
from holdfast.services.memory.state import MemoryState
from holdfast.services.postgres.state import PostgresState
from holdfast.services.postgres.tasks import PostgresTasks
from holdfast.services.redis.state import RedisState
from holdfast.services.sqlite.database import Database
from holdfast.services.sqlite.state import SqliteState

SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in Config.model_fields:
        monkeypatch.delenv(f"HOLDFAST_{name.upper()}", raising=False)
    return tmp_path


def refusal(overrides: dict[str, Any] | None = None, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(overrides, file)
    return str(caught.value)


def sources(config: Config) -> dict[str, str]:
    return {setting.name: setting.source for setting in explain(config)}


def test_defaults_agree_with_each_other() -> None:
    config = load()
    assert config.queue_url == config.coordinator_url == config.state_url == config.url
    assert config.renew_s == pytest.approx(config.ttl_s / 3, abs=0.001)
    assert 1 <= config.slots <= 8
    assert set(sources(config).values()) == {"default"}


def test_of_several_sources_of_a_setting_the_nearest_wins(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "holdfast.toml").write_text("port = 1\nslots = 1\nmax_held = 2001\nttl_s = 9\n")
    (place / ".env").write_text("HOLDFAST_PORT=2\nHOLDFAST_SLOTS=2\nHOLDFAST_MAX_HELD=2002\nOTHER=1\n")
    monkeypatch.setenv("HOLDFAST_PORT", "3")
    monkeypatch.setenv("HOLDFAST_SLOTS", "3")
    config = load({"port": 4, "host": None})
    assert (config.port, config.slots, config.max_held, config.ttl_s) == (4, 3, 2002, 9)
    assert config.host == "127.0.0.1"
    came_from = sources(config)
    assert came_from["port"] == "the command line"
    assert came_from["slots"] == "the environment"
    assert came_from["max_held"] == ".env"
    assert came_from["ttl_s"] == "holdfast.toml"
    assert came_from["host"] == "default"


def test_derived_defaults_follow_what_is_set() -> None:
    config = load({"url": "sqlite:///other.db", "state_url": "sqlite:///state.db", "ttl_s": 9})
    assert (config.queue_url, config.state_url) == ("sqlite:///other.db", "sqlite:///state.db")
    assert config.renew_s == pytest.approx(3)


def test_a_named_file_replaces_the_usual_one(place: Path) -> None:
    (place / "holdfast.toml").write_text("port = 1\n")
    (place / "other.toml").write_text("slots = 2\n")
    config = load(file=Path("other.toml"))
    assert (config.port, config.slots) == (0, 2)
    assert sources(config)["slots"] == "other.toml"


def test_a_loaded_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().port = 1


def test_a_child_process_loads_the_same_config(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load({"peer_secret": SECRET, "port": 7, "durability": "normal"})
    for name, value in config.environment().items():
        monkeypatch.setenv(name, value)
    assert load().model_dump() == config.model_dump()


def test_what_is_emptied_stays_empty_in_a_child_process(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "holdfast.toml").write_text('trace_url = "http://collector:4318"\nrevision = "a"\n')
    (place / ".env").write_text("HOLDFAST_VALUES_URL=file:values\n")
    config = load({"trace_url": "", "values_url": ""})
    for name, value in config.environment().items():
        monkeypatch.setenv(name, value)
    child = load()
    assert (child.trace_url, child.values_url, child.revision) == ("", "", "a")
    assert child.model_dump() == config.model_dump()


# --- what is refused


def test_an_unknown_setting_names_the_nearest(place: Path) -> None:
    (place / "holdfast.toml").write_text("visiblity_s = 1\nzzz = 1\n")
    text = refusal()
    assert "unknown setting 'visiblity_s' in holdfast.toml; did you mean 'visibility_s'?" in text
    assert "unknown setting 'zzz' in holdfast.toml; `holdfast config show` lists the settings" in text


def test_a_wrong_value_names_setting_value_source_and_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TTL_S", "soon")
    text = refusal()
    assert "ttl_s is 'soon' (from the environment): it should be a valid number" in text
    assert "renew_s" not in text


def test_a_wrong_default_names_the_setting_that_it_follows() -> None:
    text = refusal({"ttl_s": "0.001"})
    assert "renew_s is 0.0 (its default, ttl_s / 3): it should be greater than 0." in text
    assert "Change ttl_s, or set renew_s. (Seconds between" in text
    text = refusal({"visibility_s": "1e-323"})
    assert "custody_check_s is 0.0 (its default, visibility_s / 4): it should be greater than 0." in text


def test_secrets_of_targets_that_are_no_json_are_refused_unshown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TARGET_SECRETS", "https://a.example/=whsec_hunter2")
    with pytest.raises(
        ConfigError, match=r"target_secrets .* \(from the environment\): it should be a JSON"
    ) as raised:
        load()
    assert "hunter2" not in str(raised.value)


def test_variables_may_be_in_lower_case_and_empty_ones_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("holdfast_slots", "3")
    monkeypatch.setenv("HOLDFAST_TTL_S", "")
    config = load()
    assert (config.slots, config.ttl_s) == (3, Config.model_fields["ttl_s"].default)


def test_everything_wrong_is_told_at_once() -> None:
    text = refusal({"port": 70000, "durability": "half", "slots": 0, "visibility_s": "inf"})
    assert "port is 70000 (from the command line): it should be less than or equal to 65535" in text
    assert "durability is 'half' (from the command line): it should be 'full' or 'normal'" in text
    assert "slots is 0" in text
    assert "visibility_s is 'inf'" in text


@pytest.mark.parametrize("secret", ["short", "with\nline-breaks-in-it", "ümlautümlautümlaut"])
def test_a_weak_secret_is_refused_and_not_shown(secret: str) -> None:
    text = refusal({"peer_secret": secret})
    assert "peer_secret is *** (from the command line): it should be 16 printable ASCII characters" in text
    assert secret not in text


def test_a_file_that_cannot_be_read(place: Path) -> None:
    assert "isn't a file" in refusal(file=Path("absent.toml"))
    (place / "holdfast.toml").write_text("port = \n")
    text = refusal()
    assert "'holdfast.toml' can't be read" in text
    assert "line 1" in text
    (place / "holdfast.toml").write_bytes(b"\xff")
    assert "'holdfast.toml' can't be read" in refusal()
    (place / "holdfast.toml").unlink()
    (place / ".env").write_bytes(b"\xff")
    assert ".env can't be read" in refusal()


@pytest.mark.parametrize(
    "overrides, named",
    [
        ({"renew_s": 3.0}, ["renew_s is 3.0", "ttl_s is 5.0", "below 2.5"]),
        ({"lock_timeout_s": 4.0}, ["lock_timeout_s is 4.0", "ttl_s is 5.0"]),
        ({"model_memory_mb": 3000}, ["model_memory_mb is 3000", "slot_memory_mb is 2048"]),
        ({"max_held": 10}, ["custody_limit is 2000", "max_held is 10"]),
        ({"peer_secret_also": "n" * 16}, ["peer_secret_also is set and peer_secret is not"]),
        ({"peer_tls_cert": "a.pem", "peer_tls_ca": "b.pem"}, ["peer_tls_key is not set", "all three"]),
        ({"max_peer_bytes": 10}, ["max_message_bytes is 1048576", "max_peer_bytes is 10", "1114112 or more"]),
        ({"custody_check_s": 30.0}, ["custody_check_s is 30.0", "visibility_s is 30.0"]),
        ({"move_timeout_s": 31.0}, ["move_timeout_s is 31.0", "drain_timeout_s is 30.0"]),
        (
            {"queue_url": "sqs:///", "drain_timeout_s": 20.0},
            ["receive_wait_s is 20.0", "drain_timeout_s is 20.0"],
        ),
    ],
)
def test_a_contradiction_names_both_of_its_settings(overrides: dict[str, Any], named: list[str]) -> None:
    text = refusal(overrides)
    for part in named:
        assert part in text


def stream(**settings: Any) -> Any:
    plain = {
        "name": "detect",
        "gap_timeout_s": 45.0,
        "prefer_latency": False,
        "seq_kind": "dense",
        "inbox_limit": 256,
        "idle_timeout_s": 60.0,
        "restart_after_s": None,
    }
    return SimpleNamespace(**{**plain, **settings})


def test_streams_that_agree_with_the_config() -> None:
    check(load(), [stream(), stream(gap_timeout_s=1.0, prefer_latency=True)])
    check(load(), [stream(gap_timeout_s=1.0, seq_kind="absent")])


def test_settings_of_streams_that_contradict_the_config_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check(
            load(), [stream(gap_timeout_s=30.0), stream(name="track", inbox_limit=6000, restart_after_s=30.0)]
        )
    text = str(caught.value)
    assert "stream 'detect': gap_timeout_s is 30.0 and visibility_s is 30.0" in text
    assert "stream 'track': restart_after_s is 30.0 and visibility_s is 30.0" in text
    assert "stream 'track': inbox_limit is 6000 and max_held is 5000" in text


# --- what is shown


def test_a_config_never_shows_its_secrets() -> None:
    config = load({"peer_secret": SECRET, "url": "redis://user:hunter2@host/0"})
    shown = repr(explain(config))
    assert SECRET not in shown
    assert "hunter2" not in shown
    assert "redis://user:***@host/0" in shown
    assert SECRET not in repr(config)


def test_the_reference_names_every_setting() -> None:
    text = reference()
    for name, field in Config.model_fields.items():
        assert f"| `{name}` |" in text
        assert field.description
        assert field.description in text
    assert "`ttl_s` / 3" in text


@pytest.mark.parametrize(
    "adapter",
    [MemoryState, SqliteState, RedisState, PostgresState, PostgresTasks, Database.open, OwnerOptions],
)
def test_what_an_adapter_takes_by_default_is_what_a_node_takes(adapter: Callable[..., Any]) -> None:
    given = {
        name: parameter.default
        for name, parameter in inspect.signature(adapter).parameters.items()
        if name in Config.model_fields and parameter.default is not inspect.Parameter.empty
    }
    assert given
    assert given == {name: Config.model_fields[name].default for name in given}


@pytest.mark.parametrize("settings", [NodeSettings, ClientSettings])
def test_the_types_of_settings_that_programs_give_are_those_of_the_config(settings: type) -> None:
    types = {name: field.annotation for name, field in Config.model_fields.items()}
    for name, given in get_type_hints(settings).items():
        assert given == _plain(types.pop(name)), name
    assert types == {} or settings is ClientSettings


def _plain(kind: Any) -> Any:
    """The type as programs give it: secrets are texts, and what may be left out isn't None."""
    kinds = {dict[str, SecretStr]: dict[str, str], SecretStr: str}
    given = [part for part in getattr(kind, "__args__", ()) if part is not type(None)]
    if isinstance(kind, UnionType):
        return kinds.get(given[0], given[0])
    return kinds.get(kind, kind)
