"""Values and small rules that every kind of work needs: no I/O, no clock, no random numbers."""
