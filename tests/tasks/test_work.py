"""What a node does with the tasks in its hands when it is cut off."""

from holdfast.core.task import State
from holdfast.testing.simulator.faults import Weather
from holdfast.testing.simulator.loop import run
from holdfast.testing.simulator.scenario import TROUBLE_S, Fault
from holdfast.testing.simulator.tasks import LONG, PlannedTask, TaskScenario, TaskWorld, check

CUT = [Fault(3.0, "cut", 0, TROUBLE_S, service) for service in ("coordinator", "state", "registry")]


def test_what_waits_on_a_node_that_is_cut_off_runs_elsewhere() -> None:
    scenario = TaskScenario(
        seed=1,
        nodes=2,
        weather=Weather(),
        drift=0.0,
        faults=tuple(CUT),
        frees_on_evict=False,
        hold_max_s=float("inf"),
        maximum=0,
        tasks=tuple(PlannedTask(0.1, f"t{n}", LONG, 2.0) for n in range(40)),
    )

    async def live() -> None:
        world = TaskWorld(scenario)
        held: list[set[str]] = []

        async def look() -> None:
            (cut, _) = world.nodes.values()
            await world.clock.sleep(2.9)
            held.append({name for name, item in world.works[cut].hand.items() if item.attempt is None})
            await world.clock.sleep(TROUBLE_S - 5.0)
            done = {name for name, told in world.outcomes.items() if told}
            held.append(held[0] - done)

        world.spawn(look())
        assert check(world, await world.live()) == []
        waiting, late = held
        assert waiting, "some waited there when it was cut off"
        assert not late, "and had to wait until it wasn't"
        assert {o.state for told in world.outcomes.values() for o in told} == {State.SUCCEED}

    run(live())
