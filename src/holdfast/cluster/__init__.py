"""The shells of a node: they ask the core what to do, and do it through the ports."""
