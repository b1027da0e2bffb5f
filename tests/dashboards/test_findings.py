"""Findings as cards: everything that is known is on the card, and hostile text stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from memprof.records import Holder, Site
from memprof.reference_chain import Link
from memprof.rules.finding import Kind, Remedy, RuleFinding, Series
from memprof.rules.fixes import FIXES
from memprof.rules.pages import page
from memprof.trace import Frame
from memprof_dashboards.findings import cards, series
from memprof_dashboards.pages import fix_pages
from tests.dashboards.recordings import HOSTILE, LINEAR, MODEL

MIB = 1 << 20
FENCE = re.compile(r"```\w*")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
PATCH = """--- train.py
+++ train.py
@@ -31 +31 @@
-    outputs.append(loss)
+    outputs.append(loss.item())
"""


def leak(text: str = "list `outputs` of LitModel", fix: str = "item") -> RuleFinding:
    return RuleFinding(
        kind=Kind.LEAK,
        device="cuda:0",
        site=Site("/home/someone/job/train.py", 31, "step", text),
        title=f"grows by 24 MiB per step: {text}",
        bytes_per_step=24 * MIB,
        bytes=240 * MIB,
        confidence=0.98,
        first_step=3,
        last_step=12,
        steps_left=410,
        stack=(LINEAR, MODEL, Frame(text, "/home/someone/job/train.py", 31)),
        holders=(
            Holder(
                "item",
                "/home/someone/job/train.py",
                12,
                "outputs = []",
                [Link("global", text, "LitModel"), Link("item", "outputs", "list", length=10)],
            ),
        ),
        remedies=(
            Remedy(
                fix,
                text,
                "/home/someone/job/train.py",
                31,
                text,
                24 * MIB,
                300 * MIB,
                60 * MIB,
                PATCH,
                f"memprof explain {fix}",
                saves_per_step=True,
            ),
        ),
        series=Series(np.arange(10), np.arange(10) * 24 * MIB),
    )


class Reader(HTMLParser):
    """The tags and the text of some HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_card_says_what_grows_where_who_holds_it_what_to_type_and_what_it_saves():
    words = Reader(cards([leak()])).words
    for said in (
        "grows by 24 MiB per step",
        "240 MiB in all",
        "seen in steps 3 to 12",
        "device full in about 410 steps",
        "98 % sure",
        "job/train.py:31 in step",
        "outputs = []",
        "list (10 items)",
        "saves 24 MiB",
        "peak 300 MiB → 60 MiB",
        "-    outputs.append(loss)",
    ):
        assert said in words


def test_nothing_found_makes_no_section():
    assert cards([]) == ""


def test_hostile_text_makes_the_same_tags_as_plain_text():
    plain, hostile = Reader(cards([leak("loss")])), Reader(cards([leak(HOSTILE)]))
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert "<img src=x" in hostile.words
    assert "\u202e" not in hostile.words


def test_a_remedy_links_to_the_page_about_its_fix_which_is_in_the_report_once():
    html = cards([leak(), leak()])
    assert Reader(html).links == ["#fix-item", "#fix-item"]
    assert html.count('id="fix-item"') == 1
    words = Reader(html).words
    for part in ("The pattern", "Why it costs memory", "The fix", "When not to"):
        assert part in words
    assert "```" not in words
    assert "](" not in words


def test_what_is_no_fix_has_no_page():
    assert Reader(cards([leak(fix="rewrite_it")])).links == []


def test_every_page_is_shown_whole():
    for fix in FIXES:
        words = "".join(Reader(fix_pages([fix])).words.split())
        text = LINK.sub(r"\1", FENCE.sub("", page(fix)))
        for line in text.splitlines():
            bare = "".join(line.lstrip("#- ").replace("`", "").split())
            assert bare in words, (fix, line)


def test_the_chart_of_a_card_carries_its_series():
    (chart,) = series([leak()])
    assert chart.steps == list(range(10))
    assert chart.bytes[-1] == 9 * 24 * MIB


def test_beyond_thirty_cards_the_rest_is_counted():
    html = cards([leak()] * 33)
    assert html.count("<article") == 30
    assert "and 3 more" in html
