"""HAProxy as the data plane: configured, supervised and kept up to date with who owns what."""
