"""For tests of what is built on Holdfast: conformance suites, simulation, and kits for handlers."""
