"""The description of the API, in OpenAPI 3.1, made of its operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import holdfast
from holdfast.console.api.operations import JSON, PREFIX, Operation
from holdfast.http.serving import MEDIA_TYPE, Problem

SCHEMAS = "#/components/schemas/{name}"
ABOUT = """The console for programs: what operators see and do.

A key that holds `/` has it as `%2F` in a path. Times are ISO 8601 in UTC, unless a field ends in `_s` or
`_at`: those are in seconds. Lists are bounded; where there is more, `next` has what to give as `cursor` for
the next page.

A caller sends a bearer token, which `holdfast console-token` makes. Operations that change something
need the right `operate`, and are in the audit log with who asked.
"""
REFUSED = {
    "400": "The path, a parameter or the body is wrong; the text names it.",
    "401": "The token is missing or unknown.",
    "403": "The token lacks the right, or a page of another site has asked.",
    "404": "It doesn't exist.",
    "409": "The present state doesn't allow it; nothing was done.",
    "413": "The body is too large.",
    "415": "The body isn't JSON.",
    "422": "A value can't be used, or a setting of the console is wrong.",
    "503": "A service or a node doesn't answer; nothing was done. Try again.",
    "504": "No answer in time; it may have been done. Check before you repeat it.",
}
PARTS = {
    "stream": "The name of a stream.",
    "key": "The key within the stream, percent-encoded.",
    "app": "The name of the app.",
    "trace_id": "The id of the task.",
    "name": "The name in the schedule.",
    "node": "The name of the node, or its membership.",
}


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the description of these operations."""
    kinds = [Problem, *(each.answer for each in operations), *(each.query for each in operations)]
    kinds += [each.body for each in operations if each.body is not None]
    found, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS)
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(f"{PREFIX}{each.path}", {})[each.method.lower()] = _operation(
            each, schemas, components
        )
    used = _used({"paths": paths}, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": holdfast.__version__, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in sorted(components.items()) if name in used},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(operation: Operation, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag or operation.path.split("/")[1]],
        "parameters": [
            *(_part(name) for name in operation.parts),
            *_parameters(schemas[repr(operation.query)], components),
        ],
    }
    if operation.description:
        described["description"] = operation.description
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": schemas[repr(operation.body)]}},
        }
    refused = {
        status: {"description": text, "content": {MEDIA_TYPE: {"schema": schemas[repr(Problem)]}}}
        for status, text in REFUSED.items()
        if operation.body is not None or status != "415"
    }
    done = {"description": "Done.", "content": {JSON: {"schema": schemas[repr(operation.answer)]}}}
    return described | {"responses": {str(operation.status): done, **refused}}


def _part(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": PARTS.get(name, f"The {name}."),
        "schema": {"type": "string", "minLength": 1},
    }


def _parameters(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    struct = components[schema["$ref"].rpartition("/")[2]]
    return [
        {"name": name, "in": "query", "required": name in struct.get("required", ()), "schema": each}
        for name, each in struct.get("properties", {}).items()
    ]


def _used(part: Any, components: dict[str, Any]) -> set[str]:
    """Return the names of the schemas that are referred to, by others too."""
    found: set[str] = set()
    left = [part]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                left.append(components[name])
            left += part.values()
        elif isinstance(part, list):
            left += part
    return found
