"""Services that live in this process: for tests, for simulation, and as the measure of the others.

Each object is the service itself and serves every node that holds it. They keep a log of all that was
done to them, take time only from their clock, and do every call in one step, waiting for more to come
at most; so a simulated run can be judged and replayed.
"""
