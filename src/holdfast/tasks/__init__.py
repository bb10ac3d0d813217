"""Tasks: work that needs no order, may take hours, and ends in an outcome that its producer gets."""
