"""The phases of an owner, and which may follow which.

============  ===============================================================================
CLAIMED       the claim is ours; messages are held unjudged. Peek, open at that epoch: OPENING
OPENING       opened: OWNER, judge what was held. Refused or unknown, and the claim still ours:
              CLAIMED, else DROPPED
OWNER         deliveries are judged by the last answered checkpoint; the head runs, results
              are appended and committed; an accepted commit settles (dead letters, then
              deletes, then reports)
MOVING        nothing new is run; once all is answered: TRANSFERRING, or RELEASING if there is
              no node to take it
TRANSFERRING  the claim is handed over. Done: hand off what is held, DROPPED; target gone:
              OWNER; refused: DROPPED
RELEASING     idle, the claim is given up; what came meanwhile goes back to the router, DROPPED
DROPPED       over; everything held goes back to its senders
============  ===============================================================================
"""

from __future__ import annotations

import enum


class OwnerPhase(enum.Enum):
    """The phase of an owner; the table above says what happens in each."""

    CLAIMED = "claimed"
    OPENING = "opening"
    OWNER = "owner"
    MOVING = "moving"
    TRANSFERRING = "transferring"
    RELEASING = "releasing"
    DROPPED = "dropped"


NEXT_PHASES: dict[OwnerPhase, frozenset[OwnerPhase]] = {
    # A lost membership makes the owner claim the key again, before it has opened the stream.
    OwnerPhase.CLAIMED: frozenset({OwnerPhase.OPENING, OwnerPhase.CLAIMED, OwnerPhase.DROPPED}),
    OwnerPhase.OPENING: frozenset({OwnerPhase.OWNER, OwnerPhase.CLAIMED, OwnerPhase.DROPPED}),
    # From here on CLAIMED means that the store has shown another opening.
    OwnerPhase.OWNER: frozenset(
        {OwnerPhase.MOVING, OwnerPhase.RELEASING, OwnerPhase.CLAIMED, OwnerPhase.DROPPED}
    ),
    OwnerPhase.MOVING: frozenset(
        {OwnerPhase.TRANSFERRING, OwnerPhase.RELEASING, OwnerPhase.CLAIMED, OwnerPhase.DROPPED}
    ),
    OwnerPhase.TRANSFERRING: frozenset({OwnerPhase.OWNER, OwnerPhase.CLAIMED, OwnerPhase.DROPPED}),
    OwnerPhase.RELEASING: frozenset({OwnerPhase.CLAIMED, OwnerPhase.DROPPED}),
    OwnerPhase.DROPPED: frozenset(),
}
"""The phases that may follow each phase."""

OPENED = (OwnerPhase.OWNER, OwnerPhase.MOVING)
"""The phases in which deliveries are judged, and commits written."""
