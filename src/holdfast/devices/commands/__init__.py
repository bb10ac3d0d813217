"""Commands that look after outboxes and devices."""
