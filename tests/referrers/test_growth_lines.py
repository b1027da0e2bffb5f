"""What the log says of memory that grows: a line for a holder, and none for crumbs."""

from __future__ import annotations

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.growth_lines import Growth, GrowthLines

MIB = 1 << 20
HISTORY = (
    Link(LinkKind.LOCAL, "history", "train", filename="train.py", line=9),
    Link(LinkKind.ITEM, name="7", type_name="list", length=8),
)
GRAPH = (
    Link(LinkKind.AUTOGRAD_NODE, nodes=(("NllLossBackward0", 1), ("AddmmBackward0", 1))),
    Link(LinkKind.SAVED_TENSOR, name="mat1", type_name="AddmmBackward0"),
)
CACHE = (
    Link(LinkKind.GLOBAL, name="cache", type_name="train"),
    Link(LinkKind.ITEM, name="a", type_name="dict", length=8),
)


def held(*links: Link) -> list[Holder]:
    return [Holder(links[0].kind if links else LinkKind.UNKNOWN, links=list(links))]


def growth(stack: int, per_step: float, holders=(), *, device: str = "cuda:0", since: int = 2):
    details = {"first_step": since}
    finding = Finding(
        "holders", device=device, stack=stack, count=10, holders=list(holders), details=details
    )
    return Growth(finding, per_step)


def said(lines: GrowthLines, *news: Growth) -> list[str]:
    return [line for _, line in lines.of(news)]


def test_what_a_list_keeps_with_its_graph_is_one_line_with_the_sum():
    news = [
        growth(0, 4 * MIB, held(*HISTORY)),
        growth(1, 60 * MIB, held(*HISTORY, *GRAPH)),
        growth(2, 36 * MIB, held(*HISTORY, *GRAPH), since=1),
    ]
    lines = GrowthLines()
    (line,) = said(lines, *news)
    assert line.startswith("memory grows by 100 MiB per step since step 1 (30 tensors so far), ")
    assert line.endswith("list `history` (8 items), local `history` of train() (train.py:9)")
    assert said(lines, growth(3, 500 * MIB, held(*HISTORY, *GRAPH))) == []


def test_the_finding_of_a_line_is_that_of_the_largest():
    small, large = growth(0, MIB, held(*HISTORY)), growth(1, 9 * MIB, held(*HISTORY, *GRAPH))
    ((finding, _),) = GrowthLines().of([small, large])
    assert finding is large.finding


def test_what_nobody_was_found_to_hold_is_told_beside_what_is_held():
    news = [growth(0, 30 * MIB, held(*HISTORY)), growth(1, 60 * MIB), growth(2, 10 * MIB)]
    lines = GrowthLines()
    assert said(lines, *news) == [
        (
            "memory grows by 100 MiB per step since step 2 (30 tensors so far), 30 MiB of it held by "
            "list `history` (8 items), local `history` of train() (train.py:9)"
        )
    ]
    assert said(lines, growth(3, 80 * MIB)) == []


def test_without_any_holder_there_is_one_line_until_one_is_found():
    lines = GrowthLines()
    assert said(lines, growth(0, 3 * MIB), growth(1, MIB)) == [
        "memory grows by 4 MiB per step since step 2 (20 tensors so far)"
    ]
    assert said(lines, growth(2, 2 * MIB)) == []
    (line,) = said(lines, growth(3, 2 * MIB, held(*CACHE)))
    assert line.startswith("memory grows by 2 MiB per step since step 2 (10 tensors so far), held")


def test_two_holders_have_a_line_each_the_larger_one_first():
    first, second = said(
        GrowthLines(), growth(0, 2 * MIB, held(*CACHE)), growth(1, 5 * MIB, held(*HISTORY))
    )
    assert "grows by 5 MiB" in first
    assert "grows by 2 MiB" in second


def test_crumbs_beside_what_grows_have_no_line_until_they_are_more():
    lines = GrowthLines()
    (line,) = said(lines, growth(0, 100 * MIB, held(*HISTORY)), growth(1, 9 * MIB, held(*CACHE)))
    assert "history" in line
    assert lines.covers(growth(0, 100 * MIB, held(*HISTORY)))
    assert not lines.covers(growth(1, 9 * MIB, held(*CACHE)))  # so it is asked about again
    assert said(lines, growth(1, 9 * MIB, held(*CACHE))) == []
    (line,) = said(lines, growth(1, 30 * MIB, held(*CACHE)))
    assert "cache" in line


def test_each_device_has_lines_of_its_own():
    lines = GrowthLines()
    assert len(said(lines, growth(0, 100 * MIB), growth(0, MIB, device="cpu"))) == 2


def test_what_comes_to_less_than_a_mib_in_a_thousand_steps_has_no_line():
    """A loss takes 512 bytes on a card, and an episode's log-probabilities small graphs."""
    lines = GrowthLines()
    assert said(lines, growth(0, 512, held(*HISTORY))) == []
    assert said(lines, growth(1, 900, held(*CACHE, *GRAPH))) == []
    assert said(lines, growth(2, 900)) == []
    assert len(said(lines, growth(0, 1024, held(*HISTORY)))) == 1
    assert len(said(lines, growth(1, 1024, held(*CACHE, *GRAPH)))) == 1
