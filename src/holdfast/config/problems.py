"""Texts of errors for wrong settings, and the table of settings in the docs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from holdfast.common.redaction import HIDDEN, redact, redact_url
from holdfast.config.settings import Config


def reference() -> str:
    """Return the table of settings for the docs, in Markdown."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Config.model_fields.items():
        lines.append(f"| `{name}` | {_default(field)} | {field.description} |")
    return "\n".join(lines) + "\n"


def problems(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterable[str]:
    """Yield a text for each wrong setting: its value, its source, the fault, and what to do."""
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        if problem["type"] == "default_factory_not_called":
            continue  # caused by another setting, which has a text of its own
        source = sources.get(name, "default")
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, Config.model_fields, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "`holdfast config show` lists the settings"
            yield f"unknown setting {name!r} in {source}; {hint}"
        else:
            reason = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            if name not in values:
                yield _wrong_default(name, problem["input"], reason)
                continue
            value = HIDDEN if _is_secret(name) else _shown_value(values[name])
            yield f"{name} is {value} (from {source}): it {reason}. Change it there. {_meaning(name)}"


def _wrong_default(name: str, default: Any, reason: str) -> str:
    """Return the error of a default value: mostly the setting that it follows is wrong."""
    shown = _default(Config.model_fields[name])
    followed = [each for each in re.findall(r"`(\w+)`", shown) if each in Config.model_fields]
    what_to_do = f"Change {followed[0]}, or set {name}." if followed else f"Set {name}."
    origin = shown.replace("`", "")
    value = _shown_value(default)
    return f"{name} is {value} (its default, {origin}): it {reason}. {what_to_do} {_meaning(name)}"


def _shown_value(value: Any) -> str:
    """Return a value as an error text shows it, without secrets."""
    return repr(redact_url(value)) if isinstance(value, str) else redact(repr(value))


def _is_secret(name: str) -> bool:
    return name in Config.model_fields and "SecretStr" in str(Config.model_fields[name].annotation)


def _meaning(name: str) -> str:
    return f"({Config.model_fields[name].description})" if name in Config.model_fields else ""


def _default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    shown = extra.get("shown") if isinstance(extra, dict) else None
    return str(shown) if shown else "none" if field.default is None else f"`{field.default}`"
