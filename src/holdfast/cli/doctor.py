"""``holdfast doctor``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.app.app import App
from holdfast.assembly.checks import check_app, queues_of
from holdfast.assembly.loading import declared, load_app
from holdfast.assembly.products import operator_parts
from holdfast.cli import exits, output
from holdfast.cli.findings import (
    Finding,
    foreign_distribution,
    is_there,
    look_at,
    unknown_variables,
    unsound,
    why_not_made,
)
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.cli.products import OperatorPart
from holdfast.common.protocol import Done, Probe, Reply, Request
from holdfast.common.redaction import redact, redact_url
from holdfast.common.text import counted
from holdfast.config.legacy_names import ANY_BUCKET
from holdfast.errors import ConfigError, HoldfastError, NoDatabase, OutcomeUnknown, Unavailable
from holdfast.operate.survey import (
    PendingEffects,
    failing_archives,
    node_report,
    stalled_slots,
    stream_names,
    undeclared_queues,
)
from holdfast.ports.coordinator import Member
from holdfast.ports.objects import Objects
from holdfast.ports.peer import Peer
from holdfast.ports.queue_setup import QueueFinding
from holdfast.ports.slots import StreamSlotMaker
from holdfast.registration.services import service_of
from holdfast.registration.urls import path_in
from holdfast.system.machine import Machine
from holdfast.tasks.opening import backup_at
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.config.settings import Config

PROBE_TIMEOUT_S = 2.0
MIB = 1024**2
OBJECT = "holdfast-doctor"


async def doctor(
    app: str | None = None,
    /,
    *,
    upgrade: bool = False,
    iam_policy: bool = False,
    grants: str = "",
    only_to_send: bool = False,
    tasks: bool = False,
    json: Json = False,
    options: Options = DEFAULTS,
) -> int:
    """Check the settings and everything that they name, and print a remedy for each problem.

    No database or folder is made. In an existing database, missing tables are made, as a node does at its
    start, if this user has the right; with `--upgrade` none are. One small object is written to an existing
    object store. The models of the app are loaded, one after another.

    ```
    holdfast doctor
    holdfast doctor myproject.streams:app
    holdfast doctor --upgrade
    holdfast doctor myproject.streams:app --iam-policy > policy.json
    holdfast doctor --grants holdfast_node | psql
    holdfast doctor --grants shop --only-to-send --tasks | psql
    ```

    Args:
        app: Also check this app, MODULE:NAME, against the settings.
        upgrade: Only print the steps of an upgrade to this version, and the next one. Nothing is changed.
        iam_policy: Only print the IAM policy that the app's nodes need on AWS, as JSON.
        grants: Only print the rights that this role of the databases needs to run nodes, as SQL.
        only_to_send: With --grants: the rights to send messages to streams, such as in own transactions.
        tasks: With --only-to-send: also the rights to send tasks and wait for their outcomes.
        json: Print JSON lines, one a check.
    """
    if upgrade and (app is not None or grants or iam_policy or only_to_send or tasks):
        raise ConfigError("--upgrade can't be combined: run the other checks without it")
    if grants and (app is not None or iam_policy):
        raise ConfigError("--grants can only be combined with --only-to-send: its rights hold for any app")
    if grants:
        if tasks and not only_to_send:
            raise ConfigError("--tasks needs --only-to-send: without that, --grants covers tasks too")
        return await _print_grants(grants, options.load(), only_to_send=only_to_send, tasks=tasks)
    if only_to_send or tasks:
        raise ConfigError("--only-to-send needs --grants ROLE, and --tasks needs both")
    if iam_policy:
        return await _print_policy(app, options.load())
    if upgrade:
        from holdfast.cli.upgrade import examine_upgrade  # noqa: PLC0415

        findings = await examine_upgrade(options)
    else:
        findings = await examine(app, options)
    output.go_on_unread()  # the exit code is about all of them
    for found in findings:
        finding = msgspec.structs.replace(found, text=redact(found.text), fix=redact(found.fix))
        if json:
            output.json_line(finding)
        else:
            mark = {"ok": "✓", "warning": "!", "failed": "✗"}[finding.verdict]
            fix = f"\n  → {finding.fix}" if finding.fix else ""
            output.say(f"{mark} {finding.check}: {finding.text}{fix}")
    return max(finding.exit_code for finding in findings)


async def _print_grants(role: str, config: Config, *, only_to_send: bool, tasks: bool) -> int:
    async with Services(config) as services:
        statements = services.grants(role, only_to_send=only_to_send, tasks=tasks)
    if not statements:
        raise ConfigError("--grants needs a database with roles, such as PostgreSQL; no setting names one")
    for statement in statements:
        output.say(statement)
    return exits.OK


async def _print_policy(place: str | None, config: Config) -> int:
    if place is None:
        raise ConfigError("--iam-policy needs the app: holdfast doctor MODULE:NAME --iam-policy")
    async with Services(config) as services:
        streams = load_app(place).streams
        archives = [spec.archive for spec in streams.values() if spec.archive]
        policy = await services.iam_policy(streams, archives)
    if not policy["Statement"]:
        raise ConfigError(
            f"queue_url is {redact_url(config.queue_url)!r} and objects_url is"
            f" {redact_url(config.objects_url)!r}: neither is on AWS, so no IAM policy is needed"
        )
    output.say(msgspec.json.format(msgspec.json.encode(policy)).decode())
    return exits.OK


async def examine(place: str | None, options: Options) -> list[Finding]:
    """Run all checks, one after the other."""
    from holdfast.config import sources  # noqa: PLC0415

    try:
        config = options.load()
    except ConfigError as error:
        return [unsound(error)]
    changed = sum(setting.source != "default" for setting in sources.explain(config))
    findings = [
        Finding("settings", "ok", f"valid; {counted(changed, 'setting')} set, see `holdfast config show`")
    ]
    findings += unknown_variables()
    findings += foreign_distribution()
    findings += examine_machine(config)
    findings += _files(config)
    async with Services(config, reads_only=True) as services:
        app = None
        if place:
            app, finding = _app(place, services)
            findings.append(finding)
            findings += await _models(app, place, services) if app else ()
        findings += await _services(services, app)
    return findings


def _files(config: Config) -> Iterable[Finding]:
    """Find databases that other users may read."""
    from holdfast.config.settings import Config  # noqa: PLC0415

    urls = {getattr(config, name) for name in Config.model_fields if name.endswith("_url")}
    for url in sorted(urls) if config.file_access == "owner" else ():
        path = service_of(url).local_file(url)
        if path is None:
            continue
        mode = path.stat().st_mode & 0o777 if is_there(path) else 0
        if mode & 0o077:
            text = f"{path} has the mode {mode:o}: others may read messages and results"
            fix = f"chmod go= {path}*, or set file_access to umask if they are meant to"
            yield Finding("files", "warning", text, fix)


def examine_machine(config: Config) -> Iterable[Finding]:
    machine = Machine()
    cores, memory_mb = machine.cores, machine.memory_bytes // MIB
    slots = config.slots + config.spare_slots
    needed_mb = slots * config.slot_memory_mb
    text = f"{cores:g} cores, {memory_mb} MB; {counted(config.slots, 'slot')} and {config.spare_slots} spare"
    if needed_mb > memory_mb:
        fix = f"set slot_memory_mb to {memory_mb // slots} or less, or have fewer slots"
        yield Finding("machine", "warning", f"{text} may take {needed_mb} MB (slot_memory_mb)", fix)
    elif config.slots > machine.whole_cores:
        fix = f"set slots to {machine.whole_cores} or less"
        yield Finding("machine", "warning", f"{text}: slots share cores", fix)
    else:
        yield Finding("machine", "ok", text)


def _app(place: str, services: Services) -> tuple[App | None, Finding]:
    try:
        app = load_app(place)
        check_app(services, app)
    except HoldfastError as error:
        fix = "correct it, then run this again"
        return None, Finding("app", "failed", str(error), fix, exits.code(error))
    return app, Finding("app", "ok", f"{app.name} declares {', '.join(declared(app))}")


async def _models(app: App, place: str, services: Services) -> list[Finding]:
    """Load the models of the app's streams in a slot, as nodes do."""
    users: dict[str, str] = {}
    for stream in app.streams.values():
        users |= dict.fromkeys(stream.models, stream.name)
    return [await _model(name, stream, services.slots(place), services) for name, stream in users.items()]


async def _model(name: str, stream: str, slots: StreamSlotMaker, services: Services) -> Finding:
    check = f"model {name}"
    try:
        async with asyncio.timeout(services.config.model_timeout_s):
            slot = await slots.spawn()
            await slot.load(stream, "", [name])
    except (HoldfastError, TimeoutError) as error:
        text = str(error) or f"not loaded within {services.config.model_timeout_s:g} s (model_timeout_s)"
        fix = "correct the error; else no node here can run the streams that use it"
        return Finding(check, "failed", text, fix, exits.FAILED)
    await slot.kill("looked at")
    return Finding(check, "ok", "loads")


async def _services(services: Services, app: App | None) -> list[Finding]:
    config = services.config

    async def state() -> str:
        some = await services.state().checkpoints(limit=1)
        return "holds checkpoints" if some else "answers; nothing committed yet"

    async def coordinator() -> str:
        return f"answers; {len(await services.coordinator().members())} nodes live"

    async def queues() -> str:
        names = sorted(queues_of(app)) if app else await _known_names(services)
        depths = [(name, await services.queue(name).depth()) for name in names]
        return (
            "; ".join(f"{name}: {d.ready} ready, {d.dead} dead" for name, d in depths)
            or "no stream known yet"
        )

    async def objects() -> str:
        if config.objects_url == ANY_BUCKET:
            return "frames are read from the bucket that a message names, and none is written"
        objects = services.objects()
        if nothing := _nothing_yet(objects):
            return nothing
        url = await objects.put(OBJECT, b"ok")
        return f"stores and returns {url}" if await objects.get(url) == b"ok" else "returns other bytes"

    archives = sorted({spec.archive for spec in app.streams.values() if spec.archive}) if app else []
    missing: set[str] = set()

    async def kept(check: str, url: str, look: Callable[[], Awaitable[str]]) -> list[Finding]:
        """Check a service, unless it is a database that is known to be missing."""
        if url in missing:
            return []
        finding = await look_at(check, url, look)
        path = service_of(url).local_file(url)
        if path is not None and not is_there(path):
            missing.add(url)
        return [finding]

    findings = [
        *_apart(config),
        *await kept("state store", config.state_url, state),
        *await _risks(services),
        *await kept("coordinator", config.coordinator_url, coordinator),
        *await _queues(services, app),
        *await kept("queue", config.queue_url, queues),
        await look_at("objects", config.objects_url, objects),
        *await _optional(services, app),
        *[await look_at("archive", url, partial(_archive, services, url)) for url in archives],
        await look_at("peer", f"{config.host}:{config.port}", lambda: _reach_itself(services)),
    ]
    for _, part in operator_parts(OperatorPart):
        findings += await part.examine(services, app)
    if all(finding.verdict == "ok" for finding in findings):
        findings += await _nodes(services)
        findings += await _undeclared(services, queues_of(app) if app else ())
    return findings


async def _optional(services: Services, app: App | None) -> list[Finding]:
    """Check optional services: a store of values, collectors, and a back-up of dead letters."""
    config = services.config

    async def values() -> str:
        store = services.value_objects()
        assert store is not None
        return _nothing_yet(store) or f"stores {await store.put(OBJECT, b'ok')}"

    async def collector(setting: Literal["trace_url", "metrics_url"], what: str) -> str:
        if not await services.collector_takes(setting):
            raise Unavailable(f"the collector takes no {what}, or doesn't answer")
        return f"the collector takes {what}"

    async def backup() -> str:
        url = config.dlq_backup_url
        if url.startswith(("file:", "sqlite:")):
            path = path_in("dlq_backup_url", url, "file:letters.jsonl")
            if why := "" if is_there(path) else why_not_made(path.absolute()):
                raise ConfigError(f"file {path} doesn't exist yet, and {why}")
            if not is_there(path):
                return f"file {path} doesn't exist yet; the first dead letter creates it"
        async with backup_at(url, services.access) as kept:
            async for _ in kept.dead_letters(app.name if app is not None else OBJECT):
                break
        return "answers"

    looks: list[tuple[str, str, Callable[[], Awaitable[str]]]] = [
        ("values", config.values_url, values),
        ("traces", config.trace_url, partial(collector, "trace_url", "spans")),
        ("metrics", config.metrics_url, partial(collector, "metrics_url", "metrics")),
        ("dead-letter backup", config.dlq_backup_url, backup),
    ]
    return [await look_at(check, url, look) for check, url, look in looks if url]


async def _known_names(services: Services) -> list[str]:
    try:
        return await stream_names(services)
    except NoDatabase:
        return []


def _nothing_yet(objects: Objects) -> str:
    """Return a text about a missing folder for objects; empty if it exists, or if the store isn't a folder.
    Raises ConfigError if it can't be made."""
    from holdfast.services.file.objects import FileObjects  # noqa: PLC0415

    if not isinstance(objects, FileObjects) or objects.root.exists():
        return ""
    if why := why_not_made(objects.root):
        raise ConfigError(f"there is no folder {objects.root} yet, and {why}")
    return f"there is no folder {objects.root} yet; who stores the first object makes it"


async def _archive(services: Services, url: str) -> str:
    archive = services.archive(url)
    if nothing := _nothing_yet(archive):
        return nothing
    stored = await archive.put(OBJECT, b"ok")
    if service_of(url).one_host and not service_of(services.config.queue_url).one_host:
        return f"stores {stored}; each host has an archive of its own there"
    return f"stores {stored}"


def _apart(config: Config) -> Iterable[Finding]:
    """Find services of one host beside a queue that many hosts reach."""
    here = [name for name in ("coordinator_url", "state_url") if service_of(getattr(config, name)).one_host]
    if here and not service_of(config.queue_url).one_host:
        named = " and ".join(here)
        text = f"the queue is not on this host, but {named} {'are' if len(here) > 1 else 'is'}"
        fix = f"run nodes on this host only, or set {named} to what all hosts reach"
        yield Finding("hosts", "warning", text, fix)


async def _risks(services: Services) -> list[Finding]:
    """Return data that servers of the state store and the queue may lose. Unreachable servers have findings
    of their own."""
    try:
        risks = await services.risks()
    except HoldfastError:
        return []
    codes = {"warning": exits.OK, "failed": exits.FAILED}
    return [
        Finding(
            f"{'queue' if setting == 'queue_url' else 'state store'} {risk.server}".rstrip(),
            risk.verdict,
            risk.text,
            risk.fix,
            codes[risk.verdict],
        )
        for setting, risk in risks
    ]


async def _queues(services: Services, app: App | None) -> list[Finding]:
    """Check the app's queues, for a service where queues must be made."""
    try:
        setup = services.queue_setup()
        if setup is None:
            return []
        findings = [Finding("AWS", "ok", await setup.identity())]
    except HoldfastError as error:
        return [Finding("AWS", "failed", str(error), "", exits.code(error))]
    for name, visibility_s in queues_of(app).items() if app else ():
        findings += _of_queue(f"queue of {name}", await setup.check(name, visibility_s=visibility_s))
    return findings


def _of_queue(check: str, remarks: Iterable[QueueFinding]) -> Iterable[Finding]:
    for remark in remarks:
        verdict = "failed" if remark.level == "error" else remark.level
        code = exits.FAILED if verdict == "failed" else exits.OK
        yield Finding(check, verdict, remark.text, remark.fix, code)


async def _reach_itself(services: Services) -> str:
    peer, me = services.peer(), services.clock.new_id()

    async def answer(request: Request) -> Reply:
        return Done()

    try:
        address = await peer.serve(answer)
    except ConfigError:
        address = f"http://{services.config.advertise or services.config.host}:{services.config.port}"
        with contextlib.suppress(NoDatabase):
            if any(member.address == address for member in await services.coordinator().members()):
                return f"a node of this coordinator listens at {address}"
        raise
    await peer.call(address, Probe(me), PROBE_TIMEOUT_S)
    return f"can listen, and reaches itself at {address}"


async def _nodes(services: Services) -> list[Finding]:
    findings, peer = [], services.caller()
    for member in await services.coordinator().members():
        check = f"node {member.name}"
        if member.foreign:
            text = f"{member.address or 'at no address'}: belongs to another program, and is not called"
            findings.append(Finding(check, "ok", text))
            continue
        try:
            reply = await peer.call(member.address, Probe(member.id), PROBE_TIMEOUT_S)
        except (Unavailable, OutcomeUnknown) as error:
            fix = f"check that its machine is up and that {member.address} can be reached from here"
            findings.append(Finding(check, "failed", str(error), fix, exits.UNREACHABLE))
        else:
            alive = isinstance(reply, Done)
            text = f"{member.address} answers" + ("" if alive else ", but as another membership")
            fix = "" if alive else "it has just joined again; repeat this in a few seconds"
            findings.append(Finding(check, "ok" if alive else "warning", text, fix))
            findings += await _lacks(peer, member)
    return findings


async def _undeclared(services: Services, declared: Iterable[str]) -> Iterable[Finding]:
    """Find queues with messages that no node reads, if the service lists its queues."""
    run = {name for member in await services.coordinator().members() for name in member.load.queues}
    strays = undeclared_queues({*await services.filled_queues()} - {*declared}, run)
    return [Finding("queues", "warning", text) for text in strays]


async def _lacks(peer: Peer, member: Member) -> Iterable[Finding]:
    """Find streams that a node can't run, failing archives and targets, and slots without progress."""
    report = await node_report(peer, member)
    if isinstance(report, str):
        return []
    fix = "correct the error there; the node tries again by itself"
    lacks = [
        Finding(f"stream {stream} on {member.name}", "failed", reason, fix, exits.FAILED)
        for stream, reason in sorted(report.lacks.items())
    ]
    fix = "check that the service of the stream's `archive` can be reached from there, and takes objects"
    away = [
        Finding(f"archive of node {member.name}", "failed", text, fix, exits.FAILED)
        for text in failing_archives(member, report)
    ]
    fix = "`holdfast top` and `holdfast why` show what runs there; lower its timeout_s, or raise slots"
    still = [
        Finding(f"slots of node {member.name}", "warning", text, fix)
        for text in stalled_slots(member, report)
    ]
    return [*lacks, *away, *still, *failing_targets(member, report.effects)]


def failing_targets(member: Member, pending: Iterable[PendingEffects]) -> Iterable[Finding]:
    """Yield a finding for each target that takes no effects of streams on a node."""
    by_target: dict[str, list[PendingEffects]] = {}
    for effects in pending:
        if effects.failures:
            by_target.setdefault(effects.target, []).append(effects)
    for target, some in sorted(by_target.items()):
        oldest = max(some, key=lambda effects: effects.oldest_s)
        text = (
            f"takes nothing: {counted(sum(effects.count for effects in some), 'effect')} of"
            f" {counted(len(some), 'stream')} waiting,"
            f" the oldest for {oldest.oldest_s:.0f} s"
        ) + (f"; its last error: {oldest.error}" if oldest.error else "")
        fix = (
            "check that it runs, and that the nodes can reach it; `holdfast streams effects"
            f" {oldest.key}` lists the pending effects"
        )
        yield Finding(f"target {target} of {member.name}", "warning", text, fix)
