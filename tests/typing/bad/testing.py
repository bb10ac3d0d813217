"""Settings of a node for tests that there aren't, or whose value can't be."""

from __future__ import annotations

from holdfast import App
from holdfast.testing import NodeSettings, StartNode, node_for_tests

app = App("counts")
wrong: NodeSettings = {"max_message_byte": 1000}  # error


def test_wrong_settings_of_nodes_are_found(holdfast_node: StartNode) -> None:
    holdfast_node(app, settings={"ttl": 5})  # error
    holdfast_node(app, settings={"durability": "none"})  # error
    with node_for_tests(app, settings={"slots": "two"}):  # error
        pass
