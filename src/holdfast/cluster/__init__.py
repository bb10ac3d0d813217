"""A node and its cluster: membership, placement, and the parts that a node starts and stops."""
