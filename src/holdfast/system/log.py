"""The log: one line per event to stderr, for people (console) or for programs (JSON).

Events of libraries, through ``logging``, take the same way, and secrets are hidden. Values that a process or
a task shares (node, stream, key) are bound once with ``structlog.contextvars.bind_contextvars``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TextIO

from holdfast.common.redaction import HIDDEN, is_secret, redact
from holdfast.common.text import visible

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["auto", "console", "json"]
Level = Literal["debug", "info", "warning", "error"]
Tracebacks = Literal["none", "plain", "locals"]


_WRITTEN_AS_THEY_ARE = ("event", "exception", "stack")
_QUOTED = {*" \t=\r\n\"'"}
"""Characters of values that the console renderer quotes and escapes itself."""


def set_up(
    log_format: Format = "auto",
    level: Level = "info",
    stream: TextIO | None = None,
    *,
    tracebacks: Tracebacks = "none",
) -> None:
    """Send all logging of this process to ``stream`` (stderr). ``auto``: console on a terminal, else JSON.
    Tracebacks of handlers, which events have as ``exception``, are left out unless asked for."""
    import structlog  # noqa: PLC0415 (half of what it takes to import holdfast; slots don't log)

    out = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *([_without_traceback] if tracebacks == "none" else []),
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    renderer: Processor = console_renderer(colors=out.isatty()) if console else _json_renderer()
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(renderer))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # It logs each lookup, and at debug level what it signs, so only its warnings are logged.
    logging.getLogger("botocore").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.captureWarnings(capture=True)


def console_renderer(*, colors: bool) -> Processor:
    """Return the renderer of events for people, with an escape for each character that a terminal would
    obey."""
    import structlog  # noqa: PLC0415

    render = structlog.dev.ConsoleRenderer(colors=colors)

    def written(logger: WrappedLogger, method: str, event: EventDict) -> str:
        for name, value in event.items():
            if isinstance(value, str) and (name in _WRITTEN_AS_THEY_ARE or not _QUOTED & {*value}):
                event[name] = visible(value)
        return str(render(logger, method, event))

    return written


def get_logger(name: str) -> Any:
    """Return the logger of a module. It logs by structlog in a program that has set it up, and by
    ``logging``, never to stdout, in any other."""
    return _Logger(name)


class _Logger:
    """A logger that checks at each call whether structlog is set up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import structlog  # noqa: PLC0415

        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name), attribute)
        logger = structlog.wrap_logger(
            logging.getLogger(self._name),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                _redact_event,
                structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        return getattr(logger, attribute)


def write_to_file(handler: logging.Handler) -> None:
    """Send all logging of this process to a file as well, as JSON lines."""
    handler.setFormatter(_formatter(_json_renderer()))
    logging.getLogger().addHandler(handler)


def _json_renderer() -> Processor:
    import structlog  # noqa: PLC0415

    return structlog.processors.JSONRenderer(default=str, sort_keys=True)


def _formatter(renderer: Processor) -> logging.Formatter:
    import structlog  # noqa: PLC0415

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *_shared()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _shared() -> list[Processor]:
    """Return the processors of all events."""
    import structlog  # noqa: PLC0415

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact_event,
    ]


def _without_traceback(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Drop the traceback of a handler; Holdfast's own tracebacks come as ``exc_info`` and stay."""
    event.pop("exception", None)
    return event


def _redact_event(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if not name.startswith("_"):  # such names are for processors only
            try:
                event[name] = _redacted(name, value)
            except Exception:  # noqa: BLE001 (a log line must not raise)
                event[name] = HIDDEN
    return event


def _redacted(name: str, value: object) -> object:
    """Return a value without secrets, of any type."""
    if is_secret(name):
        return HIDDEN
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): _redacted(str(key), each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_redacted("", each) for each in value]
    return redact(str(value))
