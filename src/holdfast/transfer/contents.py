"""The contents of services, in parts that are transferred to other services.

All records are written unchanged, with two exceptions. A message keeps its id as the attribute ``id``: its
new queue gives it another one, by which a message that was handled and not yet deleted would not be
recognized. And the registry's entries of an app's nodes and of the URLs of its services are left out: the
nodes write new ones.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigError, OperationRefused
from holdfast.ports.queue import TransferableQueue, WaitingMessage
from holdfast.ports.registry import Registry
from holdfast.ports.state import Logged, TransferableState
from holdfast.ports.tasks import TransferableTasks
from holdfast.registration.services import service_of
from holdfast.registration.urls import shown
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.tasks.task import Task
from holdfast.tasks.discovery import APPS, Listing
from holdfast.transfer.parts import PAGE, Item, Part, checkpoint_pages, digest, pages, results_of
from holdfast.wiring.services import Services

STATES_AT_ONCE = 8
"""Checkpoints with their states of one read, at least."""

READ_BYTES = 16 << 20
"""Bytes of the states of one read, if more than STATES_AT_ONCE are read."""

SETTINGS = ("registry_url", "state_url", "tasks_url", "queue_url")

PROBES = "transfer/"
"""Prefix of the documents that show whether two URLs name one registry."""

NUMBERED = re.compile(r":\d{39}$")
"""The end of an identity in a stream that compares seqs and remembers them."""


async def contents(
    source: Services, target: Services, apps: Collection[str] = (), own_seqs: Collection[str] = ()
) -> list[Part]:
    """Return the parts to transfer. ``apps`` have tasks, beside the apps that the services list. The messages
    of the streams ``own_seqs`` hold their seqs. Settings whose URLs name one service are skipped.

    Raises ConfigError for a service whose contents can't be read or written, and OperationRefused for a
    stream that would lose its place."""
    moved = [name for name in SETTINGS if not _is_same(source, target, name)]
    if not moved:
        raise ConfigError("--from and --to are the same services: there is nothing to transfer")
    parts: list[Part] = []
    if "registry_url" in moved:
        parts.append(_documents(source.registry(), target.registry()))
    if "state_url" in moved:
        states = _transferable(source, target, "state_url", lambda side: side.state(), "stored")
        parts += _streams(*cast("tuple[TransferableState, TransferableState]", states))
    if "tasks_url" in moved:
        for app in await _apps(source, target, apps):
            stores = _transferable(
                source, target, "tasks_url", partial(Services.task_store, app=app), "restore"
            )
            parts.append(_tasks(app, *cast("tuple[TransferableTasks, TransferableTasks]", stores)))
    if "queue_url" in moved:
        parts += await _queues(source, target, own_seqs)
    return parts


async def check_apart(source: Services, target: Services) -> None:
    """Raise ConfigError if both sides have one registry under two URLs: then the source has a document that
    is written to the target. The document is removed."""
    if _is_same(source, target, "registry_url"):
        return
    name = f"{PROBES}{secrets.token_hex(16)}"
    probe = await target.registry().put(name, b"{}", 0)
    assert probe is not None, "the name is random"
    found = await source.registry().get(name)
    await target.registry().drop(name, probe.version)
    if found is not None:
        ours, theirs = (shown(side.config.registry_url) for side in (source, target))
        raise ConfigError(
            f"--from and --to have the same registry, as {ours!r} and as {theirs!r}: nothing was transferred."
            " Name another service with --to; what both sides are to share needs the same URL in both config"
            " files"
        )


async def living(services: Services) -> list[str]:
    """Return the names of the nodes that are up."""
    return [member.name for member in await services.coordinator().members()]


def _is_same(source: Services, target: Services, setting: str) -> bool:
    """Return whether a setting names one service on both sides: by one URL, or by two URLs of one file."""
    ours, theirs = (getattr(side.config, setting) for side in (source, target))
    if ours == theirs:
        return True
    files = [service_of(url).local_file(url) for url in (ours, theirs)]
    existing = [file for file in files if file is not None and file.exists()]
    return len(existing) == len(files) and existing[0].samefile(existing[1])


def _transferable(
    source: Services, target: Services, setting: str, opened: Callable[[Services], Any], method: str
) -> tuple[Any, Any]:
    ports = opened(source), opened(target)
    for port, side, option in zip(ports, (source, target), ("--from", "--to"), strict=True):
        if not hasattr(port, method):
            url = shown(getattr(side.config, setting))
            hint = (
                ": messages can't be listed there without receiving them. Have the nodes handle all that"
                " waits, and redrive the dead letters; then transfer the rest with the same queue_url on both"
                " sides, by --from-config and --to-config"
                if setting == "queue_url"
                else ""
            )
            raise ConfigError(f"{option}: {setting} is {url!r}, whose contents can't be transferred{hint}")
    return ports


# --- the registry


def _documents(source: Registry, target: Registry) -> Part:
    async def read(registry: Registry, *, clears: bool) -> AsyncIterator[Item]:
        for document in await registry.list(""):
            if document.name.startswith(PROBES):  # left by a transfer that was killed
                continue
            without_nodes = clears and document.name.startswith(APPS)
            body = msgspec.json.encode(Listing()) if without_nodes else document.body
            yield Item(document.name.encode(), document.name, digest(body), (document.name, body))

    async def write(records: Sequence[tuple[str, bytes]]) -> None:
        for name, body in records:
            await target.put(name, body, 0)

    return Part("documents", partial(read, source, clears=True), partial(read, target, clears=False), write)


# --- streams


def _streams(source: TransferableState, target: TransferableState) -> list[Part]:
    async def write_results(records: Sequence[Logged]) -> None:
        await target.restore_results(records, above=await source.last_cursor())

    return [
        Part("checkpoints", partial(_checkpoints, source), partial(_checkpoints, target), target.restore),
        Part("results", partial(_results, source), partial(_results, target), write_results),
    ]


async def _checkpoints(state: TransferableState) -> AsyncIterator[Item]:
    async for c in stored(state):
        content = digest(msgspec.structs.replace(c, at=_micros(c.at)))
        yield Item(c.key.encode(), c.key, content, c, len(c.state or b""))


async def stored(state: TransferableState) -> AsyncIterator[Checkpoint]:
    """Yield all checkpoints with their states. A read takes as many as fit into memory."""
    at_once = STATES_AT_ONCE
    async for page in checkpoint_pages(state):
        keys = [checkpoint.key for checkpoint in page]
        while keys:
            found = await state.stored(keys[:at_once])
            keys = keys[at_once:]
            size = sum(len(checkpoint.state or b"") for checkpoint in found)
            at_once = at_once * 2 if size * 2 <= READ_BYTES else max(STATES_AT_ONCE, at_once // 2)
            for checkpoint in found:
                yield checkpoint


async def _results(state: TransferableState) -> AsyncIterator[Item]:
    async for r in results_of(state):
        name = f"cursor {r.cursor} ({r.key}:{r.result.name})"
        content = digest(msgspec.structs.replace(r, at=_micros(r.at)))
        yield Item(r.cursor, name, content, r, len(r.result.body))


# --- tasks


async def _apps(source: Services, target: Services, named: Collection[str]) -> list[str]:
    """Return the names of all apps that may have tasks on either side."""
    apps = {*named}
    for side in (source, target):
        apps |= {*await side.task_apps()}
        apps |= {document.name.removeprefix(APPS) for document in await side.registry().list(APPS)}
    return sorted(apps)


def _tasks(app: str, source: TransferableTasks, target: TransferableTasks) -> Part:
    async def read(tasks: TransferableTasks) -> AsyncIterator[Item]:
        async for page in pages(lambda last: tasks.list(PAGE, last.task_id if last else "")):
            for task in page:
                yield Item(task.task_id.encode(), task.task_id, digest(_task(task)), task)

    return Part(f"tasks of {app}", partial(read, source), partial(read, target), target.restore)


def _task(task: Task) -> Task:
    times = ("until", "queued_at", "started_at", "ended_at", "send_at")
    return msgspec.structs.replace(task, **{name: _micros(getattr(task, name)) for name in times})


# --- queues


async def _queues(source: Services, target: Services, own_seqs: Collection[str]) -> list[Part]:
    _transferable(source, target, "queue_url", lambda side: side.queue("holdfast"), "waiting")
    numbered = await _highest_seqs(source)
    parts: list[Part] = []
    names = {*await source.queue_names(), *await target.queue_names(), *numbered}
    for name in sorted(names):
        ours, theirs = cast(
            "tuple[TransferableQueue, TransferableQueue]", (source.queue(name), target.queue(name))
        )
        keeps = name in numbered and name not in own_seqs and ours.seq_kind != "absent"
        if keeps and theirs.seq_kind == "absent":
            raise OperationRefused(
                f'stream {name!r}: if it takes its seqs from the queue (seq="queue"), it can\'t go to'
                f" {shown(target.config.queue_url)}, where messages have no numbers; if its messages hold"
                f" their seqs, say --own-seq {name}"
            )
        above = numbered[name] if keeps else 0
        parts.append(_messages(name, ours, theirs, keeps=keeps, above=above))
        parts.append(_dead_letters(name, ours, theirs))
    return parts


async def _highest_seqs(source: Services) -> dict[str, int]:
    """Return the highest seqs of streams whose seqs only grow: they may be the numbers of their queues."""
    state, found = cast("TransferableState", source.state()), dict[str, int]()
    if not hasattr(state, "stored"):
        return found
    async for checkpoint in stored(state):
        stream, log = checkpoint.key.partition("/")[0], checkpoint.log
        if log is not None and any(NUMBERED.search(name) for name in checkpoint.recent):
            found[stream] = max(found.get(stream, 0), log.seq)
    return found


def _messages(
    name: str, source: TransferableQueue, target: TransferableQueue, *, keeps: bool, above: int
) -> Part:
    """Return the part of waiting messages. ``keeps``: they keep their numbers, else only their order."""

    async def read(queue: TransferableQueue) -> AsyncIterator[Item]:
        place = 0
        async for page in pages(lambda last: queue.waiting(PAGE, last.id if last else "")):
            for message in page:
                carried = _carried(message, keeps=keeps)
                attributes = sorted(carried.attributes.items())
                content = digest((carried.body, attributes, carried.receives, carried.number))
                yield Item(place, f"message {message.id}", content, carried, len(message.body))
                place += 1

    return Part(
        f"messages of {name}",
        partial(read, source),
        partial(read, target),
        partial(target.restore, above=above),
    )


def _carried(message: WaitingMessage, *, keeps: bool) -> WaitingMessage:
    if keeps:
        return message
    attributes = {"id": message.id} | message.attributes
    return msgspec.structs.replace(message, attributes=attributes, number=None)


def _dead_letters(name: str, source: TransferableQueue, target: TransferableQueue) -> Part:
    async def read(queue: TransferableQueue) -> AsyncIterator[Item]:
        async for page in pages(lambda last: queue.dead_letters(PAGE, last.id if last else "")):
            for letter in page:
                content = digest(msgspec.structs.replace(letter, at=_micros(letter.at)))
                yield Item(letter.id.encode(), letter.id, content, letter, len(letter.body))

    return Part(
        f"dead letters of {name}", partial(read, source), partial(read, target), target.restore_dead_letters
    )


def _micros(at: float) -> int:
    """Return a wall time with the precision of all services."""
    return round(at * 1e6)
