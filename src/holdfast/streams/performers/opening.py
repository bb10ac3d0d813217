"""Reads and opens streams at the state store, and checks whose their claims are."""

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
    """Performs the commands by which an owner comes to hold its stream, and finds out whether it still
    does."""

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
        """Read the checkpoint."""
        entry.looks += 1
        try:
            checkpoint = await self._owners.retry(
                entry, generation, lambda: self._state.peek(entry.key), Retry.SAFE, Retry.SAME
            )
        except Fenced:
            return
        finally:
            entry.looks -= 1
        if entry.stands_since is None and entry.last is None and checkpoint is not None:
            entry.stands_since = self._left_at.get(checkpoint.member)
        self._owners.answer(entry, generation, lambda now: entry.owner.peeked(checkpoint, now))

    async def open(self, entry: OwnedStream, generation: int, command: Open) -> None:
        """Open the stream at the epoch that the command expects."""
        owner = entry.owner
        try:
            checkpoint = await self._owners.retry(
                entry,
                generation,
                lambda: self._state.open(entry.key, command.expect, self._host.membership.id),
                Retry.SAFE,
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
        """Return how many seconds ago the last message was committed, where that matters. The clock of the
        store is used, which dated the commit, because this host's clock may have been set. A recalled commit
        is dated by this node."""
        if entry.owner.rules.order.restart_after_s is None:
            return 0.0
        before_s = standing.log.quiet_s if standing.log is not None else 0.0
        if recalled and entry.committed_at is not None:
            return before_s + self.clock.monotonic() - entry.committed_at
        now = await self._owners.retry(
            entry, generation, lambda: self._state.now(entry.key), Retry.SAFE, Retry.SAME
        )
        return before_s + max(0.0, now - standing.at)

    def _recall(self, entry: OwnedStream, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
        """Return the checkpoint that an opening found, or the last one of this owner if the store has lost it
        (with True). If the store has nothing at all, nobody has committed since, so the stream goes on from
        this owner's last commit. If the store has an older checkpoint, another owner may have gone on from
        it, so it counts."""
        last = entry.last
        known = self._owners.commits_known.get(entry.key, 0) if last is None else last.number
        entry.last = checkpoint
        if checkpoint.number >= known:
            return checkpoint, False
        self._host.stats.states_lost += 1
        nothing = checkpoint.number == 0 and checkpoint.log is None
        recalled = nothing and last is not None and last.number == known
        follows = (
            "it goes on from what its owner knows; results of before are lost"
            if recalled
            else "it begins anew: frames that were committed before are not waited for or known"
            if nothing
            else "it goes on from the older checkpoint"
        )
        self._host.log.error(
            "the state store has lost commits of a stream",
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
        """Check whether the claim is still ours, after a growing pause."""
        entry.reopened += 1
        if entry.reopened > 1:
            retry = self._host.limits.retry
            await self.clock.sleep(retry.delay_s(entry.reopened, self.clock.random()))
        try:
            claim = await self._owners.retry(
                entry, generation, lambda: self._standing_claim(entry), Retry.SAFE, Retry.SAME
            )
        except Fenced:
            return
        ours = claim is not None and claim.member == self._host.membership.id
        if claim is not None and ours:
            entry.claim = claim
        self._owners.answer(entry, generation, lambda now: entry.owner.claim_checked(ours, now))

    async def _standing_claim(self, entry: OwnedStream) -> Claim | None:
        """Return the claim on a key; None if the coordinator has been silent for so long that our membership
        may have ended."""
        try:
            return await self._coordinator.lookup(entry.key)
        except (Unavailable, OutcomeUnknown):
            if self._host.membership.alive:
                raise
        await self._see_who_opened(entry)
        return None

    async def _see_who_opened(self, entry: OwnedStream) -> None:
        """Check who opened the stream last, while the coordinator is silent. If another node did, the
        coordinator must have answered that node, so only this node is cut off. An operator can open a stream
        without it."""
        try:
            standing = await self._state.peek(entry.key)
        except HoldfastError as error:
            self._host.log.debug("could not see who opened a stream", key=entry.key, error=str(error))
            return
        if standing is None or not 0 < entry.owner.epoch < standing.epoch:
            return
        if standing.member not in ("", MEMBER, self._host.membership.id):
            self._host.membership.cut_off()

    async def reclaim(self, entry: OwnedStream, generation: int, command: Reclaim) -> None:
        """Claim the key again after a lost membership, if the store shows that this opening is still
        current."""
        await self._host.membership.joined.wait()
        try:
            ours = await self._owners.retry(
                entry, generation, lambda: self._claim_again(entry, command.epoch), Retry.SAFE, Retry.SAME
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
