"""The API's description is valid, and names exactly what is served."""

from __future__ import annotations

import re

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from holdfast.console.api.operations import PREFIX
from holdfast.console.api.routes import DESCRIPTION
from holdfast.console.products import product_pages
from holdfast.console.service import Console, groups
from tests.console.api.conftest import Api


@pytest.mark.slow
async def test_the_description_is_valid_openapi(reader: Api) -> None:
    found = OpenAPIV31SpecValidator(await reader.get("/openapi.json")).iter_errors()
    assert [f"{list(error.path)}: {error.message}" for error in found] == []


async def test_every_route_is_described_and_everything_described_is_served(
    reader: Api, console: Console
) -> None:
    document = await reader.get("/openapi.json")
    described = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }
    served = {
        (route.method, route.path)
        for _, routes in groups(console.parts, product_pages())
        for route in routes
        if route.path.startswith(PREFIX) and route.path != DESCRIPTION
    }
    assert described == served
    assert len(described) > 20


async def test_only_get_needs_no_right_to_operate(console: Console) -> None:
    rights = {
        (route.method, right)
        for right, routes in groups(console.parts, product_pages())
        for route in routes
        if route.path.startswith(PREFIX)
    }
    assert {right for method, right in rights if method == "GET"} == {"read"}
    assert {right for method, right in rights if method != "GET"} == {"operate"}


async def test_every_change_has_a_name_for_the_audit_log(reader: Api, console: Console) -> None:
    from holdfast.console.api.routes import operations

    assert [each.name for each in operations(console.parts) if each.changes and not each.action] == []


async def test_every_part_of_a_path_is_described(reader: Api) -> None:
    document = await reader.get("/openapi.json")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            parts = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert parts == {*re.findall(r"{(\w+)}", path)}
            assert operation["summary"].endswith(".")
