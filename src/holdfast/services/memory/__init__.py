"""Services in this process: for tests, for simulation, and as a reference for the others.

Each object is the service itself, for every node that holds it. It keeps a log of all calls, takes time only
from its clock, and does every call in one step, except for waiting. So a simulated run can be checked and
replayed.
"""
