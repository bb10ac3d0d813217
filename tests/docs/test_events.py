"""The page of log events lists every warning and error, and nothing else."""

from __future__ import annotations

import pytest

from docs import log_events

FOLDERS = sorted(
    {call.folder for call in log_events.logged()} | {each.stem for each in log_events.MEANINGS.iterdir()}
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_warning_and_error_has_a_meaning_and_a_remedy(folder: str) -> None:
    events = {call.event for call in log_events.logged() if call.folder == folder and call.event}
    known = log_events.meanings(folder)
    assert known.keys() == events, f"docs/events/{folder}.toml"
    for event, entry in known.items():
        assert entry.keys() == {"meaning", "remedy"}, event
        assert all(entry.values()), event


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_text_of_an_event_is_constant(folder: str) -> None:
    varying = [call.where for call in log_events.logged() if call.folder == folder and call.event is None]
    assert varying == [], "move the values into fields"
