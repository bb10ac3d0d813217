"""Archives on S3: what nodes write there, replays find again."""

import math

import pytest

from holdfast.common.held import Held, Receipt
from holdfast.common.message import CommitPlace, Place
from holdfast.errors import InvalidMessage
from holdfast.services.aws.objects import S3Objects
from holdfast.streams.archive import archived, lines_of, object_name
from holdfast.streams.archive_reader import ArchiveReader, Hours
from tests.services.aws.test_objects import bucket, objects, server  # noqa: F401 (fixtures, for pytest to find)

KEYS = ["cam-1", "cam 1/left+right%", "käse \N{SNOWMAN}", "..", "x" * 500]
AT = 1_800_000_000.0  # 2027-01-15T08


async def write(store: S3Objects, key: str, seqs: range, number: int) -> None:
    """Write messages as one object, as a node does."""
    commit = CommitPlace(3, number, AT + number)
    held = [Held(Place(0, n), b'{"n":%d}' % n, {}, [Receipt("r", math.inf)], covered_as="done") for n in seqs]
    name = object_name("s", key, commit, number, again=False)
    await store.put(name, lines_of(archived(key, each, commit, 0.0) for each in held))


def fail(error: InvalidMessage) -> None:
    raise error


@pytest.mark.slow
@pytest.mark.parametrize("hours", [Hours(), Hours("2027-01-15T07", "2027-01-15T09")])
async def test_what_is_written_is_read_by_key_in_order(objects: S3Objects, hours: Hours) -> None:  # noqa: F811
    for key in KEYS:
        for number in range(3):
            await write(objects, key, range(number * 4, number * 4 + 4), number)
    reader = ArchiveReader(objects, "s", hours, ordered=True, on_broken=fail)
    for key in KEYS:
        [urls] = (await reader.objects(key)).values()
        found = [message async for message in reader.messages(urls)]
        assert [message.content for message in found] == [b'{"n":%d}' % n for n in range(12)]
        assert {message.key for message in found} == {key}
    assert len(await reader.objects(None)) == len(KEYS)
    assert await reader.objects("cam") == {}
