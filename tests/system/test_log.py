"""The log: one way out, readable by programs, without secrets."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast.system.log import Level, get_logger, set_up


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level


def test_lines_for_people_hold_nothing_that_a_terminal_obeys() -> None:
    out = io.StringIO()
    set_up("console", "info", out)
    structlog.get_logger().info("a \x1b[2J task failed", error="\x1b]0;pwned\x07 \u202e", key="\x9b2J")
    assert not {"\x1b", "\x07", "\u202e"} & {*out.getvalue()}
    assert r"a \x1b[2J task failed" in out.getvalue()
    assert r"error='\x1b]0;pwned\x07 \u202e' key=\x9b2J" in out.getvalue()


def test_a_program_that_has_not_set_up_structlog_hears_by_logging_and_never_on_stdout(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    structlog.reset_defaults()
    log = get_logger("holdfast.client")
    log.bind(app="shop").warning("no node runs this stream", stream="ordres", password="hidden")
    log.debug("not heard")
    assert [(record.name, record.levelname) for record in caplog.records] == [("holdfast.client", "WARNING")]
    (said,) = caplog.messages
    assert said.startswith("event='no node runs this stream'")
    assert "stream='ordres'" in said
    assert "hidden" not in said
    assert capsys.readouterr().out == ""
    out = io.StringIO()
    set_up("json", "info", out)
    log.info("heard")
    assert [line["event"] for line in lines(out)] == ["heard"]


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_have_all_bound_values() -> None:
    out = io.StringIO()
    set_up("auto", "info", out)
    with structlog.contextvars.bound_contextvars(node="a", stream="detect", key="cam-1"):
        structlog.get_logger().info("opened", epoch=3)
    structlog.get_logger().debug("not told")
    logging.getLogger("library").warning("from %s", "elsewhere")
    opened, foreign = lines(out)
    assert opened.pop("timestamp").endswith("Z")
    assert opened == {
        "event": "opened",
        "level": "info",
        "node": "a",
        "stream": "detect",
        "key": "cam-1",
        "epoch": 3,
    }
    assert (foreign["event"], foreign["logger"]) == ("from elsewhere", "library")


def test_exceptions_are_logged_with_traceback() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    try:
        raise ValueError("at redis://user:hunter2@host")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = lines(out)
    assert "Traceback" in line["exception"]
    assert "ValueError: at redis://user:***@host" in line["exception"]


def test_no_line_of_the_log_tells_a_secret() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    structlog.get_logger().info(
        "connected to s3://id:hunter2@host", peer_secret="hunter2", Authorization="hunter2"
    )
    logging.getLogger("library").warning("at %s", "mqtt://user:hunter2@host")
    assert "hunter2" not in out.getvalue()
    assert len(lines(out)) == 2


@pytest.mark.parametrize("level", ["debug", "warning", "error"])
def test_of_libraries_that_tell_all_only_warnings_pass(level: Level) -> None:
    out = io.StringIO()
    set_up("json", level, out)
    logging.getLogger("botocore.credentials").info("found")
    logging.getLogger("botocore.credentials").warning("expired")
    assert len(lines(out)) == (level != "error")


def test_console_lines_show_event_and_values() -> None:
    out = io.StringIO()
    set_up("console", "debug", out)
    structlog.get_logger().debug("opened", key="cam-1")
    assert "opened" in out.getvalue()
    assert "key=cam-1" in out.getvalue()
    assert "\x1b[" not in out.getvalue()


def test_what_values_are_made_of_hides_no_secret() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    url = "s3://id:hunter2@host"
    structlog.get_logger().info(
        "failed",
        error=ValueError(url),
        settings={
            "url": url,
            "session_token": "hunter2",
            "tries": [{"password": "hunter2"}, 5, None, 1.5, True],
        },
        seen=(url,),
        place=Path("hunter2=x?token=hunter2"),
    )
    logging.getLogger("library").warning("with %r", {"Authorization": "Bearer hunter2"})
    assert out.getvalue().count("hunter2") == 1
    told, _ = lines(out)
    assert told["error"] == "s3://id:***@host"
    assert told["settings"]["tries"] == [{"password": "***"}, 5, None, 1.5, True]


def test_what_can_not_be_redacted_is_hidden_and_raises_nothing() -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no text")

    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    out = io.StringIO()
    set_up("json", "info", out)
    structlog.get_logger().info("told", mute=Mute(), endless=round_and_round)
    (line,) = lines(out)
    assert (line["event"], line["mute"], line["endless"]) == ("told", "***", "***")


def test_tracebacks_of_handlers_are_logged_where_they_are_asked_for() -> None:
    for tracebacks, shown in (("none", None), ("plain", "Traceback of a handler")):
        out = io.StringIO()
        set_up("json", "info", out, tracebacks=tracebacks)  # type: ignore[arg-type]
        structlog.get_logger().warning("handler failed", exception="Traceback of a handler")
        assert lines(out)[0].get("exception") == shown


def test_people_see_the_traceback_of_a_handler_below_its_line() -> None:
    out = io.StringIO()
    set_up("console", "info", out, tracebacks="plain")
    structlog.get_logger().warning("handler failed", exception="Traceback:\n  File x\nValueError")
    assert out.getvalue().endswith("\nTraceback:\n  File x\nValueError\n")
