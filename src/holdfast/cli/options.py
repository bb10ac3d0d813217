"""The options that every command takes: where the settings are, and how to change one."""

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
    set: Annotated[tuple[str, ...], Parameter(name=["--set", "-s"], show_default=False)] = ()
    "Any setting, as NAME=VALUE; may be repeated. `holdfast config show` lists them."

    def load(self, *, logs: bool = True, **more: Any) -> Config:
        """The config in force, ``more`` settings given first. Logging is set up by it, unless the command
        logs nothing (``logs``)."""
        from holdfast.config.sources import load, unknown_variables  # noqa: PLC0415 - a page of help needs none

        overrides: dict[str, Any] = {"url": self.url}
        for item in self.set:
            name, equals, value = item.partition("=")
            if not equals:
                raise ConfigError(f"--set {item!r} must be NAME=VALUE, such as --set ttl_s=10")
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
            structlog.get_logger().warning("no such setting, and it does nothing", variable=variable, fix=fix)
        return config

    def services(self, *, reads_only: bool = False) -> Services:
        """The services of the config in force, to be used with ``async with``. With ``reads_only`` nothing is
        made that is missing."""
        from holdfast.wiring.services import Services  # noqa: PLC0415

        return Services(self.load(), reads_only=reads_only)

    def file_arguments(self) -> list[str]:
        """The same config file for another command."""
        return [] if self.config is None else ["--config", str(self.config)]


DEFAULTS = Options()
Json = Annotated[bool, Parameter(name="--json")]
Limit = Annotated[int, Parameter(validator=Number(gte=1))]
