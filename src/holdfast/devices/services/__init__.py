"""Brokers that reach devices, and databases that hold outboxes: one folder a service."""
