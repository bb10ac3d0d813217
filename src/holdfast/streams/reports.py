"""Reports to other nodes on the deliveries that they forwarded to this node."""

from __future__ import annotations

from holdfast.cluster.host import Host
from holdfast.common.held import Receipt
from holdfast.common.protocol import SettleReport
from holdfast.errors import OutcomeUnknown, Unavailable

SETTLED_AFTER_S = 0.05
"""Seconds in which settled deliveries are gathered for one report. Only the end of the pending forwards waits
for it."""

Sender = tuple[str, str]
"""The address of a sender, and its membership."""


class Reports:
    """The reports of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._clock, self._tasks, self._log = host.clock, host.tasks, host.log
        self._settled: dict[Sender, list[int]] = {}

    async def report(self, receipts: list[Receipt], settled: bool) -> None:
        """Report deliveries to their senders. If a report of settled ones is lost, that only costs another
        offer. A report of returned ones is sent at once, and repeated until they show again by themselves,
        because only the sender extends them from now on."""
        for sender, numbers in _by_sender(receipts).items():
            if not settled:
                self._tasks.spawn(self._send(sender, returned=numbers, for_s=self._host.limits.visibility_s))
            elif sender in self._settled:
                self._settled[sender] += numbers
            else:
                self._settled[sender] = numbers
                self._tasks.spawn(self._send_soon(sender))

    async def flush(self) -> None:
        """Send all gathered reports, before the node ends."""
        for sender in list(self._settled):
            await self._send_settled(sender)

    async def _send_soon(self, sender: Sender) -> None:
        await self._clock.sleep(SETTLED_AFTER_S)
        await self._send_settled(sender)

    async def _send_settled(self, sender: Sender) -> None:
        if numbers := self._settled.pop(sender, []):
            await self._send(sender, settled=numbers)

    async def _send(
        self,
        sender: Sender,
        *,
        settled: list[int] | None = None,
        returned: list[int] | None = None,
        for_s: float = 0.0,
    ) -> None:
        reply_to, member = sender
        report = SettleReport(member, self._host.membership.id, settled or [], returned or [])
        until, failures = self._clock.monotonic() + for_s, 0
        while True:
            try:
                await self._host.peer.call(reply_to, report, self._host.limits.peer_timeout_s)
                return
            except (Unavailable, OutcomeUnknown) as error:
                self._log.debug("could not report", sender=member, error=str(error))
            if self._clock.monotonic() >= until:
                return
            failures += 1
            await self._clock.sleep(self._host.limits.retry.delay_s(failures, self._clock.random()))


def _by_sender(receipts: list[Receipt]) -> dict[Sender, list[int]]:
    senders: dict[Sender, list[int]] = {}
    for receipt in receipts:
        senders.setdefault((receipt.reply_to, receipt.sender), []).append(receipt.number)
    return senders
