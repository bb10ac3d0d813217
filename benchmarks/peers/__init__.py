"""The task queues that Holdfast is compared with, each at its best settings."""
