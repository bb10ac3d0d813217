"""The real runtime in virtual time, over services in memory, with seeded faults and checked invariants.

``python -m simulator --seeds 500`` runs seeds one after another; a failing one is named
and replays the same. ``--break RULE`` switches off one protection, to show that its absence is found.
"""
