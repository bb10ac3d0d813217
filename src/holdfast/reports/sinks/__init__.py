"""Where reports are delivered: one file or folder a service."""
