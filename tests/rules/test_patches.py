"""Every patch that memprof can offer is applied to a program, and the program runs again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("programs are forked", allow_module_level=True)

from memprof import load
from memprof.rules.finding import Kind, Remedy, RuleFinding
from memprof.rules.fixes import PATCHED
from memprof.rules.ranked_findings import findings
from memprof.views.examination import examine
from tests import forks
from tests.programs.patchable import LEAKS, WASTE, program

pytest.importorskip("torch", reason="the programs that are patched train with torch")


def beside(name):
    """A module in this folder that is no test."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


offers, patched = beside("offers"), beside("diffs").patched

PEAKS: dict[Path, int] = {}
"""The peak after warm-up of every run."""

ELSEWHERE = {"drop_empty_cache/cache-emptied", "map_location_cpu/loaded"}
"""Only a GPU's allocator shows these: they are tested in `test_device_patches`."""

LEFT = {
    "clone_view/advice_on_view": 0.02,
    "clone_view/advice_on_view/tuple": 0.02,
    "detach/kept-graph": 0.01,
    "detach/kept-graph/stacked": 0.01,
    "detach/kept-graph/called": 0.01,
    "no_grad/no-backward": 0.01,
}
"""Share of the growth that is meant to stay: the clones, the losses without their graphs."""

GROWTH = (Kind.LEAK, Kind.CYCLE)
CASES = (*WASTE, *LEAKS)

RECORD = """
import gc, importlib.util, sys
from tests.unhurried import lift_limits
lift_limits()
path = sys.argv[1]
spec = importlib.util.spec_from_file_location(path.rsplit("/", 1)[-1][:-3], path)
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
gc.disable()  # when it would run is a matter of chance
module.main(path[:-3] + ".json")
"""


def record(folder: Path, sources: dict[str, str]) -> dict[str, tuple[RuleFinding, ...]]:
    paths = {case: folder / f"job_{_stem(case)}.py" for case in sources}
    for case, source in sources.items():
        paths[case].write_text(source)
        # Each program in a process of its own: nothing of one is in another's peak.
        done = forks.run(RECORD, paths[case], MEMPROF_NATIVE="0")
        assert done.returncode == 0, f"{case}: {done.stderr}"
    return {case: _examined(path.with_suffix(".json")) for case, path in paths.items()}


def _examined(path: Path) -> tuple[RuleFinding, ...]:
    run = load(path)
    examination = examine(run)
    device = examination.devices[0]
    PEAKS[path] = device.windows[0].peak.bytes
    return findings(run, examination)


@pytest.fixture(scope="module")
def rules():
    """Which rule made a patch, while a finding is advised on."""
    with offers.watched() as seen:
        yield seen


@pytest.fixture(scope="module")
def before(tmp_path_factory, rules):
    return record(tmp_path_factory.mktemp("before"), {case: program(case) for case in CASES})


@pytest.fixture(scope="module")
def after(tmp_path_factory, before, rules):
    sources = {}
    for case in CASES:
        offered = remedy(before, case, rules)
        if offered is not None:
            sources[case] = patched(program(case), offered.patch)
    return record(tmp_path_factory.mktemp("after"), sources)


def remedy(before: dict[str, tuple[RuleFinding, ...]], case: str, rules: dict) -> Remedy | None:
    """The remedy of that fix whose patch that rule made."""
    fix, rule, *_ = case.split("/")
    offered = [r for one in before[case] for r in one.remedies if r.fix == fix and r.patch]
    return next((r for r in offered if rules[fix, r.patch] == rule), None)


def test_every_case_in_which_a_patch_is_offered_is_run_again_after_it():
    tested = {"/".join(case.split("/")[:2]) for case in CASES} | ELSEWHERE
    assert tested == {f"{fix}/{rule}" for fix, rule in offers.offered()}


def test_the_documentation_lists_every_fix_that_may_come_with_a_patch():
    page = Path(__file__).resolve().parents[2] / "docs" / "fixes" / "README.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    listed = [line.split("`")[1] for line in rows]
    assert sorted(listed) == sorted({fix for fix, _ in offers.offered()}) == sorted(PATCHED)


@pytest.mark.slow
@pytest.mark.parametrize("case", LEAKS)
def test_after_the_patch_nothing_grows(case, before, after):
    assert case in after, "no patch was offered"
    grew = sum(one.bytes_per_step for one in before[case] if one.kind in GROWTH)
    grows = sum(one.bytes_per_step for one in after[case] if one.kind in GROWTH)
    assert grew > 0
    assert grows <= LEFT.get(case, 0.0) * grew


@pytest.mark.slow
@pytest.mark.parametrize("case", WASTE)
def test_after_the_patch_the_waste_is_not_there(case, before, after):
    assert case in after, "no patch was offered"
    patterns = _patterns(before[case], case.split("/")[0])
    assert patterns
    assert not patterns & {one.rule for one in after[case]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "set_to_none/held-gradients",
        "foreach_false/optimizer-temporaries",
        "disable_autocast_cache/uncached",
        "no_grad/evaluation-graph",
        "freeze_params/frozen-by-attribute",
        "bucket_view/buckets",
    ],
)
def test_the_peak_after_the_patch_is_what_the_replay_promised(case, before, after, rules):
    offered = remedy(before, case, rules)
    assert case in after
    assert offered.peak_after < offered.peak_before
    promised = offered.peak_before - offered.peak_after
    assert offered.saves_bytes == promised
    peaks = [nbytes for path, nbytes in PEAKS.items() if path.stem == f"job_{_stem(case)}"]
    assert peaks[0] == offered.peak_before
    assert promised == pytest.approx(peaks[0] - peaks[1], rel=0.15)


def _stem(case: str) -> str:
    return case.replace("/", "_")


def _patterns(found: tuple[RuleFinding, ...], fix: str) -> set[object]:
    return {one.rule for one in found if any(r.fix == fix and r.patch for r in one.remedies)}
