"""HTTP: calls between nodes, and the pages that every node serves."""
