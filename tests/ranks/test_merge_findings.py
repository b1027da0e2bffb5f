"""Findings of several ranks as one."""

from __future__ import annotations

from memprof.ranks.merge_findings import merge
from memprof.records import Holder, Site
from memprof.reference_chain import Link
from memprof.rules.finding import Kind, Remedy, RuleFinding

LINE = Site("/job/train.py", 31, "step", "kept.append(loss)")


def leak(bytes_: int, site: Site = LINE, **fields: object) -> RuleFinding:
    return RuleFinding(Kind.LEAK, "cuda:0", site, f"{bytes_} a step", bytes_per_step=bytes_, bytes=10 * bytes_, **fields)  # type: ignore[arg-type]  # fmt: skip


def waste(line: int, bytes_: int, device: str = "cuda:0") -> RuleFinding:
    return RuleFinding(Kind.WASTE, device, Site("/job/m.py", line), f"{bytes_} wasted", bytes=bytes_, confidence=0.8)  # fmt: skip


def test_the_same_line_is_one_finding_with_its_bytes_in_sum():
    remedy = Remedy("item", "take the number", "/job/train.py", 31)
    found = {"rank 0": [leak(5)], "rank 1": [leak(7, remedies=(remedy,))], "rank 2": [leak(6)]}
    (one,) = merge(found)
    assert (one.kind, one.ranks) == ("leak", ("rank 0", "rank 1", "rank 2"))
    assert (one.bytes, one.bytes_per_step) == (180, 18)
    assert (one.title, one.largest_at) == ("7 a step", "rank 1")
    assert (one.fix, one.why, one.fix_line, one.site) == ("item", "take the number", 31, LINE)


def test_the_number_of_the_device_does_not_part_them():
    (one,) = merge({"rank 0": [waste(1, 5, "cuda:0")], "rank 1": [waste(1, 5, "cuda:1")]})
    assert one.ranks == ("rank 0", "rank 1")


def test_another_line_or_kind_is_another_finding():
    found = merge({"rank 0": [leak(5), leak(4, Site("/job/train.py", 32)), waste(31, 1)]})
    assert [(one.kind, one.bytes) for one in found] == [("leak", 50), ("leak", 40), ("waste", 1)]


def test_without_a_line_the_holder_tells_them_apart_and_not_its_length():
    def held(name: str, length: int) -> RuleFinding:
        links = [Link("global", name, "train"), Link("item", "", "list", length=length)]
        return leak(5, Site(), holders=(Holder("item", links=links),))

    found = merge({"rank 0": [held("seen", 9)], "rank 1": [held("seen", 12), held("other", 3)]})
    assert [(one.holder, one.ranks) for one in found] == [
        ("list `seen` (9 items), global `seen` of train", ("rank 0", "rank 1")),
        ("list `other` (3 items), global `other` of train", ("rank 1",)),
    ]


def test_what_grows_comes_first_then_what_most_ranks_have_then_as_in_a_single_run():
    found = {
        "rank 0": [waste(1, 9), waste(2, 8)],
        "rank 1": [waste(2, 8), waste(3, 7)],
        "rank 2": [leak(1)],
    }
    assert [(one.kind, one.site.line) for one in merge(found)] == [
        ("leak", 31),
        ("waste", 2),
        ("waste", 1),
        ("waste", 3),
    ]


def test_nothing_found_is_nothing():
    assert merge({}) == merge({"rank 0": []}) == ()
