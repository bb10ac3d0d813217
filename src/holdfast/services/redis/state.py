"""The state store in Redis. Scripts decide as the ledger does, each in one step.

A stream is a hash. Its fields are what scripts compare and count, and one field of JSON that scripts don't
read, in which numbers may have any length. The state is another field. A large state is a key of its own,
sent in pieces before the commit that names it, so that it never blocks the server for long.

A new epoch isn't the next number, but one that was never issued, because Redis may lose the last openings in
a restart or fail-over, and they must stay fenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from holdfast.common.acts import Effect
from holdfast.common.record import reading
from holdfast.errors import Fenced, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged, check_state
from holdfast.rules.streams.ledger import COUNT_MAX, SUSPECTS_MAX, Checkpoint, Commit, RunLog, Started, Timer
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.lane import Word
from holdfast.services.redis.replicas import ConfirmedConnection, Replicas
from holdfast.services.redis.results import Results, micros, stream_of
from holdfast.services.redis.shards import StateShards, answers_of

INLINE_BYTES = 128 << 10
"""Largest state that goes with its commit; a larger one goes before it, in pieces."""

PIECE_BYTES = 1 << 20
UNNAMED_S = 600
"""Seconds for which pieces are kept that no commit names."""

CHANCE = 1 << 20
"""Range of the random step to the next epoch where the server's clock is behind the last one."""

PEEKS_MAX = 5
"""Tries to fetch a state that is replaced meanwhile."""

EXPIRE_BATCH = 100
"""Checkpoints that one call expires, so that commits don't wait for it."""

BARE = (
    "epoch",
    "member",
    "number",
    "id",
    "at",
    "detail",
    "head",
    "openings",
    "begun",
    "suspects",
    "version",
    "done",
    "skipped",
    "timers",
    "due",
)

OPEN = Script.load("open", "shard")
PEEK = Script.load("peek")
NOW = Script.load("now", "shard")
START = Script.load("start", "shard")
COMMIT = Script.load("commit", "shard")
LEASE = Script.load("lease", "shard")
EXPIRE = Script.load("expire_idle")
RESTORE = Script.load("restore", "shard")

EFFECT, REFUSED = b"effect:", b"refused:"
"""Prefixes of the fields of a stream's effects; the id follows."""

Detail = tuple[RunLog | None, tuple[RunLog, ...], str]

_encode = msgspec.json.encode
_detail = msgspec.json.Decoder(Detail)
_timers = msgspec.json.Decoder(tuple[Timer, ...])
_record = msgspec.msgpack.encode
_effect = msgspec.msgpack.Decoder(Effect)
_suspects = msgspec.json.Decoder(tuple[Started, ...], strict=False)  # epochs are texts, for Lua's sake


class DueKey(NamedTuple):
    """A key as it was seen to be due. The longest due is the first in order."""

    due: float
    key: str
    shard: int
    score: bytes
    """``due`` as the server wrote it."""


class RedisState:
    """The checkpoints and results of all streams in a Redis namespace, in as many shards as the address says.

    Times are the server's. Calls raise as a ``RedisConnection`` does, and ConfigError if the
    namespace has another number of shards. The connection is the state store's own, and closed with it.
    With ``wait_replicas`` in its address, a commit that fewer replicas have is of unknown outcome."""

    def __init__(
        self,
        connection: RedisConnection,
        clock: Clock,
        *,
        max_state_bytes: int = 8 << 20,
    ) -> None:
        self.max_state_bytes = max_state_bytes
        self._connection = connection
        self._clock = clock
        self._shards = StateShards(connection)
        self._results = Results(connection, self._shards, clock)
        self._replicas = Replicas(connection) if connection.address.wait_replicas else None
        self._confirmed = ConfirmedConnection.beside(connection)
        self._restored = StateShards(self._confirmed)

    # --- checkpoints

    async def peek(self, key: str) -> Checkpoint | None:
        shard = self._shards.of(key)
        name, effects = self._names(shard, key, "checkpoint", "effects")
        for _ in range(PEEKS_MAX):
            fields, pending = _fields(await self._connection.command(name, "HGETALL", name)), {}
            if b"acts" in fields:
                fields, pending = map(_fields, await self._connection.script(PEEK, (name, effects)))
            if not fields:
                return None
            state = await self._fetch(fields)
            if state is not None or b"blob" not in fields:
                return _checkpoint(key, fields, state, pending)
        raise Unavailable(f"{key}: the state changes faster than it can be read")

    async def now(self, key: str) -> float:
        status, micros_now = await self._shards.run(NOW, self._shards.of(key), ())
        assert status == b"ok"
        return int(micros_now) / 1e6

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        shard = self._shards.of(key)
        names = (
            *self._names(shard, key, "checkpoint", "recent"),
            *self._names(shard, "", "keys"),
            *self._names(shard, key, "effects"),
        )
        chance = int(self._clock.random() * CHANCE)
        status, *reply = await self._shards.run(OPEN, shard, names, expect, chance, member, key)
        if status == b"fenced":
            raise _fenced(key, int(reply[0]), expect)
        with reading(f"the checkpoint of {key}"):
            fields, recent = _fields(reply[0]), tuple(identity.decode() for identity in reply[1])
            effects = _fields(reply[2])
        try:
            state = await self._fetch(fields)
        except HoldfastError as error:
            raise OutcomeUnknown(f"{key} is opened, but its state can't be read: {error}") from error
        if state is None and b"blob" in fields:
            raise OutcomeUnknown(f"{key} was opened, and again by another before its state could be read")
        return msgspec.structs.replace(_checkpoint(key, fields, state, effects), recent=recent)

    async def start(self, key: str, epoch: int, head: str) -> int:
        shard = self._shards.of(key)
        names = self._names(shard, key, "checkpoint")
        status, value = await self._shards.run(START, shard, names, epoch, head, SUSPECTS_MAX)
        if status == b"fenced":
            raise _fenced(key, int(value), epoch)
        return int(value)

    async def commit(self, commit: Commit) -> None:
        c, size = commit, len(commit.state or b"")
        check_state(commit, self.max_state_bytes)
        shard = self._shards.of(c.key)
        fate, state = _fate(c)
        blob = ""
        if size > INLINE_BYTES:
            assert c.state is not None
            blob = await self._send(shard, c.state)
            fate, state = "blob", size
        names = (
            *self._names(shard, c.key, "checkpoint", "recent"),
            *self._names(shard, "", "idle", "logs"),
            self._shards.name(shard, "log", stream_of(c.key)),
            *self._names(shard, c.key, "names"),
            *((blob,) if blob else ()),
        )
        acting = _acting(c)
        words: list[Word] = [
            shard, c.key, stream_of(c.key), c.epoch, c.number - 1, c.number, c.id,
            _encode((c.log, c.past, c.parked)), c.starting, c.done, c.skipped, COUNT_MAX, c.window,
            len(c.identities), c.state_version, fate, state, int(c.clear_suspects),
            len(acting), *c.identities, *acting,
        ]  # fmt: skip
        for result in c.results:
            words += (result.name, result.body)
        status, *reply = await self._shards.run(COMMIT, shard, names, *words)
        if blob and (status != b"ok" or reply[0] == b"again"):
            await self._connection.command(blob, "UNLINK", blob)
        if status == b"fenced":
            raise _fenced(c.key, int(reply[0]), c.epoch)
        if status == b"number":
            raise Fenced(
                f"{c.key}: commit {c.number} is not next after {int(reply[0])}; reopen the stream",
                int(reply[1]),
            )
        if status == b"lost":
            raise Unavailable(f"{c.key}: the pieces of its state were lost before the commit could name them")
        if self._replicas is not None:
            await self._replicas.confirm(shard, names[0], c)

    async def identities(self, key: str, limit: int) -> list[str]:
        recent = self._shards.name(self._shards.of(key), "recent", key)
        names = await self._connection.command(recent, "LRANGE", recent, -limit, -1)
        return [name.decode() for name in names]

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        begin = f"({after}" if after else "-"

        async def keys_in(shard: int) -> list[str]:
            [name] = self._names(shard, "", "keys")
            found = await self._connection.command(name, "ZRANGEBYLEX", name, begin, "+", "LIMIT", 0, limit)
            with reading(f"the list of keys {name}"):
                return [key.decode() for key in found]

        async def read(key: str) -> Checkpoint:
            name = self._shards.name(self._shards.of(key), "checkpoint", key)
            values = await self._connection.command(name, "HMGET", name, *BARE)
            fields = {
                name.encode(): value for name, value in zip(BARE, values, strict=True) if value is not None
            }
            return _checkpoint(key, fields, None, {})

        found = await asyncio.gather(*(keys_in(shard) for shard in range(self._shards.count)))
        keys = sorted(key for keys in found for key in keys)[:limit]
        return list(await asyncio.gather(*(read(key) for key in keys)))

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        """See the port. If nothing is due, this is one small command for each shard, and the commands
        for one server are one round trip. While a server can't be reached, keys of others are handed out."""
        leased: list[str] = []
        try:
            while len(leased) < limit:
                seen = await self._longest_due(before, limit - len(leased))
                won = await self._lease(seen, before + lease_s)
                leased += won
                if len(won) == len(seen):
                    break  # else others were faster: there may be more
        except HoldfastError:
            if not leased:
                raise
        return leased

    # --- results

    async def results(self, after: int, limit: int, wait_s: float = 0.0, stream: str = "") -> list[Logged]:
        return await self._results.read(after, limit, wait_s, stream)

    async def result(self, key: str, name: str) -> Logged | None:
        return await self._results.find(key, name)

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        return await self._results.expire(results_before), await self._expire_idle(idle_before)

    # --- transfer

    async def stored(self, keys: Sequence[str]) -> list[Checkpoint]:
        found = await asyncio.gather(*map(self._stored, keys))
        return [checkpoint for checkpoint in found if checkpoint is not None]

    async def _stored(self, key: str) -> Checkpoint | None:
        standing = await self.peek(key)
        if standing is None:
            return None
        recent = self._shards.name(self._shards.of(key), "recent", key)
        identities = await self._connection.command(recent, "LRANGE", recent, 0, -1)
        return msgspec.structs.replace(standing, recent=tuple(name.decode() for name in identities))

    async def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            check_state(checkpoint, self.max_state_bytes)
        await asyncio.gather(*map(self._restore, checkpoints))

    async def _restore(self, c: Checkpoint) -> None:
        shard = self._shards.of(c.key)
        fields = _stored_fields(c)
        blob = ""
        if c.state is not None and len(c.state) > INLINE_BYTES:
            blob = fields["blob"] = await self._send(shard, c.state)
        elif c.state is not None:
            fields["state"] = c.state
        effects: list[Word] = []
        for effect in c.effects:
            plain = msgspec.structs.replace(effect, refused="")
            effects += (EFFECT + effect.id.encode(), _record(plain))
            if effect.refused:
                effects += (REFUSED + effect.id.encode(), effect.refused)
        names = (
            *self._names(shard, c.key, "checkpoint", "recent"),
            *self._names(shard, "", "keys", "idle", "due"),
            *self._names(shard, c.key, "effects"),
        )
        words: list[Word] = [word for field in fields.items() for word in field]
        _, done = await self._restored.run(
            RESTORE, shard, names, c.key, micros(c.at) if c.at else 0, repr(c.due) if c.due else "",
            len(fields), len(c.recent), len(effects), *words, *c.recent, *effects,
        )  # fmt: skip
        if blob and done == b"known":
            await self._connection.command(blob, "UNLINK", blob)

    async def last_cursor(self) -> int:
        return await self._results.last_cursor()

    async def restore_results(self, results: Sequence[Logged], above: int = 0) -> None:
        await self._results.restore(self._restored, results, above)

    async def close(self) -> None:
        await self._results.close()
        if self._replicas is not None:
            await self._replicas.close()
            await self._confirmed.close()
        await self._connection.close()

    async def _expire_idle(self, before: float) -> int:
        expired = 0
        for shard in range(self._shards.count):
            [idle] = self._names(shard, "", "idle")
            prefixes = self._names(shard, "", "checkpoint:", "recent:")
            looked = EXPIRE_BATCH
            while looked:
                looked, dropped = await self._connection.script(
                    EXPIRE, [idle], micros(before), EXPIRE_BATCH, *prefixes
                )
                expired += dropped
        return expired

    # --- which keys are due

    async def _longest_due(self, before: float, limit: int) -> list[DueKey]:
        async def look(shard: int) -> list[DueKey]:
            [name] = self._names(shard, "", "due")
            found = await self._connection.command(
                name, "ZRANGEBYSCORE", name, "(0", f"({before!r}", "WITHSCORES", "LIMIT", 0, limit
            )
            with reading(f"the list of keys {name}"):
                return [DueKey(float(due), key.decode(), shard, due) for key, due in _fields(found).items()]

        pages = await answers_of([look(shard) for shard in range(self._shards.count)])
        return sorted(found for page in pages for found in page)[:limit]

    async def _lease(self, seen: Sequence[DueKey], until: float) -> list[str]:
        """Lease keys as they were seen; returns the keys that no other process got first."""

        async def lease(shard: int) -> list[str]:
            words = [word for found in seen if found.shard == shard for word in (found.key, found.score)]
            names, prefix = self._names(shard, "", "due"), self._shards.name(shard, "checkpoint", "")
            _, keys = await self._shards.run(LEASE, shard, names, repr(until), prefix, *words)
            return [key.decode() for key in keys]

        pages = await answers_of([lease(shard) for shard in {found.shard for found in seen}])
        won = {key for page in pages for key in page}
        return [found.key for found in seen if found.key in won]

    # --- large states

    async def _send(self, shard: int, state: bytes) -> str:
        """Bring a large state to the server; the name under which it waits for its commit."""
        blob = self._shards.name(shard, "blob", self._clock.new_id())
        await self._connection.command(blob, "SET", blob, state[:PIECE_BYTES], "EX", UNNAMED_S)
        for begin in range(PIECE_BYTES, len(state), PIECE_BYTES):
            await self._connection.command(blob, "APPEND", blob, state[begin : begin + PIECE_BYTES])
        return blob

    async def _fetch(self, fields: Mapping[bytes, bytes]) -> bytes | None:
        """Return the state; None without one, or if it was replaced meanwhile."""
        blob = fields.get(b"blob")
        if blob is None:
            return fields.get(b"state")
        state: bytes | None = await self._connection.command(blob.decode(), "GET", blob)
        return state

    def _names(self, shard: int, key: str, *kinds: str) -> list[str]:
        return [self._shards.name(shard, *((kind, key) if key else (kind,))) for kind in kinds]


def _fate(commit: Commit) -> tuple[str, Word]:
    if commit.state is not None:
        return "set", commit.state
    return ("clear" if commit.clear_state else "keep"), ""


def _fenced(key: str, stands: int, wanted: int) -> Fenced:
    return Fenced(f"{key}: epoch {stands} stands, not {wanted}; another node has opened the stream", stands)


def _fields(pairs: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _started(fields: Mapping[bytes, bytes]) -> Started | None:
    if b"head" not in fields:
        return None
    return Started(fields[b"head"].decode(), int(fields[b"openings"]), int(fields.get(b"begun", 0)))


def _acting(commit: Commit) -> Sequence[Word]:
    """Return the words of a commit about effects, timers and its due time; empty without any."""
    c = commit
    if not (c.due or c.timers is not None or c.effects or c.dropped or c.refused):
        return ()
    words: list[Word] = [
        repr(c.due) if c.due else "",
        "" if c.timers is None else _encode(c.timers),
        len(c.dropped),
        len(c.refused),
        *c.dropped,
    ]
    for refused in c.refused:
        words += (refused.id, refused.reason)
    for effect in c.effects:
        words += (effect.id, _record(effect))
    return words


def _stored_fields(c: Checkpoint) -> dict[str, Word]:
    """Return the fields of a checkpoint as another store had it, but for the state."""
    fields: dict[str, Word] = {"epoch": c.epoch, "number": c.number}
    fields |= {
        name: value
        for name, value in (
            ("member", c.member),
            ("id", c.commit_id),
            ("at", micros(c.at) if c.at else 0),
            ("done", c.done),
            ("skipped", c.skipped),
            ("version", c.state_version),
            ("window", len(c.recent)),
            ("due", repr(c.due) if c.due else ""),
            ("timers", _encode(c.timers) if c.timers else ""),
            ("acts", int(c.acts)),
        )
        if value
    }
    if c.log is not None or c.past or c.parked:
        fields["detail"] = _encode((c.log, c.past, c.parked))
    if c.started is not None:
        fields |= {"head": c.started.head, "openings": c.started.openings, "begun": c.started.epoch}
    if c.suspects:  # epochs are texts, for Lua's sake
        fields["suspects"] = _encode([(s.head, s.openings, str(s.epoch)) for s in c.suspects])
    return fields


def _effects(fields: Mapping[bytes, bytes]) -> tuple[Effect, ...]:
    effects = []
    for field, value in fields.items():
        if field.startswith(EFFECT):
            effect = _effect.decode(value)
            reason = fields.get(REFUSED + field.removeprefix(EFFECT))
            effects.append(
                effect if reason is None else msgspec.structs.replace(effect, refused=reason.decode())
            )
    return tuple(sorted(effects, key=attrgetter("number", "place")))


def _checkpoint(
    key: str, fields: Mapping[bytes, bytes], state: bytes | None, effects: Mapping[bytes, bytes]
) -> Checkpoint:
    with reading(f"the checkpoint of {key}"):
        return _read_checkpoint(key, fields, state, effects)


def _read_checkpoint(
    key: str, fields: Mapping[bytes, bytes], state: bytes | None, effects: Mapping[bytes, bytes]
) -> Checkpoint:
    log, past, parked = _detail.decode(fields.get(b"detail", b'[null,[],""]'))
    return Checkpoint(
        key=key,
        epoch=int(fields.get(b"epoch", 0)),
        number=int(fields.get(b"number", 0)),
        commit_id=fields.get(b"id", b"").decode(),
        log=log,
        past=past,
        state=state,
        state_version=int(fields.get(b"version", 0)),
        started=_started(fields),
        suspects=_suspects.decode(fields.get(b"suspects", b"[]")),
        parked=parked,
        done=int(fields.get(b"done", 0)),
        skipped=int(fields.get(b"skipped", 0)),
        member=fields.get(b"member", b"").decode(),
        at=int(fields.get(b"at", 0)) / 1e6,
        effects=_effects(effects),
        timers=_timers.decode(fields.get(b"timers", b"[]")),
        due=float(fields.get(b"due", 0)),
    )
