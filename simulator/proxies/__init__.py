"""Proxies that have faults befall a service, for tests and benchmarks of what calls it.

Each listens on a free loopback port, passes everything on to a real server, counts the calls, and does what
its rules say::

    from simulator.proxies import (CallFault, Rule, SqsFaults)

    async with SqsFaults("http://127.0.0.1:5000", seed=7) as faults:
        faults.plan.add(
            Rule(fault=CallFault.DUPLICATE, probability=0.1),
            Rule(fault=CallFault.THROTTLE, operation="SendMessage*", times=2),
        )
        ...  # a client of faults.endpoint
        faults.refuse()  # an outage
        await faults.accept()
    assert faults.calls["SendMessageBatch"] >= 2

==============  ==========================================================================
``SqsFaults``   SQS: all faults
``S3Faults``    S3: all that any HTTP service may have
``HttpFaults``  any other service over HTTP
``TcpFaults``   any TCP port: delay, freeze, cut, refuse, lose an answer
==============  ==========================================================================

``FaultsProcess`` runs one in a process of its own, as ``python -m simulator.proxies`` does.
"""

from simulator.proxies.http import HttpFaults
from simulator.proxies.plan import CallFault, FaultPlan, Rule, Struck
from simulator.proxies.process import FaultsProcess
from simulator.proxies.s3 import S3Faults
from simulator.proxies.sqs import SqsFaults
from simulator.proxies.tcp import TcpFaults

__all__ = [
    "CallFault",
    "FaultPlan",
    "FaultsProcess",
    "HttpFaults",
    "Rule",
    "S3Faults",
    "SqsFaults",
    "Struck",
    "TcpFaults",
]
