"""Options of every command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.config.settings import Config
    from holdfast.wiring.services import Services

CONFIG = Group("Settings", sort_key=99)


@Parameter(name="*", group=CONFIG)
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every command."""

    config: Path | None = None
    "Config file to use instead of holdfast.toml."
    url: str | None = None
    "Service that is queue, coordinator and state store: sqlite:///PATH."
    set: Annotated[tuple[str, ...], Parameter(name=["--set", "-s"])] = ()
    "Any setting, as NAME=VALUE; may be repeated. `holdfast config show` lists them."

    def load(self, *, logs: bool = True, **more: Any) -> Config:
        """Return the config, with ``more`` settings first, and set up logging unless ``logs`` is false."""
        from holdfast.config.sources import load, unknown_variables  # noqa: PLC0415 - a page of help needs none

        overrides: dict[str, Any] = {"url": self.url}
        for item in self.set:
            name, value = pair("--set", item, "ttl_s=10")
            overrides[name] = value
        overrides.update({name: value for name, value in more.items() if value is not None})
        config = load(overrides, self.config)
        unknown = list(unknown_variables())
        if not (logs or unknown):
            return config
        import structlog  # noqa: PLC0415

        from holdfast.system import log  # noqa: PLC0415

        log.set_up(config.log_format, config.log_level, tracebacks=config.log_tracebacks)
        for variable, fix in unknown:
            structlog.get_logger().warning("unknown setting", variable=variable, fix=fix)
        return config

    def services(self, *, reads_only: bool = False) -> Services:
        """Return the services of the config, for ``async with``. With ``reads_only`` nothing missing is
        made."""
        from holdfast.wiring.services import Services  # noqa: PLC0415

        return Services(self.load(), reads_only=reads_only)

    def file_arguments(self) -> list[str]:
        """Return arguments with the same config file for another command."""
        return [] if self.config is None else ["--config", str(self.config)]


def pair(option: str, text: str, example: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"{option} {text!r} must be NAME=VALUE, such as {option} {example}")
    return name, value


DEFAULTS = Options()
Json = Annotated[bool, Parameter(name="--json")]
Limit = Annotated[int, Parameter(validator=Number(gte=1))]
