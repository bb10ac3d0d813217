"""Routes and placing at a gateway: which owners it knows, and which member gets a request."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Unavailable
from holdfast.rules.cluster.gateway import GatewayPlacing, GatewayRoute, Routes
from holdfast.rules.cluster.placement import Load, Member

KEYS = st.sampled_from(["s/1", "s/2", "s/3"])
MEMBERS = st.sampled_from(["a", "b", "c"])
KEY = "s/k"
A, B = (Member(name, name, f"http://{name}", Load(slots=2)) for name in ("a", "b"))
FOREIGN = Member("/services/w", "w", "http://other:90", Load(room=0), foreign=True)


def followed() -> Routes:
    routes = Routes()
    routes.news = lambda: None
    return routes


def placing(*members: Member, foreign: bool = False) -> tuple[GatewayPlacing, Routes]:
    routes = Routes()
    return GatewayPlacing(routes, {member.id: member for member in members}, foreign=foreign), routes


class TestRoutes:
    def test_nothing_is_kept_without_a_follower(self) -> None:
        routes = Routes()
        routes.claimed("s/1", "a")
        assert routes.changed() == {}

    def test_an_owner_is_ignored_if_its_epoch_is_below_the_known_one(self) -> None:
        routes = Routes()
        assert routes.answered("s/1", "a", 3)
        assert not routes.answered("s/1", "b", 2)
        assert routes.get("s/1") == GatewayRoute("a", 3)
        assert routes.answered("s/1", "b", 4)
        assert routes.get("s/1") == GatewayRoute("b", 4)

    def test_the_same_owner_again_is_no_change(self) -> None:
        routes = followed()
        routes.answered("s/1", "a", 3)
        routes.changed()
        assert routes.answered("s/1", "a", 3)
        assert routes.changed() == {}

    def test_only_a_claim_of_another_member_is_a_change(self) -> None:
        routes = followed()
        routes.answered("s/1", "a", 3)
        routes.changed()
        routes.claimed("s/1", "a")
        assert routes.changed() == {}
        routes.claimed("s/1", "b")
        assert routes.changed() == {"s/1": GatewayRoute("b")}

    def test_routes_end_with_their_claims_and_members(self) -> None:
        routes = followed()
        for key in ("s/1", "s/2", "s/3"):
            routes.claimed(key, "a" if key != "s/3" else "b")
        routes.claimed("s/1", "")
        assert dict(routes) == {"s/2": GatewayRoute("a"), "s/3": GatewayRoute("b")}
        routes.left("a")
        assert dict(routes) == {"s/3": GatewayRoute("b")}
        routes.forget("s/3", "a")
        assert len(routes) == 1
        routes.clear()
        assert len(routes) == 0
        assert routes.changed() == {"s/1": None, "s/2": None, "s/3": None}

    def test_the_oldest_route_is_forgotten_beyond_the_limit(self) -> None:
        routes = Routes(most=2)
        for n in range(3):
            routes.claimed(f"s/{n}", "a")
        assert sorted(key for key, _ in routes) == ["s/1", "s/2"]

    @given(st.lists(st.tuples(KEYS, MEMBERS | st.just(""))))
    def test_routes_and_a_copy_of_them_converge_to_the_claims(self, claims: list[tuple[str, str]]) -> None:
        routes, latest, copy = followed(), dict[str, str](), dict[str, str]()
        for number, (key, member) in enumerate(claims):
            routes.claimed(key, member)
            latest[key] = member
            if number % 3 == 0:
                copy |= {k: route.member if route else "" for k, route in routes.changed().items()}
        copy |= {k: route.member if route else "" for k, route in routes.changed().items()}
        expected = {key: member for key, member in latest.items() if member}
        assert {key: route.member for key, route in routes} == expected
        assert {key: member for key, member in copy.items() if member} == expected


class TestPlacing:
    def test_new_keys_go_to_the_member_with_the_fewest(self) -> None:
        rule, _ = placing(A, B)
        assert [rule.choose(f"s/{n}") for n in range(40)].count(A) == 20

    def test_a_key_without_room_gets_no_member_and_an_error_that_says_so(self) -> None:
        rule, _ = placing(msgspec.structs.replace(A, load=Load(room=0)))
        assert rule.choose(KEY) is None
        with pytest.raises(Unavailable, match="no node has room"):
            raise rule.shortage(KEY)

    def test_keys_that_others_place_count_before_loads_show_them(self) -> None:
        rule, routes = placing(A, B)
        for n in range(12):
            rule.claimed(f"other/{n}", "a", here=False)
        assert [rule.choose(f"s/{n}") for n in range(20)].count(A) == 4
        assert routes.get("other/0") == GatewayRoute("a")

    def test_an_own_claim_counts_once_though_it_is_reported_before_and_after_the_answer(self) -> None:
        rule, _ = placing(A, B)
        for n in range(4):
            rule.claimed(f"other/{n}", "a", here=False)
        for n in range(4):
            chosen = rule.choose(f"s/{n}")
            assert chosen == B
            rule.claimed(f"s/{n}", chosen.id, here=True)
            rule.given(chosen, chosen.id)
            rule.claimed(f"s/{n}", chosen.id, here=False)
        assert [rule.choose(f"t/{n}") for n in range(20)].count(A) == 10

    def test_a_member_that_another_gateway_overruled_is_no_fuller(self) -> None:
        rule, _ = placing(A, B)
        for n in range(10):
            chosen = rule.choose(f"s/{n}")
            assert chosen is not None
            rule.given(chosen, "b")
        assert [rule.choose(f"s/{n}") for n in range(10, 20)] == [A] * 10

    def test_a_foreign_owner_gets_requests_only_if_allowed_and_reachable(self) -> None:
        nowhere = msgspec.structs.replace(FOREIGN, address="")
        refusing, routes = placing(A, FOREIGN)
        routes.claimed(KEY, FOREIGN.id)
        with pytest.raises(Unavailable, match="another program, w, and foreign_streams is 'refuse'"):
            refusing.owner(KEY)
        forwarding, routes = placing(A, FOREIGN, foreign=True)
        routes.claimed(KEY, FOREIGN.id)
        assert forwarding.owner(KEY) == FOREIGN
        with pytest.raises(Unavailable, match="gives no host and port"):
            forwarding.checked(KEY, nowhere)

    def test_another_member_than_a_given_one_is_found(self) -> None:
        assert placing(A, B)[0].another(KEY, "a") == B
        assert placing(A)[0].another(KEY, "a") is None

    def test_a_query_goes_to_the_owner_and_after_failures_to_others(self) -> None:
        def member(name: str, **given: Any) -> Member:
            return Member(name, name, f"http://{name}", Load(serves=("s",)), **given)

        other = Member("other", "other", "http://other", Load(serves=("t",)))
        rule, routes = placing(*map(member, "abc"), other, member("foreign", foreign=True))
        assert {rule.reader(KEY, n).id for n in range(3)} == {"a", "b", "c"}
        assert {rule.reader(f"s/{n}", 0).id for n in range(50)} == {"a", "b", "c"}, "spread by key"
        for name in "abc":
            routes.claimed(KEY, name)
            assert rule.reader(KEY, 0).id == rule.reader(KEY, 3).id == name
            assert rule.reader(KEY, 1).id != name
        with pytest.raises(Unavailable, match="no node runs this stream"):
            placing()[0].reader(KEY, 0)
