"""Reading: from URLs to batches of rows."""
