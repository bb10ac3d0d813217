"""HTTP: calls between nodes, and the small pages every node serves beside them."""
