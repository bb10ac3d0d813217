"""From what was seen to the figures that the demo ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from examples.tracking.picture import CommittedResult, Kill, Picture, goes_on
from examples.tracking.reference import Results
from examples.tracking.score import identity_switches
from holdfast.vision.boxes import Box


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that ``--json`` prints. Times are None where no node was killed."""

    frames_in: int
    committed: int
    duplicates_dropped: int
    lost: int
    out_of_order: int
    moves: int
    failover_p50_ms: float | None
    failover_p99_ms: float | None
    identity_switches: int
    contact_sheet: str = ""


class DemoFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures, and how many frames have other tracks than in the undisturbed run."""

    figures: Figures
    differing: int

    @property
    def good(self) -> bool:
        """Whether nothing was lost or out of order, and the tracks equal the undisturbed run's."""
        figures = self.figures
        return not (figures.lost or figures.out_of_order or figures.identity_switches or self.differing)


def measure(picture: Picture, reference: Mapping[str, Results]) -> DemoFigures:
    """Compare what was committed with what was sent, and with the undisturbed run."""
    lost = disorder = switches = differing = 0
    for key, expected in reference.items():
        stream = picture.streams[key]
        found = {line.frame: line.result for line in stream.committed}
        lost += len(set(range(max(stream.sent, len(expected)))) - set(found))
        disorder += out_of_order([line.frame for line in stream.committed])
        differing += sum(found.get(frame) != result for frame, result in enumerate(expected))
        tracked = [found.get(frame) for frame in range(len(expected))]
        switches += identity_switches([_boxes(result) for result in expected], [_boxes(t) for t in tracked])
    gaps_ms = sorted(failovers_ms(picture))
    figures = Figures(
        frames_in=picture.sent,
        committed=picture.committed,
        duplicates_dropped=picture.duplicates,
        lost=lost,
        out_of_order=disorder,
        moves=picture.moves,
        failover_p50_ms=percentile(gaps_ms, 0.50),
        failover_p99_ms=percentile(gaps_ms, 0.99),
        identity_switches=switches,
    )
    return DemoFigures(figures=figures, differing=differing)


def out_of_order(frames: Sequence[int]) -> int:
    """Count the results that are not above all before them; a second result of a frame is one, too."""
    count, highest = 0, -1
    for frame in frames:
        count += frame <= highest
        highest = max(highest, frame)
    return count


def failovers_ms(picture: Picture) -> list[float]:
    """For each stream of the killed node, the time from the kill to its next commit."""
    kill = picture.kill
    if kill is None:
        return []
    firsts = [_next(picture.streams[key].committed, kill) for key in kill.keys]
    return [round(1000 * (line.at - kill.at), 1) for line in firsts if line is not None]


def _next(committed: Sequence[CommittedResult], kill: Kill) -> CommittedResult | None:
    return next((line for line in committed if goes_on(line, kill)), None)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of the ``ordered`` values don't exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _boxes(result: Mapping[str, Any] | None) -> dict[int, Box]:
    return {track["id"]: tuple(track["box"]) for track in result["tracks"]} if result else {}
