"""The versions of the protocol between nodes: which of them two processes use."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.protocol import RebalanceRequest, Reply, Request, StreamChanged, UnknownMember, WakeUp
from holdfast.common.protocol_versions import (
    OUR_VERSIONS,
    VERSIONS_OF_0_2,
    ProtocolVersions,
    no_common_version,
    parse_versions,
)

ranges = st.builds(
    lambda oldest, more: ProtocolVersions(oldest, oldest + more), st.integers(0, 10**6), st.integers(0, 9)
)


@given(ranges, ranges)
def test_two_processes_use_the_highest_version_that_both_speak(
    one: ProtocolVersions, other: ProtocolVersions
) -> None:
    shared = set(range(one.oldest, one.newest + 1)) & set(range(other.oldest, other.newest + 1))
    assert one.common(other) == other.common(one) == max(shared, default=None)


@given(ranges)
def test_a_range_survives_its_text_form(versions: ProtocolVersions) -> None:
    assert parse_versions(str(versions)) == versions
    assert parse_versions(str(versions.newest)) == ProtocolVersions(versions.newest, versions.newest)


@pytest.mark.parametrize(
    "text", [None, "", "one", "1-", "-1", "1-2-3", "1 ", "1.0", "1" * 20, "\N{SUPERSCRIPT ONE}"]
)
def test_a_text_without_a_range_is_refused(text: str | None) -> None:
    assert parse_versions(text) is None


def test_this_release_supports_a_version_of_0_2() -> None:
    assert OUR_VERSIONS.common(VERSIONS_OF_0_2) is not None


def test_the_error_for_no_common_version_says_what_to_do() -> None:
    text = no_common_version(ProtocolVersions(3, 4), ProtocolVersions(1, 2))
    assert "speaks peer protocol 3-4, this process 1-2" in text
    assert "holdfast doctor --upgrade" in text


@pytest.mark.parametrize(
    "message, tag",
    [
        (StreamChanged("m", "s", "s/k"), "Poke"),
        (WakeUp("m", "s", "s/k"), "Nudge"),
        (RebalanceRequest("m", "other", 1.0), "Shed"),
        (UnknownMember("m"), "Stranger"),
    ],
)
def test_a_renamed_message_keeps_its_tag_on_the_wire(message: Request | Reply, tag: str) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message))["type"] == tag
