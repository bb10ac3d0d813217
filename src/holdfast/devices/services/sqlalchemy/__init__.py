"""The outbox in the business's own database, through SQLAlchemy: SQLite and PostgreSQL."""
