"""Routes: what one gateway knows of owners, and what it takes for news."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.routes import GatewayRoute, Routes
from holdfast.ports.coordinator import Claim

KEYS = st.sampled_from(["s/1", "s/2", "s/3"])
MEMBERS = st.sampled_from(["a", "b", "c"])


def followed() -> Routes:
    routes = Routes()
    routes.news = lambda: None
    return routes


def test_nothing_is_kept_for_followers_that_are_not_there() -> None:
    routes = Routes()
    routes.claimed(Claim("s/1", "a", 1))
    assert routes.changed() == {}


def test_an_owner_s_word_counts_only_if_its_epoch_is_not_below() -> None:
    routes = Routes()
    assert routes.answered("s/1", "a", 3)
    assert not routes.answered("s/1", "b", 2)
    assert routes.get("s/1") == GatewayRoute("a", 3)
    assert routes.answered("s/1", "b", 4)
    assert routes.get("s/1") == GatewayRoute("b", 4)


def test_a_claim_of_another_is_news_and_the_same_is_none() -> None:
    routes = followed()
    routes.answered("s/1", "a", 3)
    routes.changed()
    routes.claimed(Claim("s/1", "a", 9))
    assert routes.changed() == {}
    routes.claimed(Claim("s/1", "b", 10))
    assert routes.changed() == {"s/1": GatewayRoute("b")}


def test_routes_end_with_their_claims_and_members() -> None:
    routes = followed()
    for key in ("s/1", "s/2", "s/3"):
        routes.claimed(Claim(key, "a" if key != "s/3" else "b", 1))
    routes.claimed(Claim("s/1", "", 2))
    assert dict(routes) == {"s/2": GatewayRoute("a"), "s/3": GatewayRoute("b")}
    routes.left("a")
    assert dict(routes) == {"s/3": GatewayRoute("b")}
    routes.forget("s/3", "a")
    assert len(routes) == 1
    routes.clear()
    assert len(routes) == 0
    assert routes.changed() == {"s/1": None, "s/2": None, "s/3": None}


def test_the_oldest_is_forgotten_where_there_are_too_many() -> None:
    routes = Routes(most=2)
    for n in range(3):
        routes.claimed(Claim(f"s/{n}", "a", n))
    assert sorted(key for key, _ in routes) == ["s/1", "s/2"]


@given(st.lists(st.tuples(KEYS, MEMBERS | st.just(""))))
def test_routes_converge_to_the_claims_they_are_told(told: list[tuple[str, str]]) -> None:
    routes, standing, copy = followed(), dict[str, str](), dict[str, str]()
    for version, (key, member) in enumerate(told):
        routes.claimed(Claim(key, member, version))
        standing[key] = member
        if version % 3 == 0:
            copy |= {k: route.member if route else "" for k, route in routes.changed().items()}
    copy |= {k: route.member if route else "" for k, route in routes.changed().items()}
    expected = {key: member for key, member in standing.items() if member}
    assert {key: route.member for key, route in routes} == expected
    assert {key: member for key, member in copy.items() if member} == expected
