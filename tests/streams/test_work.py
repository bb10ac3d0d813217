"""A whole node and bad input: what is wrong is said clearly and set aside, and everything else goes on."""

import asyncio
import gc
import io
import json
from typing import Any, ClassVar

import msgspec
import pytest
from PIL import Image

from holdfast import App, Context, StreamHandler
from holdfast.common.held import Held
from holdfast.common.message import SEQ_DIGITS
from holdfast.common.protocol import (
    Answers,
    Done,
    Forward,
    ForwardAnswer,
    ForwardedDelivery,
    Move,
    Probe,
    StreamChanged,
    Warm,
)
from holdfast.common.retry import Backoff
from holdfast.errors import HandlerFailed
from holdfast.rules.streams.ledger import COUNT_MAX
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.operations import resume
from holdfast.vision.handler import Frame, Tracking
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
GAP_TIMEOUT_S = 45.0
TIMEOUT_S = 3.0


LEAK = "redis://user:hunter2@host and aws_secret_access_key = hunter2"


class Item(msgspec.Struct):
    """A message that may say what its handler is to do."""

    key: str
    n: int
    do: str = ""


class Count(StreamHandler[Item]):
    """Counts, and misbehaves where told."""

    version: ClassVar[int] = 1
    hanging: ClassVar[bool] = True

    def open(self, context: Context, state: bytes | None) -> None:
        self.count = int(state or 0)

    async def process(self, message: Item, context: Context) -> Any:
        match message.do:
            case "raise":
                raise ValueError("told to fail")
            case "tell":
                raise ValueError(LEAK)
            case "exit":
                raise SystemExit("so long")
            case "junk":
                return object()
            case "hoard":
                raise MemoryError
            case "hang":
                await asyncio.Event().wait()
        self.count += 1
        return {"n": message.n, "count": self.count}

    def snapshot(self) -> bytes:
        return str(self.count).encode()


def app_of(handler: type[StreamHandler[Any]] = Count, message: Any = Item, **settings: Any) -> App:
    app = App("town")
    chosen: dict[str, Any] = {
        "seq": "n", "first_seq": 0, "gap_timeout_s": GAP_TIMEOUT_S, "max_tries": 2, "timeout_s": TIMEOUT_S,
        "backoff": Backoff(0.05, 0.1),
    } | settings  # fmt: skip
    app.stream("s", message=message, **chosen)(handler)
    return app


def good(*numbers: int, key: str = "k", **more: Any) -> list[dict[str, Any]]:
    return [{"key": key, "n": n, **more} for n in numbers]


# --- what is done


@pytest.mark.slow
async def test_a_node_keeps_no_message_that_is_done(town: Town) -> None:
    """Bodies are large: a loop that waits for the next message is not to hold the last one."""
    nodes = [await town.start(app_of(gap_timeout_s=100.0), name) for name in "ab"]
    check_s = nodes[0].host.limits.custody_check_s
    for n in (0, 2, 1):
        await town.send(*(good(n, key=f"kept-{key}")[0] for key in range(6)))
        await town.clock.sleep(check_s)
    await town.until_over()
    await town.clock.sleep(check_s)
    assert sum(node.host.stats.forwarded for node in nodes), "some were in custody"
    gc.collect()
    assert [each for each in gc.get_objects() if type(each) is Held and b"kept-" in each.body] == []


# --- what has no place


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"", "the body is not JSON that can be read"),
        (b'{"key": "k", "n": 1', "the body is not JSON that can be read"),
        (b"\xff\xfe\x00", "the body is not JSON that can be read"),
        (b'{"a":' * 1_900, "the body is not JSON that can be read"),
        (b'[{"key": "k", "n": 1}]', "the body must be a JSON object, not an array"),
        (b'"k"', "the body must be a JSON object"),
        (b"null", "the body must be a JSON object, not null"),
        (b'{"n": 1}', "field 'key' is missing; every message of 's' has it"),
        (b'{"key": null, "n": 1}', "field 'key' must be a text or an integer, not null"),
        (b'{"key": ["k"], "n": 1}', "field 'key' must be a text or an integer, not an array"),
        (b'{"key": 1.5, "n": 1}', "field 'key' must be a text or an integer, not a fraction"),
        (b'{"key": true, "n": 1}', "field 'key' must be a text or an integer, not a boolean"),
        (b'{"key": "", "n": 1}', "field 'key' must be a non-empty text"),
        (b'{"key": "a\\nb", "n": 1}', "field 'key' holds U+000A, which is not printable; leave it out"),
        (b'{"key": "a\\u0000b", "n": 1}', "field 'key' holds U+0000, which is not printable"),
        (b'{"key": "%s", "n": 1}' % (b"k" * 9_900), "field 'key' has 9900 bytes; a key has 512 at most"),
        (b'{"key": "k"}', "field 'n' is missing; every message of 's' has it"),
        (b'{"key": "k", "n": -1}', "field 'n' must not be negative"),
        (b'{"key": "k", "n": "one"}', "field 'n' must be an integer"),
        (b'{"key": "k", "n": 1.5}', "field 'n' must be a text or an integer, not a fraction"),
        (b'{"key": "k", "n": 1%s}' % (b"0" * SEQ_DIGITS), "field 'n' is over 39 digits"),
        (b'{"key": "k", "n": "%s"}' % (b"9" * 5_000), "field 'n' is over 39 digits"),
        (json.dumps({"key": "k", "n": 1, "more": "x" * 9_990}).encode(), "over max_message_bytes = 10000"),
    ],
)
async def test_what_has_no_place_is_set_aside_and_everything_else_goes_on(
    town: Town, body: bytes, reason: str
) -> None:
    node = await town.start(app_of())
    town.queue().max_bytes = 1 << 20  # whoever sent it had another limit
    await town.send(*good(0), body, *good(1))
    await town.until_over()
    (letter,) = town.letters()
    assert letter.reason.startswith("malformed: ")
    assert reason in letter.reason
    assert letter.body == body
    assert [result["n"] for result in town.results("k")] == [0, 1]
    assert node.host.stats.malformed == 1
    assert [kind for kind in ("buried", "deleted") for event in town.events(kind) if event.body == body] == [
        "buried",
        "deleted",
    ]


async def test_keys_may_hold_slashes_and_any_printable_text(town: Town) -> None:
    await town.start(app_of())
    keys = ["a/b", "/", "a//b/", "käse \N{SNOWMAN}", "..", "%2F", "a" * 512]
    for key in keys:
        await town.send(*good(0, 1, key=key))
    await town.send(b'{"key": 17, "n": 0}', b'{"key": 17, "n": 1}')
    await town.until_over()
    assert town.letters()[0].reason.count("got `int`") == 1, "17 is a key, though no `str` for the handler"
    for key in keys:
        assert [result["n"] for result in town.results(key)] == [0, 1]


async def test_a_seq_far_away_is_a_gap_like_any_other_where_no_limit_is_set(town: Town) -> None:
    """It is waited for and skipped in one step, however long it is."""
    await town.start(app_of(max_jump=None))
    far = 10 ** (SEQ_DIGITS - 1)
    await town.send(*good(0), *good(far))
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, far]
    checkpoint = town.state.standing["s/k"]
    assert checkpoint.log is not None
    assert [(span.first, span.last) for span in checkpoint.log.skips] == [(1, far - 1)]
    assert checkpoint.skipped == COUNT_MAX
    await town.send(*good(far + 1), *good(1))
    await town.until_over()
    assert [letter.reason for letter in town.letters()] == ["skipped before"]
    assert len(town.results("k")) == 3


async def test_a_message_that_was_skipped_and_redriven_still_tells_why(town: Town) -> None:
    await town.start(app_of())
    await town.send(*good(0), *good(1, do="raise"), *good(2))
    await town.until_over()
    (first,) = town.letters()
    assert await town.queue().redrive([first.id]) == 1
    await town.until(town.letters)
    (again,) = town.letters()
    assert again.reason == f"skipped before: {first.reason}"


async def test_a_seq_far_away_is_set_aside_and_the_stream_goes_on(town: Town) -> None:
    await town.start(app_of())
    await town.send(*good(0), *good(10 ** (SEQ_DIGITS - 1)), *good(1))
    await town.until_over()
    assert [result["n"] for result in town.results("k")] == [0, 1]
    (letter,) = town.letters()
    assert "is more than 1000000 (max_jump) beyond" in letter.reason
    checkpoint = town.state.standing["s/k"]
    assert checkpoint.skipped == 0


# --- what its handler can't take


async def test_no_secret_in_an_error_is_kept(town: Town) -> None:
    await town.start(app_of(max_tries=1))
    await town.send(*good(0), *good(1, do="tell"), *good(2))
    await town.until_over()
    (letter,) = town.letters()
    assert letter.reason == "ValueError: redis://user:***@host and aws_secret_access_key = ***"
    assert "hunter2" not in repr((letter, town.state.standing))


async def test_nor_in_the_last_words_of_a_slot(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: Any, **watched: Any) -> Any:
        raise HandlerFailed(LEAK, detail=LEAK)

    monkeypatch.setattr(MemorySlot, "open", die)
    await town.start(app_of(max_tries=1))
    await town.send(*good(0))
    await town.until_over()
    (letter,) = town.letters()
    assert "redis://user:***@host" in letter.reason
    assert "hunter2" not in repr((letter, town.state.standing))


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"do": 5}, "the message isn't of type Item: Expected `str`, got `int` - at `$.do`"),
        ({"do": None}, "the message isn't of type Item: Expected `str`, got `null` - at `$.do`"),
    ],
)
async def test_a_message_that_is_not_of_its_type_is_tried_once(
    town: Town, fields: dict[str, Any], reason: str
) -> None:
    await town.start(app_of(max_tries=50))
    await town.send(*good(0), *good(1, **fields), *good(2))
    await town.until_over()
    (letter,) = town.letters()
    assert letter.reason == reason
    assert (letter.stream, letter.key, int(letter.seq)) == ("s", "k", 1)
    assert town.results("k") == [{"n": 0, "count": 1}, {"n": 2, "count": 2}]


@pytest.mark.parametrize(
    "deed, reason",
    [
        ("raise", "ValueError: told to fail"),
        ("exit", "SystemExit: so long"),
        ("junk", "the result, of type object, can't be stored as JSON"),
        ("hoard", "MemoryError"),
        ("hang", f"was killed: no progress for {TIMEOUT_S:g} s (timeout_s)"),
    ],
)
async def test_a_handler_that_fails_is_tried_again_and_then_passed_over(
    town: Town, deed: str, reason: str
) -> None:
    node = await town.start(app_of())
    await town.send(*good(0), *good(1, do=deed), *good(2), *good(0, key="other"))
    await town.until_over()
    (letter,) = town.letters()
    assert reason in letter.reason
    assert (letter.key, int(letter.seq)) == ("k", 1)
    assert letter.detail
    assert town.results("k") == [{"n": 0, "count": 1}, {"n": 2, "count": 2}]
    assert town.results("other") == [{"n": 0, "count": 1}]
    assert node.host.stats.set_aside == 1


async def test_a_slot_that_dies_of_a_message_is_tried_again_and_then_passed_over(town: Town) -> None:
    async def die(slot: MemorySlot) -> None:
        slot.die("exited with code 3")

    town.deeds[json.dumps(good(1)[0]).encode()] = die
    await town.start(app_of())
    await town.send(*good(0, 1, 2))
    await town.until_over()
    (letter,) = town.letters()
    assert "exited with code 3" in letter.reason
    assert [result["n"] for result in town.results("k")] == [0, 2]


async def test_a_stream_may_be_parked_instead(town: Town) -> None:
    await town.start(app_of(on_failure="park"))
    await town.send(*good(0), *good(1, do="raise"), *good(2))
    await town.until(lambda: town.state.standing.get("s/k") and town.state.standing["s/k"].parked)
    assert "ValueError: told to fail" in town.state.standing["s/k"].parked
    assert town.letters() == []
    assert len(town.queue().messages) == 2, "both wait"


# --- what its state can't be


class Newer(Count):
    """What a later version of the app wrote."""

    version = 2


async def test_state_of_a_newer_version_parks_the_stream_until_it_is_resumed(town: Town) -> None:
    newer = await town.start(app_of(Newer), "newer")
    await town.send(*good(0, 1), *good(0, key="other"))
    await town.until_over()
    await newer.node.stop()
    town.nodes.remove(newer)
    older = await town.start(app_of(), "older")
    await town.send(*good(2, 3))
    await town.until(lambda: town.state.standing["s/k"].parked)
    reason = town.state.standing["s/k"].parked
    assert (
        "state of s/k has version 2, newer than version 1 of Count; deploy the handler that wrote it"
        in reason
    )
    assert "state rejected by the handler; stream parked" in older.log.events("error")
    assert town.letters() == []
    assert len(town.queue().messages) == 2
    await older.node.stop()
    town.nodes.remove(older)
    again = await town.start(app_of(Newer), "newer again")
    await resume(town.state, town.queue(), "s/k")
    again.work.owners.poke("s/k")
    await town.until_over()
    assert town.results("k") == [{"n": n, "count": n + 1} for n in range(4)]
    assert town.letters() == []


async def test_what_is_too_much_for_a_parked_stream_waits_in_the_queue(town: Town) -> None:
    await town.start(app_of(on_failure="park", inbox_limit=4))
    await town.send(*good(0, do="raise"), *good(*range(1, 12)))
    await town.until(lambda: town.nodes[0].host.stats.put_back == 8)
    assert town.letters() == []
    Count.process = _tolerant  # type: ignore[method-assign]
    try:
        await resume(town.state, town.queue(), "s/k")
        town.nodes[0].work.owners.poke("s/k")
        await town.until_over()
    finally:
        Count.process = _strict  # type: ignore[method-assign]
    assert [result["n"] for result in town.results("k")] == list(range(12))
    assert town.letters() == []


async def test_what_is_too_much_for_a_parked_stream_comes_back_in_order(town: Town) -> None:
    town.queue().by_key = False
    await town.start(app_of(on_failure="park", inbox_limit=4))
    await town.send(*good(0, do="raise"), *good(*range(1, 12)))
    await town.until(lambda: len(town.letters()) == 8)
    assert {letter.reason.partition(":")[0] for letter in town.letters()} == {"parked"}
    Count.process = _tolerant  # type: ignore[method-assign]
    try:
        _, sent = await resume(town.state, town.queue(), "s/k")
        assert sent == 8
        town.nodes[0].work.owners.poke("s/k")
        await town.until_over()
    finally:
        Count.process = _strict  # type: ignore[method-assign]
    assert [result["n"] for result in town.results("k")] == list(range(12))
    assert town.letters() == []


_strict = Count.process


async def _tolerant(self: Count, message: Item, context: Context) -> Any:
    return await _strict(self, msgspec.structs.replace(message, do=""), context)


# --- frames


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), "gray").save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize(
    "stored, reason",
    [
        (None, "frame 1 of cam is not in the object store; put it there again"),
        (jpeg()[:300], "frame memory:///1 is not a whole JPEG or PNG image"),
        (b"no image at all", "frame memory:///1 is not a whole JPEG or PNG image"),
        (b"", "frame memory:///1 is not a whole JPEG or PNG image (0 bytes"),
    ],
)
async def test_a_frame_that_can_t_be_used_is_set_aside(town: Town, stored: bytes | None, reason: str) -> None:
    await town.start(app_of(Tracking, Frame, key="video", seq="frame", run="run"))
    for n in range(3):
        data = jpeg() if n != 1 else stored
        if data is not None:
            await town.objects.put(str(n), data)
        await town.send(
            {"video": "cam", "run": 0, "frame": n, "timestamp_ms": 40 * n, "url": f"memory:///{n}"}
        )
    await town.until_over()
    (letter,) = town.letters()
    assert reason in letter.reason
    assert (letter.key, int(letter.seq)) == ("cam", 1)
    assert [result["frame"] for result in town.results("cam")] == [0, 2]


# --- what is for nobody here


async def test_a_queue_that_no_app_declares_is_left_alone(town: Town) -> None:
    await town.start(app_of())
    await town.send(*good(0), stream="nobody's")
    await town.send(*good(0))
    await town.until_over()
    await town.clock.sleep(60)
    assert [event.kind for event in town.queue("nobody's").log] == ["sent"]


def forwarded(key: str = "nobody's/k", stream: str = "nobody's", number: int = 1) -> ForwardedDelivery:
    return ForwardedDelivery(number, stream, key, 0, 0, "", "r", b"{}", {}, 30.0, 1)


async def test_a_parcel_for_a_stream_that_is_not_declared_here_is_not_accepted(town: Town) -> None:
    node = await town.start(app_of())
    await town.coordinator.claim("nobody's/k", node.id)  # a router that knew no better
    reply = await node.host.inquiries.answer(Forward(node.id, "other", "sim://other", [forwarded()]))
    assert reply == Answers([ForwardAnswer(1, "no")])
    assert not node.owns("nobody's/k")
    assert (
        await node.work.assignment.warm("nobody's", "nobody's/k") == 'stream "nobody\'s" is not declared here'
    )
    await town.send(*good(0))
    await town.until_over()


async def test_a_parcel_for_a_key_of_another_is_not_accepted(town: Town) -> None:
    node = await town.start(app_of())
    reply = await node.host.inquiries.answer(
        Forward(node.id, "other", "sim://other", [forwarded("s/k", "s")])
    )
    assert reply == Answers([ForwardAnswer(1, "no")])
    assert not node.owns("s/k")


async def test_what_can_t_be_moved_says_why(town: Town) -> None:
    a = await town.start(app_of(), "a")
    reply = await a.host.inquiries.answer(Move(a.id, "s", "s/k", "nobody"))
    assert isinstance(reply, Done)
    assert not reply.ok
    assert "s/k is not owned here" in reply.text
    assert await a.host.inquiries.answer(StreamChanged(a.id, "s", "s/unknown")) == Done()
    assert await a.host.inquiries.answer(Probe(a.id)) == Done(ok=False, text="this node answers no Probe"), (
        "the node's own business"
    )
    a.host.draining = True
    reply = await a.host.inquiries.answer(Warm(a.id, "s", "s/k"))
    assert reply == Done(ok=False, text="this node is draining")
    a.host.draining = False


# --- all at once


async def test_bad_messages_among_good_ones_cost_nothing_else(town: Town) -> None:
    for name in ("a", "b"):
        await town.start(app_of(), name, LIMITS)
    deeds = ["raise", "exit", "junk", "hoard", "hang", 5, None]
    keys = [f"k{i}" for i in range(6)]
    bad: set[tuple[str, int]] = set()
    for n in range(40):
        for i, key in enumerate(keys):
            if (n + i) % 10 == 3:
                bad.add((key, n))
                await town.send(*good(n, key=key, do=deeds[(n + i) // 10 % len(deeds)]))
            else:
                await town.send(*good(n, key=key))
        await town.send(b"{" * (n + 1))
    await town.until_over()
    placed = {(letter.key, int(letter.seq)) for letter in town.letters() if letter.key}
    assert placed == bad
    assert sum(not letter.key for letter in town.letters()) == 40
    for key in keys:
        expected = [n for n in range(40) if (key, n) not in bad]
        assert [result["n"] for result in town.results(key)] == expected
        assert [result["count"] for result in town.results(key)] == list(range(1, len(expected) + 1))


@pytest.mark.slow
async def test_a_node_whose_clock_is_ahead_drops_nothing_that_is_fresh(town: Town) -> None:
    keep_s = 3600.0
    limits = msgspec.structs.replace(LIMITS, results_keep_s=keep_s, idle_keep_s=keep_s, dead_keep_s=keep_s)
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0)(lambda message, context: {"n": message.n})
    node = await town.start(app, limits=limits)
    await town.send({"key": "k", "n": 0}, b"no message")
    await town.until_over()
    node.clock.set_by_s = 24 * keep_s
    await node.work.maintain()
    assert len(town.state.logged) == len(town.letters()) == 1
    assert town.state.standing["s/k"].log is not None
    await town.clock.sleep(keep_s + 1.0)
    await node.work.maintain()
    assert not town.state.logged
    assert not town.letters()
    assert town.state.standing["s/k"].log is None


NAMESAKE = "another living node has this name"


def namesake(town: Town, app: App) -> TownNode:
    """A node at an address of its own that is called as the first one."""
    node = TownNode(town, "second", app, LIMITS, called="a")
    town.nodes.append(node)
    return node


async def test_a_node_that_is_called_as_another_one_that_lives_says_so(town: Town) -> None:
    app = App("town")
    first = await town.start(app, "a")
    second = namesake(town, app)
    await second.node.start()
    await town.clock.sleep(1.0)
    [told] = [fields for _, event, fields in second.log.entries if event == NAMESAKE]
    assert told.pop("fix")
    assert told == {"name": "a", "member": first.id, "address": "sim://a"}
    assert first.id != second.id
    assert len(await town.coordinator.members()) == 2


async def test_a_node_that_is_called_as_its_killed_predecessor_says_nothing(town: Town) -> None:
    app = App("town")
    await town.crash(await town.start(app, "a"))
    second = namesake(town, app)
    await second.node.start()
    assert len(await town.coordinator.members()) == 2, "the first one's membership has not lapsed yet"
    await town.clock.sleep(3.0)
    assert NAMESAKE not in second.log.events("warning")


async def test_messages_that_wait_behind_a_gap_at_another_node_do_not_stop_the_pump(town: Town) -> None:
    limits = msgspec.structs.replace(LIMITS, max_held=4)
    node, owner = await town.start(app_of(), "node", limits), await town.start(app_of(), "owner", limits)
    await town.until(lambda: len(node.host.membership.view) == len(owner.host.membership.view) == 2)
    owner.work.pumps["s"].stopping = True
    town.queue("s").wake()
    await town.send(*good(0))
    await town.until_over()
    if not owner.owns("s/k"):
        assert await node.work.moves.move("s/k", owner.id) == ""
        await town.until(lambda: not node.owns("s/k"))
    await town.send(*good(2, 3, 4, 5, 6))  # one more than it may hold
    await town.until(lambda: len(node.work.router.forwards) == 5, GAP_TIMEOUT_S / 2)
    await town.send(*good(1))
    await town.until_over()
    assert town.letters() == []
