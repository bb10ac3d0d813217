"""Services of the machine: its clock, its files, and wake-ups between its processes."""
