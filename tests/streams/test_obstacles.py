"""A model that doesn't load is the node's fault: no message pays for it, and its streams go on elsewhere, or
here once it loads."""

import asyncio
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest

from holdfast import App, Context, StreamHandler
from holdfast.common.message import Place
from holdfast.errors import Unavailable
from holdfast.services.memory.slots import MemorySlot
from holdfast.streams.obstacles import AGAIN, PAUSE_PER_LOAD
from holdfast.streams.worker import StreamWorker
from tests.streams.town import LIMITS, Town, TownNode

VIRTUAL = True
KEY = "s/k"


class Item(msgspec.Struct):
    """A message."""

    key: str
    n: int


class Disk:
    """Where a node's models lie: their files are there or not."""

    def __init__(self, *files: str) -> None:
        self.files = {*files}
        self.loads = 0

    def load(self, name: str) -> str:
        self.loads += 1
        if name not in self.files:
            raise FileNotFoundError(f"no file {name}.onnx")
        return name


class Weighing(StreamHandler[Item]):
    """Uses the model that its stream names."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.weights = context.model("weights")

    def process(self, message: Item, context: Context) -> Any:
        return {"n": message.n, "with": self.weights}


class Late(StreamHandler[Item]):
    """Asks for a model with a message in hand, and hides what came of it."""

    def process(self, message: Item, context: Context) -> Any:
        try:
            return {"n": message.n, "with": context.model("weights" if message.n else (lambda: "built"))}
        except Exception as error:
            raise ValueError("something went wrong") from error


def app_on(disk: Disk, handler: type[StreamHandler[Item]] = Weighing, **settings: Any) -> App:
    app = App("town")
    app.model("weights", functools.partial(disk.load, "weights"))
    usual = {"models": "weights"} if handler is Weighing else {}
    app.stream("s", message=Item, seq="n", first_seq=0, **usual | settings)(handler)
    app.stream("other", message=Item, seq="n", first_seq=0)(lambda message, context: {"n": message.n})
    return app


def numbers(*ns: int, key: str = "k") -> list[dict[str, Any]]:
    return [{"key": key, "n": n} for n in ns]


def results(town: Town, stream: str = "s") -> list[int]:
    return [result["n"] for result in town.results("k", stream)]


async def obstructed(town: Town, node: TownNode) -> None:
    """Until the node knows that it can't run the stream."""
    await town.until(lambda: node.work.load().lacks == ("s",))


@pytest.mark.slow
@pytest.mark.parametrize("handler", [Weighing, Late])
async def test_no_message_is_charged_and_all_goes_on_once_the_file_is_mended(
    town: Town, handler: type[StreamHandler[Item]]
) -> None:
    disk = Disk()
    node = await town.start(app_on(disk, handler, max_tries=1, max_starts=1))
    await town.send(*numbers(0, 1, 2))
    await obstructed(town, node)
    await town.clock.sleep(20 * AGAIN.max_s)
    assert results(town) == ([] if handler is Weighing else [0])
    assert disk.loads < 40, "it isn't tried in a hot loop"
    entry = node.work.owners.get(KEY)
    assert entry is not None
    assert "no file weights.onnx" in entry.owner.runs.obstacle
    disk.files.add("weights")
    await town.until_over()
    assert results(town) == [0, 1, 2]
    assert town.letters() == []
    assert node.work.load().lacks == ()
    assert [event for event in node.log.events("error") + node.log.events("info") if "load" in event] == [
        "cannot load model",
        "model loaded again",
    ]


async def test_no_message_is_begun_before_its_models_are_loaded(town: Town) -> None:
    node = await town.start(app_on(Disk()))
    await town.send(*numbers(0))
    await obstructed(town, node)
    assert node.state.called("start") == [], "a node that a load takes with it is no message's doing"


async def test_the_stream_goes_to_a_node_that_can_and_new_ones_are_placed_there(town: Town) -> None:
    a = await town.start(app_on(Disk()), "a")
    await town.send(*numbers(0))
    await obstructed(town, a)
    assert a.owns(KEY)
    b = await town.start(app_on(Disk("weights")), "b")
    await town.until_over()
    assert results(town) == [0]
    assert b.owns(KEY)
    assert not a.owns(KEY)
    await town.until(lambda: b.host.membership.view[a.id].load.lacks == ("s",))
    await town.send(*(message for number in range(12) for message in numbers(0, key=f"k{number}")))
    await town.until_over()
    assert {entry.key for entry in a.work.owners if entry.spec.name == "s"} == set()
    assert len(b.work.owners) == 13
    assert town.letters() == []


async def test_a_node_that_can_t_warm_a_stream_says_so_too(town: Town) -> None:
    a = await town.start(app_on(Disk("weights"), idle_timeout_s=1000.0), "a")
    await town.send(*numbers(0))
    await town.until_over()
    b = await town.start(app_on(Disk()), "b")
    await town.until(lambda: b.id in a.host.membership.view)
    assert "no file weights.onnx" in await a.work.moves.move(KEY, b.id)
    assert b.work.load().lacks == ("s",)
    assert a.owns(KEY)
    await town.send(*numbers(1))
    await town.until_over()
    assert results(town) == [0, 1]


async def test_a_load_that_takes_its_slot_along_is_no_message_s_fault(town: Town) -> None:
    disk = Disk("weights")
    deaths = 0

    def die_first(slot: MemorySlot) -> Callable[[], str]:
        def load() -> str:
            nonlocal deaths
            deaths += 1
            if deaths < 6:
                slot.die("was killed by signal 9 (SIGKILL)")
            return disk.load("weights")

        return load

    app = app_on(disk, max_tries=1, max_starts=1)
    node = TownNode(town, "a", app, LIMITS)
    town.nodes.append(node)

    def hurt(slot: Any) -> StreamWorker:
        models = {"weights": msgspec.structs.replace(app.models["weights"], load=die_first(slot))}
        return StreamWorker(app.streams, town.objects, slot, models=models)

    node.slots.make = hurt
    await node.node.start()
    await town.send(*numbers(0, 1))
    await town.until_over()
    assert deaths >= 6
    assert town.letters() == []
    assert results(town) == [0, 1]


async def test_a_later_reason_hides_its_secrets_as_the_first_did(town: Town) -> None:
    tries: list[int] = []

    def load() -> str:
        tries.append(0)
        raise ConnectionError(f"try {len(tries)}: no answer from https://me:hunter2@models.example/weights")

    app = App("town")
    app.model("weights", load)
    app.stream("s", message=Item, seq="n", first_seq=0, models="weights")(Weighing)
    node = await town.start(app)

    def told(text: str) -> bool:
        return text in node.work.obstacles.of("s")

    await town.send(*numbers(0))
    for try_ in ("try 1:", "try 3:"):
        await town.until(functools.partial(told, try_))
        assert "models.example" in node.work.obstacles.of("s")
        assert "hunter2" not in node.work.obstacles.of("s")


@pytest.mark.slow
async def test_a_model_that_was_loaded_to_see_if_it_does_makes_room_once_no_stream_uses_it(
    town: Town,
) -> None:
    disk = Disk("spare")
    app = App("town")
    app.model("weights", functools.partial(disk.load, "weights"), memory_mb=100)
    app.model("spare", functools.partial(disk.load, "spare"), memory_mb=100)
    app.stream("s", message=Item, seq="n", first_seq=0, models="weights", idle_timeout_s=5.0)(Weighing)
    app.stream("other", message=Item, seq="n", first_seq=0, models="spare")(
        lambda message, context: {"n": message.n}
    )
    node = TownNode(town, "a", app, msgspec.structs.replace(LIMITS, slots=1))
    town.nodes.append(node)
    node.slots.make = lambda slot: StreamWorker(
        app.streams, town.objects, slot, models=app.models, model_memory_mb=100
    )
    await node.node.start()
    await town.send(*numbers(0))
    await obstructed(town, node)
    disk.files.add("weights")
    await town.until_over()
    await town.until(lambda: not node.owns(KEY))
    await town.send(*numbers(0), stream="other")
    await town.until_over("other")
    assert {name for slot in node.slots.slots for name in slot.models} == {"spare"}


async def test_nothing_is_received_that_no_node_can_run_and_other_streams_go_on(town: Town) -> None:
    disk = Disk()
    node = await town.start(app_on(disk))
    await town.send(*numbers(0))
    await obstructed(town, node)
    await town.clock.sleep(10.0)  # a receive that was under way ends
    received = len(town.events("received"))
    await town.send(*(message for number in range(50) for message in numbers(0, key=f"k{number}")))
    await town.send(*numbers(0, 1), stream="other")
    await town.until_over("other")
    await town.clock.sleep(10.0)
    assert len(town.events("received")) == received
    assert results(town, "other") == [0, 1]
    disk.files.add("weights")
    await town.until_over()
    assert town.letters() == []


async def test_a_client_is_told_at_once_what_is_missing(town: Town) -> None:
    disk = Disk()
    node = await town.start(app_on(disk))
    await town.send(*numbers(0))
    await obstructed(town, node)
    for key in (KEY, "s/new"):
        before = town.clock.monotonic()
        with pytest.raises(Unavailable, match="does not load on this node") as refusal:
            await node.work.requests.process("s", key, Place(0, 1), b'{"key":"k","n":1}', {}, 60.0)
        assert town.clock.monotonic() - before < 1.0
        assert "weights.onnx" not in str(refusal.value), "where its files are is no client's business"
    assert not node.owns("s/new")


async def test_what_a_function_with_arguments_builds_is_the_message_s_own_affair(town: Town) -> None:
    def named(message: Item, context: Context) -> Any:
        return {"n": message.n, "with": context.model(functools.partial(disk.load, f"for-{message.n}"))}

    disk = Disk("for-1")
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, max_tries=1)(named)
    await town.start(app)
    await town.send(*numbers(0, 1))
    await town.until_over()
    assert results(town) == [1]
    (letter,) = town.letters()
    assert "no file for-0.onnx" in letter.reason


class Building(StreamHandler[Item]):
    """Uses a model that the app doesn't declare."""

    files: ClassVar[set[str]] = set()
    tried_at: ClassVar[list[float]] = []

    def process(self, message: Item, context: Context) -> Any:
        return {"n": message.n, "with": context.model(build)}


def build() -> str:
    Building.tried_at.append(asyncio.get_running_loop().time())
    if not Building.files:
        raise FileNotFoundError("no file built.onnx")
    return "built"


async def test_a_model_that_is_not_declared_is_tried_ever_more_rarely_too(town: Town) -> None:
    """Whether it loads only a message shows, and each that does begins a stream anew."""
    Building.files.clear()
    Building.tried_at.clear()
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, max_tries=1)(Building)
    node = await town.start(app)
    await town.send(*numbers(0))
    await town.clock.sleep(20 * AGAIN.max_s)
    assert 20 <= len(Building.tried_at) < 50
    assert town.letters() == []
    assert node.log.events("error").count("cannot load what the next message needs") == 1
    Building.files.add("built")
    await town.until_over()
    assert results(town) == [0]
    Building.files.clear()
    Building.tried_at.clear()
    for slot in list(node.slots.slots):
        slot.die("was killed")
    await town.send(*numbers(1))
    await town.clock.sleep(5.0)
    assert len(Building.tried_at) > 2, "what was handled since begins the pauses anew"
    Building.files.add("built")
    await town.until_over()


def build_for_k(message: Item, context: Context) -> Any:
    """Only one stream uses a model that the app doesn't declare."""
    return {"n": message.n, "with": context.model(build) if message.key == "k" else ""}


async def test_a_model_that_is_not_declared_keeps_back_only_the_stream_that_asked_for_it(town: Town) -> None:
    """Whether another node could load it, and for which other streams it is needed, nobody knows."""
    Building.files.clear()
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, max_tries=1)(build_for_k)
    nodes = [await town.start(app, name) for name in "ab"]
    await town.send(*numbers(0))
    told = set()
    for _ in range(100):
        await town.clock.sleep(0.3)
        told |= {node.work.load().lacks for node in nodes}
    assert told == {()}
    assert sum(node.host.stats.moved_out for node in nodes) == 0
    [owner] = [node for node in nodes if node.owns(KEY)]
    with pytest.raises(Unavailable, match="does not load on this node"):
        await owner.work.requests.process("s", KEY, Place(0, 1), b'{"key":"k","n":1}', {}, 60.0)
    await owner.work.requests.process("s", "s/new", Place(0, 0), b'{"key":"new","n":0}', {}, 5.0)
    await town.send(*(message for number in range(12) for message in numbers(0, key=f"k{number}")))
    await town.until(lambda: len(town.queue().messages) == 1)
    assert len(town.state.logged) == 13
    Building.files.add("built")
    await town.until_over()
    assert town.letters() == []


@pytest.mark.slow
async def test_a_hung_load_of_a_model_that_is_not_declared_leaves_its_slot_to_others_too(town: Town) -> None:
    Building.files.clear()
    Building.tried_at.clear()
    app = App("town")
    app.stream("s", message=Item, seq="n", first_seq=0, max_tries=1)(Building)
    load_s, streams, span_s = 20.0, 3, 3000.0
    messages = [message for number in range(streams) for message in numbers(0, key=f"k{number}")]

    async def hang(slot: MemorySlot) -> None:
        await town.clock.sleep(load_s)

    town.deeds |= {json.dumps(message).encode(): hang for message in messages}
    await town.start(app, limits=msgspec.structs.replace(LIMITS, slots=1))
    await town.send(*messages)
    await town.clock.sleep(span_s)
    assert streams < len(Building.tried_at) <= streams + span_s / (PAUSE_PER_LOAD * load_s)


@pytest.mark.slow
async def test_a_load_that_does_not_end_leaves_its_slot_to_others_most_of_the_time(town: Town) -> None:
    """From the first one on, and however many streams wait for the model."""
    limits = msgspec.structs.replace(LIMITS, slots=1, model_timeout_s=60.0)
    node = await town.start(app_on(Disk()), limits=limits)
    load_s, tried_at = 20.0, []

    def slow(slot: MemorySlot) -> None:
        load = slot.worker.load

        async def load_slowly(stream: str, key: str, models: Any) -> None:
            tried_at.append(town.clock.monotonic())
            await town.clock.sleep(load_s)
            await load(stream, key, models)

        slot.worker.load = load_slowly  # type: ignore[method-assign]

    slow(node.slots.slots[0])
    await town.send(*numbers(0), *numbers(0, key="k2"), *numbers(0, key="k3"))
    await obstructed(town, node)
    await town.clock.sleep(1000.0)
    pauses_s = [later - before for before, later in itertools.pairwise(tried_at)]
    assert len(pauses_s) > 2
    assert min(pauses_s) >= PAUSE_PER_LOAD * load_s
