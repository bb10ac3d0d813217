"""The sources of settings: read them all, and show where each setting comes from."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dotenv import dotenv_values
from pydantic import SecretStr, ValidationError

from holdfast.common.redaction import HIDDEN, redact_url
from holdfast.config import legacy_names
from holdfast.config.contradictions import check
from holdfast.config.problems import problems
from holdfast.config.settings import EMPTY, PREFIX, Config
from holdfast.errors import ConfigError

FILE = Path("holdfast.toml")
DOTENV = Path(".env")
NOT_SETTINGS = ("HOLDFAST_CREDENTIAL",)
"""Prefixes of variables that aren't settings: credentials of reports, and the path of a file of them."""


class Setting(NamedTuple):
    """An effective setting, its value safe to show, and its source."""

    name: str
    value: str | float | bool | None
    source: str


def load(overrides: Mapping[str, Any] | None = None, file: Path | None = None) -> Config:
    """Read the settings. ``overrides`` come first, except for None values; ``file`` replaces
    ``holdfast.toml``. Raises ConfigError with every fault.

    Variables of AWS (``AWS_…``) in ``.env`` are copied to the environment of this process, where the
    credentials are read. Variables that are already set there are kept."""
    dotenv = _dotenv()
    layers = [
        ("the command line", {name: value for name, value in (overrides or {}).items() if value is not None}),
        ("the environment", _settings_among(os.environ)),
        (str(DOTENV), _settings_among(dotenv)),
        (str(file or FILE), _toml(file)),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in reversed(layers):
        named = {name.lower(): value for name, value in layer.items()}  # as in the environment
        values.update(named)
        sources.update(dict.fromkeys(named, source))
    for name, given in legacy_names.settings(os.environ, dotenv, values).items():
        values[name], sources[name] = given
    for name, value in dotenv.items():
        if name.startswith("AWS_"):
            os.environ.setdefault(name, value)
    try:
        config = Config(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(problems(error, values, sources))) from None
    config.note_sources(sources)
    check(config)
    return config


def explain(config: Config) -> list[Setting]:
    """Return every setting with its value, secrets hidden, and its source."""
    return [
        Setting(name, _shown(getattr(config, name)), config.source_of(name)) for name in Config.model_fields
    ]


def unknown_variables() -> Iterable[tuple[str, str]]:
    """Yield variables of the environment and of ``.env`` that begin as settings do but name no setting, each
    with advice. They may belong to another version or program, but are more likely misspelt."""
    for variable in sorted({*os.environ, *_dotenv()}):
        name = variable.lower()
        if not variable.startswith(PREFIX) or name.removeprefix(PREFIX.lower()) in Config.model_fields:
            continue
        if variable.startswith(NOT_SETTINGS):
            continue
        near = difflib.get_close_matches(name.removeprefix(PREFIX.lower()), Config.model_fields, 1)
        yield variable, f"did you mean {PREFIX}{near[0].upper()}?" if near else "unset it"


def _dotenv() -> dict[str, str]:
    """Return all variables in ``.env``."""
    try:
        return {name: value for name, value in dotenv_values(DOTENV).items() if value}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{DOTENV} can't be read: {error}") from None


def _settings_among(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among variables, in upper or lower case. An empty one sets nothing, ``EMPTY`` the
    empty text."""
    given = {name.lower(): "" if value == EMPTY else value for name, value in variables.items() if value}
    variable_of = {f"{PREFIX}{name}".lower(): name for name in Config.model_fields}
    return {name: given[variable] for variable, name in variable_of.items() if variable in given}


def _toml(file: Path | None) -> dict[str, Any]:
    path = file or FILE
    if file is not None and not file.is_file():
        raise ConfigError(
            f"config file {str(file)!r} doesn't exist or isn't a file; correct the name, or leave --config"
            " out"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} can't be read: {error}; it must be TOML") from None


def _shown(value: Any) -> str | float | bool | None:
    if isinstance(value, dict):
        return ", ".join(f"{redact_url(name)} = {_shown(each)}" for name, each in value.items())
    if isinstance(value, SecretStr):
        return HIDDEN
    return redact_url(value) if isinstance(value, str) else value
