"""small-view: views that a function hands on, where a search found no holder."""

from __future__ import annotations

import pytest

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from tests.rules.bench import Bench

DIAGONALS = """
def diagonals(batches):
    for x in batches:
        scores = torch.mm(x, x.t())
        HANDING
"""


@pytest.mark.parametrize(
    ("handing", "view"),
    [
        ("yield scores.diagonal()", "scores.diagonal()"),
        ("yield len(x), torch.diagonal(scores).detach()", "torch.diagonal(scores).detach()"),
        ("yield scores[:, -1]", "scores[:, -1]"),
        ("yield scores", ""),
        ("yield scores[0]", ""),  # it may be all that there is
        ("yield scores.diagonal().clone()", ""),
        ("yield scores.diagonal().cpu()", ""),
        ("keep(scores.diagonal())", ""),
        ("yield scores.sum(), scores.diagonal()", ""),
    ],
)
def test_a_small_view_that_alone_is_handed_on_is_cloned(handing, view, tmp_path):
    bench = Bench(tmp_path).write(DIAGONALS.replace("HANDING", handing))
    links = [Link(LinkKind.UNKNOWN, unowned=Unowned(owner="Tensor"))]
    advice = bench.advise("torch.mm", Holder(LinkKind.UNKNOWN, links=links))
    cloned = [one for one in advice if one.fix == "clone_view"]
    assert [one.rule for one in cloned] == ["small-view"] * bool(view)
    for one in cloned:
        assert one.line == bench.line(handing)
        assert one.why.startswith(f"`{view}` is a view")
        assert one.typed == f"{view}.clone()"
