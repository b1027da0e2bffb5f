"""The verdict over a job's ranks, the next command, and numbers of ranks as text."""

from __future__ import annotations

import pytest

from memprof.ranks.figures import RankFigures, deviations
from memprof.ranks.merge_findings import SharedFinding
from memprof.ranks.report import (
    JudgedRank,
    format_measure,
    format_ranks,
    format_share,
    job_verdict,
    next_command,
)
from memprof.records import Site
from memprof.report.summary import Verdict
from tests.ranks.test_figures import GIB, MIB, ranks


def found(kind: str = "leak", rate: float = 4096.0, confidence: float = 0.9) -> SharedFinding:
    return SharedFinding(
        kind, "grows by 4 KiB per step: list `kept`", "cuda:0",
        Site("/home/u/job/train.py", 31, "step", "kept.append(loss)"), "list `kept`", "item", "take the number",
        "/home/u/job/train.py", 31, confidence, ("rank 0", "rank 1"), "rank 1", 90, rate,
    )  # fmt: skip


def verdict(given: list[RankFigures], *ones: SharedFinding) -> tuple[Verdict, str]:
    deviating = deviations(given)
    judged = [JudgedRank(rank.name, rank.file, "") for rank in given[:3]]
    return job_verdict(given, deviating, ones, judged), next_command(given, deviating, ones)


def test_memory_that_ran_out_is_the_verdict_before_all_else():
    given = ranks(
        10,
        ooms={4: 1, 7: 2, 8: 1},
        ended_us={4: 6, 7: 4},
        ended=dict.fromkeys((4, 7), "failed"),
        peak_allocated_bytes={7: 79 * GIB},
    )
    said, command = verdict(given, found())
    assert said == Verdict(
        "oom",
        "3 of 10 ranks ran out of memory: 4, 7, 8; rank 7 first",
        "rank 7's peak was 79 GiB of 80 GiB on cuda:0, in 100 steps; the median of all is 40 GiB",
        "`memprof oom run.rank7.json` says why",
    )
    assert command == "memprof oom run.rank7.json"


def test_one_that_ran_out_alone_is_said_to_be_the_only_one():
    said, _ = verdict(ranks(5, ooms={2: 1}, peak_allocated_bytes={2: -1}))
    assert said.line == "rank 2 ran out of memory, the only one of 5 ranks"
    assert said.why == "what it held is not in the file"


def test_a_leak_comes_before_a_failure_and_tells_its_fix_and_how_many_ranks_rise():
    rates = dict.fromkeys(range(8), 4096.0)
    given = ranks(10, bytes_per_step=rates, rising=dict.fromkeys(rates, 1.0), ended={2: "failed"})
    said, command = verdict(given, found())
    assert said == Verdict(
        "leak",
        "grows by 4 KiB per step: list `kept`; on 2 of 3 judged",
        "made at job/train.py:31: `kept.append(loss)`; allocated bytes rise on 8 of 10 ranks, by 4 KiB per step",
        "item: take the number",
    )
    assert command == "memprof leaks run.rank1.json"


def test_ranks_that_fill_up_are_told_while_they_may_run_the_first_to_be_full_before_others():
    left = {2: 7_200_000_000, 5: 600_000_000}
    given = ranks(
        8,
        ended=dict.fromkeys(range(8), "cut off"),
        full_left_us=left,
        full_step={2: 9000, 5: 1200},
        bytes_per_step=dict.fromkeys(left, 4.0 * MIB),
    )
    said, command = verdict(given)
    assert said == Verdict(
        "leak",
        "2 of 8 ranks run out of memory; rank 5 first, at about step 1,200, in 10 min from its last step",
        "allocated bytes rise by 4 MiB per step on cuda:0",
        "`memprof leaks run.rank5.json`",
    )
    assert command == "memprof leaks run.rank5.json"
    alone, _ = verdict(ranks(8, ended={2: "cut off"}, full_step={2: 9000}))
    assert alone.line == "rank 2 runs out of memory at about step 9,000"
    ended, _ = verdict(ranks(8, full_left_us=left, full_step={2: 9000, 5: 1200}))
    assert ended.level == "ok"


def test_a_failure_comes_before_outliers_and_the_first_one_is_named():
    given = ranks(
        9,
        ended={3: "failed", 5: "failed"},
        status={3: "RuntimeError: peer gone", 5: "ValueError: bad batch"},
        ended_us={5: 4},
        steps={5: 1},
        peak_allocated_bytes={1: 70 * GIB},
    )
    said, command = verdict(given)
    assert said == Verdict(
        "failed",
        "2 of 9 ranks failed; rank 5 first, after 1 step",
        "ValueError: bad batch",
        "`memprof report run.rank5.json`",
    )
    assert command == "memprof report run.rank5.json"


def test_ranks_that_differ_come_before_waste():
    reserved = dict.fromkeys((5, 6), 71 * GIB)
    given = ranks(
        20,
        peak_allocated_bytes={5: 70 * GIB - MIB, 6: 70 * GIB},
        peak_reserved_bytes=reserved,
        outside_bytes={7: 4 * GIB},
    )
    said, command = verdict(given, found("waste", 0.0))
    assert said == Verdict(
        "outlier",
        "2 of 20 ranks differ from the rest in peak allocated: 5, 6",
        "peak allocated is 70 GiB on rank 6, the median 40 GiB; some differ in outside torch",
        "`memprof report run.rank6.json`",
    )
    assert command == "memprof report run.rank6.json"


@pytest.mark.parametrize(("kind", "level"), [("waste", "waste"), ("fragmentation", "fragmentation")])  # fmt: skip
def test_waste_is_the_verdict_where_nothing_is_worse_and_it_is_sure(kind, level):
    assert verdict(ranks(4), found(kind, 0.0))[0].level == level
    assert verdict(ranks(4), found(kind, 0.0, confidence=0.4))[0].level == "ok"


def test_nothing_wrong_is_ok_with_the_highest_peak():
    said, command = verdict(ranks(12, peak_allocated_bytes={5: 40 * GIB + MIB}))
    assert said.level == "ok"
    assert said.line == "peak 40.0 GiB on rank 5; no rank differs"
    assert said.why == "nothing was found on the 3 ranks judged"
    assert command == "memprof report run.rank5.json"


def test_growth_without_a_line_is_told():
    rates = dict.fromkeys(range(12), 4096.0)
    said, _ = verdict(ranks(12, bytes_per_step=rates, rising=dict.fromkeys(rates, 1.0)))
    assert said.why == (
        "allocated bytes rise on 12 of 12 ranks, by 4 KiB per step, yet no single line keeps growing on those judged"
    )


def test_nothing_measured_is_no_data_and_never_ok():
    none = dict.fromkeys(range(3), -1)
    said, _ = verdict(ranks(3, peak_allocated_bytes=none, peak_reserved_bytes=none))
    assert said.level == "no data"


def test_a_name_with_spaces_can_be_typed():
    given = ranks(3, file={1: "my run/run.rank1.json"}, ooms={1: 1})
    assert verdict(given)[1] == "memprof oom 'my run/run.rank1.json'"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([5], "5"),
        ([3, 2], "2, 3"),
        ([9, 7, 8], "7–9"),
        ([0, 2, 4, 6, 8, 10], "0, 2, 4, 6 and 2 more"),
        (list(range(1000)), "0–999"),
        ([0, 2, 4, 6, *range(8, 108)], "0, 2, 4, 6 and 100 more"),
    ],
)
def test_ranks_are_told_in_stretches_and_cut(given, text):
    assert format_ranks(given) == text


def test_recordings_without_a_rank_are_told_by_their_files():
    given = ranks(6, rank=dict.fromkeys(range(6), -1))
    assert format_ranks(given[:2]) == "run.rank0.json, run.rank1.json"
    assert format_ranks(given).endswith("run.rank3.json and 2 more")


def test_measures_are_told_with_their_units():
    assert format_measure(62.1 * GIB, "bytes") == "62.1 GiB"
    assert format_measure(-2048.4, "bytes per step") == "-2 KiB per step"
    assert format_measure(310_000, "us") == "310 ms"


def test_how_many_of_the_judged_have_a_finding():
    assert format_share(("rank 3",), 1) == "on rank 3"
    assert format_share(("rank 3",), 6) == "on rank 3 alone of 6 judged"
    assert format_share(("rank 3", "rank 4"), 6) == "on 2 of 6 judged"
    assert format_share(("rank 3", "rank 4"), 2) == "on all 2 judged"
