"""What the machine gives: its clock, its files, and wake-ups between its processes."""
