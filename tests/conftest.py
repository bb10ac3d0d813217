"""What every test shares."""

import os

from hypothesis import settings

# The same examples on every machine in CI; new ones each run at a developer's.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
