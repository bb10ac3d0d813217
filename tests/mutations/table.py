"""Single changes to the code that take away something it promises, chosen from the code alone.

``tests`` are where somebody would look for the test that finds it, not all that do.
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    """In ``file`` the text ``old``, which stands there once, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _core(module: str, name: str, old: str, new: str) -> Mutation:
    return Mutation(
        f"{module}: {name}", f"src/holdfast/core/{module}.py", old, new, (f"tests/core/test_{module}.py",)
    )


def _of(path: str, name: str, old: str, new: str, *tests: str) -> Mutation:
    """``path`` is below ``src/holdfast``, ``tests`` below ``tests``."""
    return Mutation(
        f"{path}: {name}", f"src/holdfast/{path}", old, new, tuple(f"tests/{test}" for test in tests)
    )


CORE = [
    _core(
        "sequencer",
        "the last seq is new again",
        "place.run == self._log.run and place.seq > self._log.seq",
        "place.run == self._log.run and place.seq >= self._log.seq",
    ),
    _core(
        "sequencer",
        "of past runs only one is kept",
        "(self._begun, *self._passed)[:PAST_RUNS_MAX]",
        "(self._begun, *self._passed)[:1]",
    ),
    _core(
        "sequencer",
        "the window is one too small",
        "while len(self._window) > self.rules.window:",
        "while len(self._window) >= self.rules.window:",
    ),
    _core(
        "sequencer",
        "neighbouring skips stay apart",
        "if skips and skips[-1].last + 1 == span.first:",
        "if skips and skips[-1].last == span.first:",
    ),
    _core(
        "ledger",
        "the newest suspects are forgotten",
        "if suspect.head != head)[-SUSPECTS_MAX:]",
        "if suspect.head != head)[:SUSPECTS_MAX]",
    ),
    _core(
        "ledger",
        "a commit without state sets its version",
        "state_version=commit.state_version if commit.state is not None else current.state_version,",
        "state_version=commit.state_version,",
    ),
    _core(
        "ledger",
        "counts of skips grow without end",
        "skipped=min(COUNT_MAX, current.skipped + commit.skipped),",
        "skipped=current.skipped + commit.skipped,",
    ),
    _core(
        "lease",
        "drift is added instead of taken off",
        "self.sent_at + self.ttl_s * (1.0 - self.drift)",
        "self.sent_at + self.ttl_s * (1.0 + self.drift)",
    ),
    _core(
        "lease",
        "a renewal that was sent earlier shortens it",
        "Lease(self.ttl_s, max(self.sent_at, sent_at), self.drift)",
        "Lease(self.ttl_s, sent_at, self.drift)",
    ),
    _core(
        "progress",
        "stale deliveries are extended",
        "if not delivery.stale and delivery.expires_at <= horizon",
        "if delivery.expires_at <= horizon",
    ),
    _core("retry", "the first pause is doubled", "min(failures - 1, 60)", "min(failures, 60)"),
    _core(
        "placement",
        "what was placed uses no room",
        "and member.load.room > extra.get(member.id, 0)",
        "and member.load.room > 0",
    ),
    _core(
        "placement",
        "placements are counted twice",
        "return max(0, count - shown) if shown >= 0 else 0",
        "return count if shown >= 0 else 0",
    ),
    _core(
        "task",
        "an attempt of one known to be gone must lapse",
        "stands = task.until > now and task.member != wish.instead_of",
        "stands = task.until > now",
    ),
    _core(
        "task",
        "a try that was given back is spent",
        "attempts=task.attempts if wish.spent else task.attempts - 1,",
        "attempts=task.attempts,",
    ),
    _core(
        "task",
        "one whose attempt stands expires",
        "return standing.moved_at < before and standing.until < before",
        "return standing.moved_at < before",
    ),
    _core(
        "task",
        "a reset begins with epoch 0",
        "group=standing.group, epoch=standing.epoch, queued_at=now)",
        "group=standing.group, queued_at=now)",
    ),
    _core(
        "permits",
        "time without looking counts",
        "min(now - seen.at, grant.lease_s / LOOKS)",
        "now - seen.at",
    ),
    _core(
        "permits",
        "grants that lapsed stay",
        "if name != member and name not in lapsed}",
        "if name != member}",
    ),
    _core(
        "permits",
        "more is held than was granted",
        "held = min(holds, own.count) if own else 0",
        "held = holds",
    ),
    _core(
        "device_queue",
        "the last moment counts as before the end",
        "entry.expires_at is not None and entry.expires_at <= now:",
        "entry.expires_at is not None and entry.expires_at < now:",
    ),
    _core(
        "device_queue",
        "the longest pause is shorter than the first",
        "max(self.retry_max_s, first_s), (1.0",
        "self.retry_max_s, (1.0",
    ),
    _core(
        "device_turn",
        "what wasn't sent uses up a try",
        "spent=max(0, entry.spent - 1))",
        "spent=entry.spent)",
    ),
    _core(
        "device_turn",
        "a full batch of arrivals was all",
        "self._done.more |= len(found.arrivals) >= turn.limit",
        "self._done.more |= len(found.arrivals) > turn.limit",
    ),
    _core(
        "presence",
        "an earlier dispatcher's word undoes what was heard since",
        "        if device not in self._since and device not in self._away:\n"
        "            self._away.add(device)",
        "        if device not in self._away:\n            self._away.add(device)",
    ),
    _core(
        "presence",
        "one that is away counts as there too",
        "        self._since.pop(device, None)\n        if device not in self._away:",
        "        if device not in self._away:",
    ),
    _core(
        "turns",
        "a group has one more than its limit",
        "if share.group_limit and running >= share.group_limit:",
        "if share.group_limit and running > share.group_limit:",
    ),
    _core(
        "rate",
        "more than the burst never goes",
        "missing = min(units, rate.burst) - self._level(key, rate, now)",
        "missing = units - self._level(key, rate, now)",
    ),
    _core(
        "group_rate",
        "moments long passed all count",
        "if now - given <= MISSED_S:",
        "if now >= given:",
    ),
    _core(
        "company",
        "one waits long for nobody",
        "linger_s = self._linger_s if others else self._linger_s / ALONE",
        "linger_s = self._linger_s",
    ),
    _core(
        "balance",
        "large nodes are hot sooner",
        "if excess[n.member] > BAND * mean * n.capacity]",
        "if excess[n.member] > BAND * mean]",
    ),
    _core(
        "balance", "streams without load are moved", "if 0 < stream.load <= left:", "if stream.load <= left:"
    ),
    _core(
        "polling", "a single full batch brings another receive", "if self._full > 1:", "if self._full > 0:"
    ),
    _core(
        "remote_name",
        "a segment may be a dot",
        'if any(segment in ("", ".", "..") for segment in segments):',
        'if any(segment in ("", "..") for segment in segments):',
    ),
    _core(
        "message", "a number may have a digit too many", "if value >= 10**digits:", "if value > 10**digits:"
    ),
    _core(
        "dialect",
        "true is an id",
        "if isinstance(told, bool) or not isinstance(told, str | int):",
        "if not isinstance(told, str | int):",
    ),
]

RUNTIME = [
    _of(
        "runtime/membership.py",
        "trust counts from the answer",
        "self._lease = self._lease.renewed(sent_at)",
        "self._lease = self._lease.renewed(self._clock.monotonic())",
        "runtime/test_membership.py",
    ),
    _of(
        "runtime/membership.py",
        "its own end is found out late",
        "            self.renew_now.set()  # find out at once",
        "            pass",
        "runtime/test_membership.py",
    ),
    _of(
        "runtime/view.py",
        "changes that went by unseen are not looked for",
        "if after < 0 or number < after:",
        "if after < 0:",
        "runtime/test_membership.py",
    ),
    _of(
        "runtime/view.py",
        "a lost answer is evidence",
        "                continue  # perhaps a kept connection that broke with the process: look once more",
        "                return True",
        "runtime/test_membership.py",
    ),
    _of(
        "runtime/view.py",
        "another program's worker is probed",
        "if suspected is None or suspected.foreign or member in self._suspects:",
        "if suspected is None or member in self._suspects:",
        "runtime/test_membership.py",
    ),
    _of(
        "runtime/keeper.py",
        "a receipt that was replaced is used on",
        "                receipt.stale = True\n            await self._delete",
        "                pass\n            await self._delete",
        "runtime/test_keeper.py",
    ),
    _of(
        "runtime/keeper.py",
        "visibility counts from the answer",
        "receipts[name].expires_at = sent_at + self._limits.visibility_s",
        "receipts[name].expires_at = self._clock.monotonic() + self._limits.visibility_s",
        "runtime/test_keeper.py",
    ),
    _of(
        "runtime/keeper.py",
        "stale receipts are deleted",
        "receipt.receipt for receipt in receipts if not receipt.stale))",
        "receipt.receipt for receipt in receipts))",
        "runtime/test_keeper.py",
    ),
    _of(
        "runtime/pump.py",
        "deleted before its letter is sent",
        "        await self._queue.bury([letter])\n        await self._queue.delete([delivery.receipt])",
        "        await self._queue.delete([delivery.receipt])\n        await self._queue.bury([letter])",
        "runtime/test_pump.py",
    ),
    _of(
        "runtime/pump.py",
        "a queue that is away is asked by many",
        "                self._polling.failed()\n",
        "",
        "runtime/test_pump.py",
    ),
    _of(
        "runtime/router.py",
        "what is stale is routed again",
        "                elif not receipt.stale:",
        "                else:",
        "runtime/test_router.py",
    ),
    _of(
        "runtime/router.py",
        "a place that was refused counts as taken",
        "        if claim is None or claim.member != target.id:\n            self._placed.add(target, -1)\n",
        "",
        "runtime/test_router.py",
    ),
    _of(
        "runtime/router.py",
        "a stream that moved is known by its old epoch",
        "_remember(self._departed, key, Route(to, epoch + 1), DEPARTED_MAX)",
        "_remember(self._departed, key, Route(to, epoch), DEPARTED_MAX)",
        "runtime/test_router.py",
    ),
    _of(
        "runtime/router.py",
        "an owner's extensions are not counted",
        "        if item.accepted:\n            alive_until",
        "        if False:\n            alive_until",
        "runtime/test_router.py",
    ),
    _of(
        "runtime/slots.py",
        "signs of progress give no time",
        "since = max(call.begun_at, seat.slot.progress_at)",
        "since = call.begun_at",
        "runtime/test_slots.py",
    ),
    _of(
        "runtime/supervisor.py",
        "the first death is paused for",
        "if failures > 1 and code not in self._final:",
        "if failures > 0 and code not in self._final:",
        "runtime/test_supervisor.py",
    ),
    _of(
        "runtime/service.py",
        "what fails while it ends is a crash",
        "(error := task.exception()) is not None and not self._closed:",
        "(error := task.exception()) is not None:",
        "runtime/test_service.py",
    ),
    _of(
        "runtime/balancer.py",
        "a draining node gets streams",
        "if not (member.load.draining or member.foreign):",
        "if not member.foreign:",
        "runtime/test_balancer.py",
    ),
]

TASKS = [
    _of(
        "tasks/finisher.py",
        "a task that was cancelled leaves a letter",
        'if task.detail.startswith("cancelled"):',
        "if False:",
        "tasks/test_hand.py",
        "tasks/test_finisher.py",
    ),
    _of(
        "tasks/hand.py",
        "a message that is still needed is a stand-in",
        "task.epoch > int(sent_at)",
        "task.epoch >= int(sent_at)",
        "tasks/test_hand.py",
        "tasks/test_finisher.py",
    ),
    _of(
        "tasks/hand.py",
        "a stale delivery is a right to run",
        "all(r.stale or r.expires_at <= now for r in self.held.receipts)",
        "all(r.expires_at <= now for r in self.held.receipts)",
        "tasks/test_hand.py",
    ),
    _of(
        "tasks/permits.py",
        "what is had is let go between renewals",
        "return max(self._wants, own.count)",
        "return self._wants",
        "tasks/test_permits.py",
    ),
    _of(
        "tasks/permits.py",
        "what is given up is used until the answer",
        "        if share.granted < self._granted:",
        "        if False:",
        "tasks/test_permits.py",
    ),
    _of(
        "tasks/permits.py",
        "an older document replaces a newer one",
        "        if self._known and 0 < version < self._version:\n            return\n",
        "",
        "tasks/test_permits.py",
    ),
    _of(
        "tasks/slots.py",
        "a slot that was spoiled is used on",
        "if tried.spoiled or run.fate is not None:",
        "if run.fate is not None:",
        "tasks/test_slots.py",
    ),
    _of(
        "tasks/periodic.py",
        "what was before the declaration fires",
        "await self._registry.put(name, msgspec.json.encode(_Fired(now)), 0)",
        "await self._registry.put(name, msgspec.json.encode(_Fired(0.0)), 0)",
        "tasks/test_periodic.py",
    ),
]

DEVICES = [
    _of(
        "devices/shards.py",
        "a draining member counts",
        "in member.load.outboxes and not member.load.draining",
        "in member.load.outboxes",
        "devices/simulated/test_shards.py",
    ),
    _of(
        "devices/shards.py",
        "a shard that can't be served is counted as served",
        "            self._claims.pop(number, None)  # it is in doubt, and so looked at again\n",
        "",
        "devices/simulated/test_shards.py",
    ),
    _of(
        "devices/shards.py",
        "a node that drains takes more shards",
        "if len(self._claims) >= share or self._host.draining:",
        "if len(self._claims) >= share:",
        "devices/simulated/test_shards.py",
    ),
    _of(
        "devices/shards.py",
        "a shard that was opened during the drain is kept",
        "        if self._host.draining:  # it began to meanwhile\n",
        "        if False:\n",
        "devices/simulated/test_shards.py",
    ),
    _of(
        "devices/briefs.py",
        "briefs are forgotten before they are told",
        "                    await self._tell(closed)\n"
        "                    await self._store.briefed(self._outbox, closed)",
        "                    await self._store.briefed(self._outbox, closed)\n"
        "                    await self._tell(closed)",
        "devices/simulated/test_briefs.py",
    ),
    _of(
        "devices/source.py",
        "all pages are fetched at once",
        "while more and await store.waiting(name, source.high) < source.high:",
        "while more:",
        "devices/simulated/test_source.py",
    ),
    _of(
        "devices/work.py",
        "sources are fetched on while a node drains",
        "    async def drain(self) -> None:\n        for task in self._filling:\n            task.cancel()\n",
        "    async def drain(self) -> None:\n",
        "devices/simulated/test_shards.py",
    ),
]

ADAPTERS = [
    _of(
        "adapters/sqlite/database.py",
        "the disk isn't asked",
        "        os.fdatasync(log)",
        "        pass",
        "adapters/sqlite/test_database.py",
    ),
    _of(
        "adapters/sqlite/queue.py",
        "a receive that is woken waits on",
        "if remaining_s <= 0 or self._wakes != wakes:",
        "if remaining_s <= 0:",
        "adapters/sqlite/test_conformance.py",
        "adapters/sqlite/test_queue.py",
    ),
    _of(
        "adapters/sqlite/coordinator.py",
        "claims outlive their membership",
        '    transaction.execute("DELETE FROM claims WHERE member = ?", (member,))\n',
        "",
        "adapters/sqlite/test_conformance.py",
        "adapters/sqlite/test_coordinator.py",
    ),
    _of(
        "adapters/sqlite/coordinator.py",
        "a membership that lapsed is renewed",
        "record = ? WHERE id = ? AND expires_at > ?",
        "record = ? WHERE id = ? AND ? > 0",
        "adapters/sqlite/test_conformance.py",
        "adapters/sqlite/test_coordinator.py",
    ),
    _of(
        "adapters/sqlite/coordinator.py",
        "a change that was pruned isn't missed",
        "if after < first - 1:",
        "if after < first - 2:",
        "adapters/sqlite/test_coordinator.py",
    ),
    _of(
        "adapters/sqlite/lock.py",
        "a process that runs is killed",
        "if holder.status() != psutil.STATUS_STOPPED or self.holder() != holder:",
        "if self.holder() != holder:",
        "adapters/sqlite/test_lock.py",
        "adapters/sqlite/test_processes.py",
    ),
    _of(
        "adapters/sqlite/state.py",
        "a checkpoint that was used meanwhile expires",
        "if standing is not None and 0 < standing.at < idle_before:",
        "if standing is not None:",
        "adapters/sqlite/test_conformance.py",
        "adapters/sqlite/test_state.py",
    ),
    _of(
        "adapters/redis/transfer.lua",
        "a claim goes to the dead",
        "if not lives(ARGV[3]) then return 1 end\n",
        "",
        "adapters/redis/test_coordinator.py",
    ),
    _of(
        "adapters/redis/commit.lua",
        "a commit may leave out others",
        "if number ~= ARGV[6] then return {'number', number, stands[1]} end\n",
        "",
        "adapters/redis/test_state.py",
    ),
    _of(
        "adapters/redis/open.lua",
        "an opening applies at any epoch",
        "if epoch ~= ARGV[2] then return {'fenced', epoch} end\n",
        "",
        "adapters/redis/test_state.py",
    ),
    _of(
        "adapters/redis/expire_results.lua",
        "a newer result loses its name",
        "if redis.call('HGET', names, name) == last then redis.call('HDEL', names, name) end",
        "redis.call('HDEL', names, name)",
        "adapters/redis/test_state.py",
    ),
    _of(
        "adapters/aws/queue.py",
        "a message shows before its time",
        "math.ceil(message.delay_s)",
        "int(message.delay_s)",
        "adapters/aws/test_queue.py",
    ),
    _of(
        "adapters/aws/queue.py",
        "what nobody waits for stays hidden",
        "            self._return(polling.result())",
        "            pass",
        "adapters/aws/test_queue.py",
        "adapters/aws/test_queue_faults.py",
    ),
    _of(
        "adapters/aws/client.py",
        "a lost answer to a read may have had an effect",
        "outcome.cause is Cause.BROKEN and method not in READING",
        "outcome.cause is Cause.BROKEN",
        "adapters/aws/test_client.py",
    ),
    _of(
        "adapters/zookeeper/claims.py",
        "an older session's claim stands",
        "    if stat.ephemeralOwner != born.ephemeralOwner and stat.czxid < born.czxid:\n"
        "        return None  # of an older session, whose path another has now\n",
        "",
        "adapters/zookeeper/test_coordinator.py",
        "adapters/zookeeper/test_failures.py",
    ),
    _of(
        "adapters/mqtt/device.py",
        "one link of several is enough",
        "if all(link.connected for link in self._links):",
        "if any(link.connected for link in self._links):",
        "adapters/mqtt/test_device.py",
    ),
    _of(
        "adapters/mqtt/device.py",
        "an outage is told again and again",
        "        if isinstance(self._told, Disconnected) and not taken:\n            return\n",
        "",
        "adapters/mqtt/test_device.py",
    ),
    _of(
        "adapters/sqlalchemy/rows.py",
        "a device's last sign of life is lost",
        "SET seen_at = coalesce(excluded.seen_at, {D}.seen_at), away",
        "SET seen_at = excluded.seen_at, away",
        "adapters/sqlalchemy/test_conformance.py",
    ),
    _of(
        "adapters/http/peer.py",
        "a request that was sent counts as not taken",
        "            if not progress.sent:",
        "            if True:",
        "adapters/http/test_peer.py",
    ),
    _of(
        "adapters/file/objects.py",
        "links lead out of the folder",
        "        if not path.resolve().is_relative_to(self.root):",
        "        if False:",
        "adapters/file/test_objects.py",
    ),
]

MUTATIONS = CORE + RUNTIME + TASKS + DEVICES + ADAPTERS
