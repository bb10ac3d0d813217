"""What every broker of devices and every store of outboxes must do, as test classes to inherit from."""
