"""The settings: read from all their sources, checked against each other and frozen."""
