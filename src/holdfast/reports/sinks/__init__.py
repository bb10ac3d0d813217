"""The sinks to which reports are delivered: one file or folder a service."""
