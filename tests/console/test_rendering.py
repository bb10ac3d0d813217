"""How templates show times, and how tables become lists on a phone."""

from __future__ import annotations

from holdfast.console.rendering import labelled, moment

TABLE = """<table><caption>Nodes</caption>
<thead><tr><th scope="col">Name</th><th scope="col" class="number"><a href="/s">Busy
 slots</a></th><th scope="col"></th><th scope="col">State</th></tr></thead>
  <tbody>
<tr><th scope="row">a</th><td class="number">1</td><td>x</td><td><span>runs</span></td></tr>
<tr><th scope="row">b</th><td colspan="2">away</td><td>lost</td></tr>
</tbody></table>"""


def test_each_cell_of_a_table_has_the_title_of_its_column() -> None:
    html = labelled(TABLE)
    assert '<td class="number" data-label="Busy slots">1</td>' in html
    assert '<td data-label="State"><span>runs</span></td>' in html
    assert "<td>x</td>" in html, "its column has no title"
    assert '<td colspan="2">away</td><td data-label="State">lost</td>' in html
    assert '<th scope="row">a</th>' in html
    assert labelled(html) == html, "a page holds parts that have labels already"
    assert labelled("<p>no table</p>") == "<p>no table</p>"


def test_a_time_can_be_read_by_the_script_that_tells_it_in_the_readers_zone() -> None:
    assert moment(1_000_000_000.0) == '<time datetime="2001-09-09T01:46:40Z">2001-09-09 01:46:40</time>'
    assert moment(0.0) == "—"
    assert moment(1e300) == "1e+300"
