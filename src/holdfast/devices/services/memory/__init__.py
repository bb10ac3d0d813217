"""Devices and outboxes in this process: for tests, for simulation, and as the measure of the others."""
