"""The program records memory history too, on a GPU: in any order, theirs goes on and is shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.trace import Action  # noqa: E402
from tests.gpu.devices import recorded  # noqa: E402
from tests.gpu.patience import LONG_S  # noqa: E402

SIZES = (3 << 20, 5 << 20, 7 << 20)


@pytest.fixture(autouse=True)
def recorder_is_off() -> Iterator[None]:
    """Before and after: what a test turns on does not reach the next."""
    torch.zeros(1, device="cuda")
    torch.cuda.memory._record_memory_history(None)
    yield
    torch.cuda.memory._record_memory_history(None)


def use(size: int) -> None:
    """A tensor of so many bytes comes and goes."""
    torch.empty(size, dtype=torch.uint8, device="cuda")


def theirs(*args, **kwargs) -> None:
    torch.cuda.memory._record_memory_history(*args, **kwargs)


def sizes_in(run) -> list[int]:
    found = []
    for window in recorded(run).windows:
        made = window.events.size[window.events.action == Action.ALLOC].tolist()
        found += [size for size in made if size in SIZES]
    return found


def sizes_of_theirs() -> list[int]:
    ring = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    return [e["size"] for e in ring if e["action"] == "alloc" and e["size"] in SIZES]


@pytest.mark.parametrize("stacks", ["python", "all"])
@pytest.mark.parametrize("context", ["state", "alloc", "all"])
def test_a_history_that_runs_already_is_shared_and_goes_on(
    tmp_path, sources, stacks, context, monkeypatch
):
    # All that this process did before may be in a history whose length torch does not tell.
    monkeypatch.setattr("memprof.sources.cuda.memory_history.THEIR_ROW_US", 0.1)
    theirs("all", context=context, stacks=stacks, max_entries=1000)
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        for size in SIZES[:2]:
            use(size)
            memprof.step()
    assert torch._C._cuda_isHistoryEnabled()
    use(SIZES[2])
    assert sizes_of_theirs() == list(SIZES)
    run = load(tmp_path / "run.json")
    assert "is shared" in " ".join(note.message for note in run.notes)
    assert sizes_in(run) == list(SIZES[:2])


def test_a_history_that_starts_and_stops_in_a_window_leaves_no_gap(tmp_path, sources):
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        use(SIZES[0])
        theirs("all", max_entries=1000)
        use(SIZES[1])
        assert sizes_of_theirs() == [SIZES[1]]
        theirs(None)
        use(SIZES[2])
        memprof.step()
    assert not torch._C._cuda_isHistoryEnabled()
    run = load(tmp_path / "run.json")
    assert sizes_in(run) == list(SIZES)
    assert len(recorded(run).windows) == 1


def test_a_dump_in_the_middle_changes_nothing(tmp_path, sources):
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        use(SIZES[0])
        torch.cuda.memory._dump_snapshot(str(tmp_path / "theirs.pickle"))
        use(SIZES[1])
        memprof.step()
    assert sizes_in(load(tmp_path / "run.json")) == list(SIZES[:2])


def test_a_ring_that_is_cleared_after_long_looks_loses_nothing(tmp_path, sources, monkeypatch):
    # As long whatever machine this is: a ring is shortened where looks are measured to be slow, and
    # a step of three thousand entries must stay within the half of it that is read in time.
    monkeypatch.setattr("memprof.sources.cuda.memory_history.ROW_US", 30.0)
    monkeypatch.setattr(
        "memprof.sources.cuda.read_budget.ReadCost.add_measurement", lambda *_args: None
    )
    count = 20_000
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        for _ in range(20):
            for _ in range(count // 20):
                use(SIZES[0])
            memprof.step()
    run = load(tmp_path / "run.json")
    # Whether a driver answers, and what is not watched beside CUDA, are other matters.
    assert [note.message for note in run.notes if note.source == "cuda"] == []
    assert len(sizes_in(run)) == count
