"""The what-if table: one row a configuration, the recorded one first."""

from __future__ import annotations

import re

from memprof.testing import TraceBuilder
from memprof.what_if.changed_run import replay
from memprof_dashboards.whatif import tables

MIB = 1 << 20


def rows(html: str) -> list[list[str]]:
    """The cells of every row of the body, as text."""
    body = html.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", body)]
    return [[re.sub("<[^>]*>", "", cell) for cell in row] for row in cells]


def test_every_configuration_has_a_row_with_its_peak_and_how_it_ends():
    builder = TraceBuilder().alloc(30 * MIB, "a").alloc(30 * MIB, "b").free("a").free("b")
    html = tables(replay(builder.build(), ["expandable_segments:True"], gpu="40MiB"))
    recorded, *others = rows(html)
    assert recorded[:2] == ["recorded", "60 MiB"]
    assert any(row[0].startswith("expandable_segments:True") for row in others)
    assert any("out of memory at event" in row[-1] for row in others)


def test_nothing_asked_makes_no_section():
    assert tables([]) == ""
