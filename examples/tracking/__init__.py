"""People tracked in many videos on several nodes, of which one is killed and another drained.

make demo    (python -m examples.tracking)
"""
