"""Opens streams at the state store, and checks their claims."""

from __future__ import annotations

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.recent import remember
from holdfast.errors import Fenced, HoldfastError, MembershipLost, OutcomeUnknown, Retry, Unavailable
from holdfast.ports.coordinator import Claim
from holdfast.ports.state import StateStore
from holdfast.rules.streams.commands import CheckClaim, Open, Peek, Reclaim
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.streams.operations import MEMBER
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry

LEFT_MAX = 1000
"""The most ended memberships that are remembered."""


class Opener:
    """Performs the commands by which an owner gets its stream, and checks that it still has it."""

    def __init__(self, owners: OwnerRegistry, host: Host, state: StateStore) -> None:
        self._owners = owners
        self._host = host
        self._coordinator = host.coordinator
        self.clock = host.clock
        self._state = state
        self._left_at: dict[str, float] = {}
        """By membership that has ended: the monotonic time at which this node learned it."""
        host.news.on_left.append(self._left)
        owners.perform_by(
            {Peek: self.peek, Open: self.open, CheckClaim: self.check_claim, Reclaim: self.reclaim}
        )

    def _left(self, member: str) -> None:
        remember(self._left_at, member, self.clock.monotonic(), LEFT_MAX)

    # -- the store --------------------------------------------------------------------------------------

    async def peek(self, entry: OwnedStream, generation: int, _: Peek) -> None:
        entry.looks += 1
        try:
            checkpoint = await self._owners.retry(entry, generation, lambda: self._state.peek(entry.key))
        except Fenced:
            return
        finally:
            entry.looks -= 1
        if entry.stands_since is None and entry.last is None and checkpoint is not None:
            entry.stands_since = self._left_at.get(checkpoint.member)
        self._owners.answer(entry, generation, lambda now: entry.owner.peeked(checkpoint, now))

    async def open(self, entry: OwnedStream, generation: int, command: Open) -> None:
        owner = entry.owner
        try:
            checkpoint = await self._owners.retry(
                entry,
                generation,
                lambda: self._state.open(entry.key, command.expect, self._host.membership.id),
                (Retry.SAFE,),
            )
        except (Fenced, OutcomeUnknown):
            self._owners.answer(entry, generation, owner.open_failed)
            return
        self._host.stats.opened += 1
        if checkpoint.acts:
            self._owners.acting.add(entry.spec.name)
        if owner.generation != generation:
            return  # a later opening may have found what was committed since
        standing, recalled = self._recall(entry, checkpoint)
        try:
            quiet_s = await self.quiet_s(entry, generation, standing, recalled)
        except Fenced:
            return
        self._owners.answer(
            entry, generation, lambda now: owner.opened(standing, now, quiet_s, recalled=recalled)
        )
        self._owners.wake_waiting()  # a move that an opening has ended has failed

    async def quiet_s(
        self, entry: OwnedStream, generation: int, standing: Checkpoint, recalled: bool
    ) -> float:
        """Return the seconds since the last message was committed; 0 if the stream doesn't need them. The
        store's clock counts, which dated the commit; a recalled commit is dated by this node."""
        if entry.owner.rules.order.restart_after_s is None:
            return 0.0
        before_s = standing.log.quiet_s if standing.log is not None else 0.0
        if recalled and entry.committed_at is not None:
            return before_s + self.clock.monotonic() - entry.committed_at
        now = await self._owners.retry(entry, generation, lambda: self._state.now(entry.key))
        return before_s + max(0.0, now - standing.at)

    def _recall(self, entry: OwnedStream, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
        """Return the checkpoint to go on from, and True if the store has lost it. If the store has nothing at
        all, no other owner has committed, so this owner's last commit counts. An older checkpoint at the
        store counts, because another owner may have gone on from it."""
        last = entry.last
        known = self._owners.commits_known.get(entry.key, 0) if last is None else last.number
        entry.last = checkpoint
        if checkpoint.number >= known:
            return checkpoint, False
        self._host.stats.states_lost += 1
        nothing = checkpoint.number == 0 and checkpoint.log is None
        recalled = nothing and last is not None and last.number == known
        follows = (
            "the stream goes on from its owner's memory; earlier results are lost"
            if recalled
            else "the stream begins from the start; what was committed before is unknown"
            if nothing
            else "the stream goes on from the older checkpoint"
        )
        self._host.log.error(
            "commits lost by the state store",
            key=entry.key,
            commits_known=known,
            commits_found=checkpoint.number,
            follows=follows,
        )
        if recalled:
            assert last is not None
            checkpoint = msgspec.structs.replace(
                last, epoch=checkpoint.epoch, member=checkpoint.member, number=0, started=None, suspects=()
            )
            entry.last = checkpoint
        return checkpoint, recalled

    # -- the claim --------------------------------------------------------------------------------------

    async def check_claim(self, entry: OwnedStream, generation: int, _: CheckClaim) -> None:
        """Look the claim up, after a growing pause."""
        entry.reopened += 1
        if entry.reopened > 1:
            retry = self._host.limits.retry
            await self.clock.sleep(retry.delay_s(entry.reopened, self.clock.random()))
        try:
            claim = await self._owners.retry(entry, generation, lambda: self._standing_claim(entry))
        except Fenced:
            return
        ours = claim is not None and claim.member == self._host.membership.id
        if claim is not None and ours:
            entry.claim = claim
        self._owners.answer(entry, generation, lambda now: entry.owner.claim_checked(ours, now))

    async def _standing_claim(self, entry: OwnedStream) -> Claim | None:
        """Return the claim on a key; None if our membership may have ended in the coordinator's silence."""
        try:
            return await self._coordinator.lookup(entry.key)
        except (Unavailable, OutcomeUnknown):
            if self._host.membership.alive:
                raise
        await self._see_who_opened(entry)
        return None

    async def _see_who_opened(self, entry: OwnedStream) -> None:
        """Check which member opened the stream last, while the coordinator is silent. If another node did,
        the coordinator answers that node, so only this node is cut off. An operator needs no coordinator."""
        try:
            standing = await self._state.peek(entry.key)
        except HoldfastError as error:
            self._host.log.debug("cannot read the last opening", key=entry.key, error=str(error))
            return
        if standing is None or not 0 < entry.owner.epoch < standing.epoch:
            return
        if standing.member not in ("", MEMBER, self._host.membership.id):
            self._host.membership.cut_off()

    async def reclaim(self, entry: OwnedStream, generation: int, command: Reclaim) -> None:
        """Claim the key again after a lost membership, if this opening is still current at the store."""
        await self._host.membership.joined.wait()
        try:
            ours = await self._owners.retry(
                entry, generation, lambda: self._claim_again(entry, command.epoch)
            )
        except (Fenced, MembershipLost):
            ours = False
        self._owners.answer(entry, generation, lambda now: entry.owner.claim_checked(ours, now))

    async def _claim_again(self, entry: OwnedStream, epoch: int | None) -> bool:
        if not await self._epoch_stands(entry, epoch):
            return False
        claim = await self._coordinator.claim(entry.key, self._host.membership.id)
        ours = claim.member == self._host.membership.id
        if ours:
            entry.claim = claim
        return ours

    async def _epoch_stands(self, entry: OwnedStream, epoch: int | None) -> bool:
        if epoch is None:
            return True
        checkpoint = await self._state.peek(entry.key)
        return checkpoint is not None and checkpoint.epoch == epoch
