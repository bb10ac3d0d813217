"""PostgreSQL as queue, coordinator, state store, task store and registry."""
