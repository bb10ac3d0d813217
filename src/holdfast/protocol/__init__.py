"""Records between nodes, with a version."""
