"""The card of a failed allocation: what it says, in which order, and that it is safe to show."""

from __future__ import annotations

import re
from contextlib import suppress

from memprof.loading import load
from memprof.oom.post_mortem import post_mortems
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from memprof_cli import main
from memprof_dashboards.postmortem import cards

MIB = 1 << 20


def failed(folder, filename="/home/me/train.py"):
    line = (Frame("forward", filename, 7),)
    builder = TraceBuilder().label(step=4, phase=Phase.FORWARD, module="Net.blocks.0")
    for i in range(4):
        builder.alloc(40 * MIB, f"a{i}", stack=line, category=Category.ACTIVATION)
    builder.label(step=4, phase=Phase.FORWARD, module="Net.blocks.1").oom(20 * MIB, device_free=0)
    return write_run(folder / "run.json", builder.build())


def words(html):
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", html))


def test_the_card_says_why_what_was_held_and_what_would_have_helped(tmp_path):
    html = cards(post_mortems(load(failed(tmp_path))))
    text = words(html)
    assert "cuda:0 ran out of memory at the peak of a single step: 20 MiB asked" in text
    assert "160 MiB in tensors of 160 MiB reserved" in text
    assert "20 MiB missing" in text
    kinds = re.findall('<code class="fix">(.*?)</code>', html)
    assert kinds == ["checkpoint", "smaller batch", "bfloat16", "larger card"]
    assert "Taken for granted: the activations are float32" in text


def test_nothing_failed_makes_no_section():
    assert cards([]) == ""


def test_names_of_files_are_not_markup(tmp_path):
    html = cards(post_mortems(load(failed(tmp_path, "/x/<script>alert(1)</script>.py"))))
    assert "<script>" not in html


def test_the_report_s_page_has_the_card(tmp_path):
    page = tmp_path / "page.html"
    with suppress(SystemExit):
        main(["report", str(failed(tmp_path)), "-o", str(page)])
    assert 'aria-label="Out of memory"' in page.read_text(encoding="utf-8")
