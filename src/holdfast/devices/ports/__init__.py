"""What a broker of devices and a store of outboxes must do."""
