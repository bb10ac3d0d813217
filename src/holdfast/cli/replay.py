"""``holdfast streams replay``."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from holdfast.assembly.loading import declared_stream, load_app
from holdfast.cli import exits, output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.common.text import storable
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, NoRoom, Unavailable
from holdfast.system.files import FULL, Access, make_file, make_folder

if TYPE_CHECKING:
    from holdfast.app.app import App
    from holdfast.streams.archive_reader import ArchiveReader, Hours
    from holdfast.streams.replay import Replay, ReplayedMessage
    from holdfast.streams.spec import StreamSpec
    from holdfast.wiring.services import Services

DECLARED = "archive"
"""The value of --from for the archive that the stream declares."""

FOLDER = Path("replays")
"""The folder for results of runs with a name."""

SQLITE = b"SQLite format 3\0"
"""The first bytes of a database of SQLite."""

EXAMPLES_MAX = 5
"""Differences and broken lines that are printed one by one."""

COUNTED = (
    ("messages", "message{s}"),
    ("timers", "timer{s}"),
    ("effects", "effect{s} not sent"),
    ("failed", "failed"),
    ("failed in both", "failed as they did live"),
    ("same", "result{s} the same"),
    ("different", "result{s} different"),
    ("missing", "live result{s} missing"),
    ("none", "without a result in both"),
    ("broken", "unreadable line{s}"),
    ("set aside", "left out because set aside"),
    ("repeated", "repetition{s} left out"),
    ("timers left", "timer{s} still set"),
)
"""The counts of the summary, and their words with ``{s}`` for the plural."""


async def replay(
    key: Annotated[str, Parameter(help="The stream, or one key of it: STREAM or STREAM/KEY.")],
    /,
    *,
    app: str,
    source: Annotated[str, Parameter(name="--from")] = DECLARED,
    since: str = "",
    until: str = "",
    name: Annotated[str, Parameter(name="--as")] = "",
    out: Path | None = None,
    compare: bool = False,
    keep_going: bool = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Run an app's handler over archived messages. The live stream doesn't change; what the handler sends is
    printed, not sent.

    Each key begins without state. Each message gives a line of JSON, on standard output unless --as or
    --out names a file. The exit code is 1 if the handler fails where the live one didn't, or a result
    differs from the live one.

    ```
    holdfast streams replay detect/cam-1 --app myproject.streams:app --compare
    holdfast streams replay detect --app myproject.streams:app --since 2026-11-22T08 --as tracker-2
    ```

    Args:
        app: The app whose handler runs, MODULE:NAME.
        source: The archive: a URL, a folder, or `archive` for the one that the stream declares.
        since: The first hour, in UTC, such as 2026-11-22T19; or the first day.
        until: The last hour, or day.
        name: Name of this run, which is in each line. The lines are written to replays/NAME.jsonl.
        out: Another file for the lines. A database or an object of an archive is refused.
        compare: Compare with the results of the live stream that are still kept.
        keep_going: Continue after failures of the handler, and after unreadable lines.
        json: Print the summary as a JSON object.
    """
    from holdfast.streams.archive_reader import Hours  # noqa: PLC0415

    if name and Path(name).name != name:
        raise ConfigError(f"--as {name!r} must be a valid name of a file; name a folder with --out")
    path = out or (FOLDER / f"{name}.jsonl" if name else None)
    if path is not None:
        _check_out(path)
    stream, _, plain = key.partition("/")
    declared = load_app(app)
    spec = declared_stream(declared, app, stream)
    hours, report = Hours(since, until), ReplayReport(stream, name, keep_going=keep_going)
    async with options.services(reads_only=True) as services:
        reader = _reader(services, spec, source, hours, report.broken)
        objects = await reader.objects(plain or None)
        if not objects:
            raise ConfigError(
                f"the archive has no messages of {key} in these hours; check --from and --since"
            )
        run = _run(services, declared, spec, compare=compare)
        with _opened(path, services.access) as report.write:
            try:
                for urls in objects.values():
                    async for each in run.run(reader.messages(urls)):
                        report.add(each)
            finally:
                await run.stop()
                report.summarize(run.counts + reader.left_out, path, json=json)
    return exits.FAILED if report.is_bad else exits.OK


def _reader(
    services: Services,
    spec: StreamSpec,
    source: str,
    hours: Hours,
    on_broken: Callable[[InvalidMessage], None],
) -> ArchiveReader:
    from holdfast.streams.archive_reader import ArchiveReader  # noqa: PLC0415

    if source == DECLARED and not spec.archive:
        raise ConfigError(
            f"stream {spec.name!r} declares no archive; declare archive=, or name the archive with --from"
        )
    url = spec.archive if source == DECLARED else source if ":" in source else f"file:{source}"
    ordered = spec.seq_kind != "absent"
    return ArchiveReader(services.archive(url), spec.name, hours, ordered=ordered, on_broken=on_broken)


def _run(services: Services, app: App, spec: StreamSpec, *, compare: bool) -> Replay:
    from holdfast.slots.thread import SlotThread  # noqa: PLC0415
    from holdfast.streams.offline import OfflineStream  # noqa: PLC0415
    from holdfast.streams.replay import Replay  # noqa: PLC0415

    state = services.state() if compare else None

    async def live_result(key: str, place: str) -> bytes | None:
        assert state is not None
        logged = await state.result(spec.full_key(key), place)
        return logged.result.body if logged is not None else None

    offline = OfflineStream(spec, services.slot_objects(), models=app.models, targets=app.targets)
    step = SlotThread("holdfast-replay").wait
    return Replay(offline, step, live_result if compare else None, services.values(app.name).get)


def _check_out(path: Path) -> None:
    """Raise ConfigError for a file that mustn't be replaced."""
    from holdfast.streams.archive import ObjectName  # noqa: PLC0415

    if ObjectName.of(path.resolve().as_uri()) is not None:
        raise ConfigError(f"the file {path} has the name of an object in an archive; name another with --out")
    if not path.is_file():
        return
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            raise ConfigError(f"the file {path} is a database of SQLite; name another with --out")


@contextlib.contextmanager
def _opened(path: Path | None, access: Access) -> Iterator[Callable[[Any], None]]:
    """Open a file, or standard output, and yield a function that writes a line. It raises NoRoom or
    Unavailable."""
    if path is None:
        yield output.json_line
        return
    import msgspec  # noqa: PLC0415

    try:
        make_folder(path.parent, access)
        make_file(path, access)
        file = path.open("wb")
    except OSError as error:
        raise ConfigError(f"the file {path} can't be written: {error.strerror}") from None

    def write(record: Any) -> None:
        try:
            file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
        except OSError as error:
            raise _not_written(path, error) from error

    try:
        yield write
    except BaseException:
        with contextlib.suppress(OSError):  # the error of the last line was raised already
            file.close()
        raise
    try:
        file.close()
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> Unavailable:
    kind = NoRoom if error.errno in FULL else Unavailable
    return kind(f"the file {path} can't be written to its end: {error.strerror}")


class ReplayReport:
    """The report of a replay: a line for each message and timer, then a summary.

    Attributes:
        write: writes a line.
        is_bad: whether a handler failed where the live one didn't, or a result differs.
    """

    def __init__(self, stream: str, name: str, *, keep_going: bool) -> None:
        self.write: Callable[[Any], None] = output.json_line
        self.is_bad = False
        self._stream = stream
        self._name = name
        self._keep_going = keep_going
        self._examples: Counter[str] = Counter()

    def add(self, replayed: ReplayedMessage) -> None:
        """Write the outcome of a message. Raises HandlerFailed for a failure that ends the replay."""
        self.write(self._record(replayed))
        where = f"{self._stream}/{replayed.key}:{_name(replayed)}"
        if replayed.compared == "different":
            self.is_bad = True
            self._example("different", f"{where} is different")
        if replayed.fails_anew:
            self.is_bad = True
            if not self._keep_going:
                raise HandlerFailed(f"{where}: {replayed.error}; --keep-going continues after failures")
            self._example("failed", f"{where}: {replayed.error}")

    def broken(self, error: InvalidMessage) -> None:
        """Count an unreadable line. Raises the error unless the replay goes on."""
        if not self._keep_going:
            raise error
        self.is_bad = True
        self._example("broken", str(error))

    def _example(self, kind: str, text: str) -> None:
        self._examples[kind] += 1
        if self._examples[kind] <= EXAMPLES_MAX:
            output.complain(text)

    def _record(self, replayed: ReplayedMessage) -> dict[str, Any]:
        record: dict[str, Any] = {"as": self._name} if self._name else {}
        record |= {"stream": self._stream, "key": replayed.key}
        if replayed.message is not None:
            place = replayed.message.place
            record |= {"run": place.run, "seq": place.id or place.seq, "name": place.name}
        else:
            record["timer"] = replayed.timer
        record["at"] = output.moment(replayed.at)
        if replayed.error:
            return record | {"error": replayed.error, "failed_live": replayed.failed_live}
        handled = replayed.handled
        record |= _body(handled.result, "result")
        if handled.acts.sends:
            record["effects"] = [
                {"target": send.target, "key": send.key, "delay_s": send.delay_s} | _body(send.body, "body")
                for send in handled.acts.sends
            ]
        if handled.acts.timers:
            record["timers"] = [
                {"name": change.name, "at": None if change.at is None else output.moment(change.at)}
                for change in handled.acts.timers
            ]
        if replayed.compared is not None:
            record["compared"] = replayed.compared
        if replayed.compared == "different":
            record |= _body(replayed.live, "live")
        return record

    def summarize(self, counts: Counter[str], path: Path | None, *, json: bool) -> None:
        """Print the counts: on standard output, unless the lines are there."""
        counts = counts + Counter({"broken": self._examples["broken"]})
        if counts["missing"] and not counts["same"] + counts["different"]:
            self.is_bad = True
            output.complain("nothing was compared: no live result is kept any more (results_keep_s)")
        out = None if path is None else storable(str(path))
        if json:
            summary = {name.replace(" ", "_"): counts[name] for name, _ in COUNTED}
            output.json_line({"summary": summary, "out": out})
            return
        some = [
            f"{counts[name]} {words.format(s='' if counts[name] == 1 else 's')}"
            for name, words in COUNTED
            if counts[name] or name == "messages"
        ]
        where = "" if out is None else f"; written to {out}"
        (output.remark if out is None else output.say)(f"replayed {', '.join(some)}{where}")


def _name(replayed: ReplayedMessage) -> str:
    return f"timer {replayed.timer}" if replayed.message is None else replayed.message.place.name


def _body(data: bytes | None, name: str) -> dict[str, Any]:
    return {name: None} if data is None else output.body(data, name)
