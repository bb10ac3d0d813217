"""ZooKeeper, in a layout of znodes that other programs can read and join."""
