"""A lease is trusted for no longer than its service trusts it."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.cluster.lease import Lease

seconds = st.floats(0, 1e6)


@given(sent=seconds, delay=st.floats(0, 100), ttl=st.floats(0.1, 100), rate=st.floats(0.995, 1.005))
def test_the_holder_stops_before_the_service(sent: float, delay: float, ttl: float, rate: float) -> None:
    """The service counts from when it handled the request, on a clock of another ``rate``."""
    lease = Lease(ttl, sent)
    service_ends = sent + delay + ttl * rate
    assert lease.deadline < service_ends
    assert lease.holds(sent)
    assert not lease.holds(lease.deadline)


def test_a_renewal_counts_from_its_sending() -> None:
    assert Lease(10, sent_at=0).renewed(4) == Lease(10, sent_at=4)


def test_an_answer_that_came_late_shortens_nothing() -> None:
    assert Lease(10, sent_at=4).renewed(2) == Lease(10, sent_at=4)


def test_a_renewed_lease_keeps_its_margin_for_drift() -> None:
    assert Lease(10, 0, drift=0.5).renewed(1).deadline == 6
