"""HAProxy as the data plane: it is configured, supervised, and updated with the owners of streams."""
