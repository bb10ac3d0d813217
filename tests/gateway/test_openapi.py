"""What is served is what the OpenAPI description says, whatever is asked."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.gateway.surface import Said, Surface, planes, surface

DOCUMENT: dict[str, Any] = json.loads(files("holdfast.gateway").joinpath("openapi.json").read_text())
SERVERS = ["node", *planes()]
PROCESS = "/process/{stream_id}"
QUERY = "/query/{stream}/{key}"
"""Has tests of its own, in test_queries.py."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Surface]:
    with surface() as made:
        yield made


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """A part of the description, or what it refers to."""
    if "$ref" in part:
        found: Any = DOCUMENT
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return resolved(found)
    return part


def check(path: str, method: str, said: Said) -> None:
    """The answer is one that the description has."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    assert str(said.status) in responses, said
    described = resolved(responses[str(said.status)])
    kind = said.headers["content-type"].partition(";")[0]
    assert kind in described["content"], said
    schema = resolved(described["content"][kind].get("schema", {}))
    if schema:
        fits(json.loads(said.body), schema)
    for name, header in described.get("headers", {}).items():
        if name.lower() in said.headers:
            fits(said.headers[name.lower()], resolved(header)["schema"])
    if kind == "application/problem+json":
        assert json.loads(said.body)["status"] == said.status


def fits(value: Any, schema: dict[str, Any]) -> None:
    """As much of JSON Schema as the description uses."""
    known = {"type", "const", "pattern", "minLength", "required", "properties", "default", "description"}
    assert schema.keys() <= known
    kinds: dict[str, Any] = {"string": str, "integer": int, "object": dict}
    assert isinstance(value, kinds[schema.get("type", "string")])
    assert value == schema.get("const", value)
    assert "pattern" not in schema or re.search(schema["pattern"], value)
    for name in schema.get("required", ()):
        fits(value[name], schema["properties"][name])


def everything(part: Any) -> Iterator[dict[str, Any]]:
    """All objects of the description."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from everything(inner)


def test_every_reference_of_the_description_leads_somewhere() -> None:
    referring = [part for part in everything(DOCUMENT) if "$ref" in part]
    assert referring
    for part in referring:
        assert resolved(part)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("path", sorted(DOCUMENT["paths"].keys() - {PROCESS, QUERY, "/v1/models"}))
def test_pages_answer_as_the_description_says(servers: Surface, name: str, path: str) -> None:
    (said,) = servers.exchange(
        name, b"GET %s HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n" % path.encode()
    )
    assert said.status == 200
    check(path, "get", said)
    assert path != "/openapi.json" or json.loads(said.body) == DOCUMENT


# --- any request that is HTTP

ANY_VALUE = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=200
)


def parameters(method: str, place: str) -> dict[str, dict[str, Any]]:
    """The described parameters of a request in its query or its headers, with their schemas."""
    item = DOCUMENT["paths"][PROCESS]
    all_of_them = map(resolved, [*item["parameters"], *item[method].get("parameters", ())])
    return {made["name"]: made["schema"] for made in all_of_them if made["in"] == place}


def values(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """What is described, or anything."""
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].replace("$", r"\Z")) | ANY_VALUE
    return ANY_VALUE


def some(method: str, place: str) -> st.SearchStrategy[dict[str, str]]:
    """Some of the described parameters."""
    known = parameters(method, place)
    return st.fixed_dictionaries({}, optional={name: values(schema) for name, schema in known.items()})


def quoted(raw: str | bytes) -> str:
    """Any text or bytes as part of a path."""
    return quote(raw if isinstance(raw, bytes) else raw.encode(errors="surrogatepass"), safe="")


STREAMS = st.sampled_from(["raw", "json", "free"])
KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20).filter(
    lambda key: key not in (".", "..")
)
ODD_IDS = st.one_of(
    st.text(max_size=30).map(quoted),
    st.binary(max_size=20).map(quoted),
    st.text(st.sampled_from("abc%./20F?;:@"), max_size=20),
)
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KINDS = list(DOCUMENT["paths"][PROCESS]["post"]["requestBody"]["content"])


class Post(NamedTuple):
    """One request, and whether anything about it may be wrong."""

    raw_id: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    odd: bool


@st.composite
def posts(draw: st.DrawFn) -> Post:
    """A request as described, of which up to two parts are anything at all."""
    odd = draw(st.sets(st.sampled_from(["id", "query", "headers", "kind", "body"]), max_size=2))
    stream, key, n = draw(STREAMS), draw(KEYS), draw(st.integers(0, 10**18))
    kinds = KINDS[:1] if stream == "json" else KINDS
    headers = {"X-Stream": stream, "X-Seq": str(n), "Content-Type": draw(st.sampled_from(kinds))}
    body = json.dumps({"key": key, "n": n}).encode() if stream == "json" else draw(st.binary(min_size=1))
    if "headers" in odd:
        headers |= draw(some("post", "header"))
    if "kind" in odd:
        headers["Content-Type"] = draw(st.sampled_from(KINDS) | ANY_VALUE)
    if "body" in odd:
        body = draw(st.binary(max_size=300) | JSON.map(lambda made: json.dumps(made).encode()))
    return Post(
        draw(ODD_IDS) if "id" in odd else quoted(key),
        draw(some("post", "query")) if "query" in odd else {},
        headers,
        body,
        bool(odd),
    )


def request(method: str, raw_id: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> bytes:
    """One request, the last on its connection."""
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    target = f"/process/{raw_id.partition('#')[0]}" + (f"?{asked}" if asked else "")
    lines = [f"{method.upper()} {target} HTTP/1.1", "Host: [::1]", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.mark.nightly
@pytest.mark.parametrize("name", SERVERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(post=posts())
def test_whatever_is_posted_is_answered_as_described(servers: Surface, name: str, post: Post) -> None:
    servers.taken.clear()
    (said,) = servers.exchange(name, request("post", post.raw_id, post.query, post.headers, post.body))
    event(f"{said.status}")
    check(PROCESS, "post", said)
    assert said.status < 500
    assert said.status == 200 or post.odd
    assert len(servers.taken) == (said.status == 200)
    if said.status == 200 and servers.taken[0].stream != "json":
        assert servers.taken[0].body == post.body


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw_id=ODD_IDS, query=some("get", "query"), headers=some("get", "header"))
def test_whatever_is_got_is_answered_as_described(
    servers: Surface, name: str, raw_id: str, query: dict[str, str], headers: dict[str, str]
) -> None:
    (said,) = servers.exchange(name, request("get", raw_id, query, headers, b""))
    check(PROCESS, "get", said)
