"""Files that pages load, and templates: nothing in them may need what the content policy forbids."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import jinja2
import pytest

from holdfast.console.assets import FOLDER, Assets
from holdfast.console.rendering import TEMPLATES, Renderer, chart, html_response, pretty, span
from tests.console.browser import Browser

VENDORED = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "idiomorph-ext.min.js": "5811b9a7eda14878b7dab4378bf60432e1bb6f11fcfb970cc26540642650181e",
}
"""htmx 2.0.11 and idiomorph 0.8.0, as they were published."""

TEXTS = sorted(TEMPLATES.rglob("*.html"))


def test_vendored_files_are_the_published_ones_with_their_licences() -> None:
    folder = FOLDER / "vendor"
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.js")}
    assert found == VENDORED
    assert sorted(file.name for file in folder.glob("*.LICENSE")) == ["htmx.LICENSE", "idiomorph.LICENSE"]


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_no_script_or_style_stands_in_a_template(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r"<script(?![^>]* src=)[^>]*>", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|hx-on|hx-vals=.js:|\[.*\]\s+from:", text) == []
    assert re.findall(r"(?:href|src|action|hx-get|hx-post)=\"(?!/|#|\{\{)", text) == []
    assert "|safe" not in text
    assert "autoescape" not in text


def test_no_asset_of_the_console_names_another_host() -> None:
    files = [*TEXTS, *FOLDER.glob("*.js"), *FOLDER.glob("*.css")]
    assert len(files) > 10
    for file in files:
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", file.read_text()) == [], file.name


def test_htmx_runs_no_text_as_code() -> None:
    [config] = re.findall(r"name=\"htmx-config\" content='(.*?)'", (TEMPLATES / "base.html").read_text())
    for setting in (
        '"allowEval": false',
        '"allowScriptTags": false',
        '"includeIndicatorStyles": false',
        '"historyEnabled": false',
        '"historyCacheSize": 0',
        '"selfRequestsOnly": true',
    ):
        assert setting in config


def test_values_are_escaped_and_unknown_names_are_errors() -> None:
    environment = Renderer(Assets()).environment
    assert environment.from_string("{{ x }}").render(x="<b>'\"") == "&lt;b&gt;&#39;&#34;"
    with pytest.raises(jinja2.UndefinedError):
        environment.from_string("{{ x.y }}{{ z }}").render(x={})


async def test_files_are_kept_by_browsers_until_they_change(reader: Browser) -> None:
    path = Assets().path("console.css")
    answer = await reader.get(path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in answer.headers["Cache-Control"]
    other = path.replace(path.split("/")[2], "0" * 16)
    for missing in (other, "/static/../service.py", "/static/", "/static/%2e%2e/service.py"):
        assert (await reader.get(missing)).status == 404


@pytest.mark.parametrize(
    "body, shown",
    [
        (b'{"b":1,"a":[2]}', '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'),
        (b"plain", "plain"),
        (b"\xff\x00", "ff 00"),
        (b"", ""),
        (b"[" * 100_000, "["),
        (rb'{"a":"caf\ud83d"}', r'{"a":"caf\ud83d"}'),
        (b"[1e400,12345678901234567890.123]", "[\n  1e400,\n  12345678901234567890.123\n]"),
    ],
)
def test_bodies_are_shown_as_they_can_be_read(body: bytes, shown: str) -> None:
    assert pretty(body).startswith(shown)
    assert html_response(pretty(body)).status == 200, "a page can hold it"


@pytest.mark.parametrize(
    "body", [b"x" * 10_000_000, b"\xff" * 10_000_000, ("ä" * 5_000_000).encode(), b"1" * 300_000]
)
def test_a_large_body_is_cut_and_says_so(body: bytes) -> None:
    shown = pretty(body)
    assert len(shown) < 21_000
    assert shown.endswith(f"all of it has {len(body)} bytes")


@pytest.mark.parametrize(
    "seconds, text",
    [
        (None, "—"),
        (0.04, "0.0 s"),
        (9.99, "10.0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7300, "2 h"),
        (-1, "0.0 s"),
    ],
)
def test_spans_are_told_in_one_unit(seconds: float | None, text: str) -> None:
    assert span(seconds).replace("\u00a0", " ") == text


def test_a_chart_has_gaps_where_nothing_is_known() -> None:
    drawn = chart([None, None, 1.0, 3.0, None, 2.0, 2.0])
    assert len(drawn["lines"]) == len(drawn["areas"]) == 2
    assert drawn["most"] == 3.0
    assert drawn["lines"][1].endswith(f"{drawn['width']:.1f},{drawn['lines'][1].rpartition(',')[2]}")
    assert chart([]) == chart([]) | {"lines": [], "areas": [], "most": 0.0}
