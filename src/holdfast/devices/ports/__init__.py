"""The ports of devices: brokers, and stores of outboxes."""
