"""Real failures of four kinds on a GPU, each explained as what it is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.analysis.oom import Cause, post_mortems  # noqa: E402
from memprof.loading import load  # noqa: E402

MIB = 1 << 20
ROOM = 2048 * MIB
"""What the job may hold, by a fraction: filling a whole card takes long and disturbs others."""


@pytest.fixture
def little_room():
    """This process may hold 2 GiB; its cache is empty before and after."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(ROOM / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def explained(path, job):
    def tracked():
        with memprof.track(path, sources=("cuda", "nvml")):
            job()

    with pytest.raises(torch.OutOfMemoryError):
        tracked()
    (told,) = post_mortems(load(path))
    assert told.failure.recorded == "event"
    assert "job" in told.asked_by
    return told


def floats(mib):
    return torch.empty(mib * MIB // 4, device="cuda")


def causes(told):
    return {weight.cause for weight in told.weights if weight.enough}


def test_a_leak_is_a_leak(tmp_path, little_room):
    def job():
        kept = []
        for _ in range(1000):
            kept.append(floats(64))
            memprof.step()

    assert Cause.LEAK in causes(explained(tmp_path / "run.json", job))


def test_the_peak_of_one_step_is_no_leak_and_no_fragmentation(tmp_path, little_room):
    def job():
        kept = [floats(256) for _ in range(100)]
        del kept

    found = causes(explained(tmp_path / "run.json", job))
    assert not found & {Cause.LEAK, Cause.FRAGMENTATION}


def test_fragmentation_is_fragmentation(tmp_path, little_room):
    def job():
        whole = [floats(18) for _ in range(90)]  # segments that a small remainder pins
        small = [floats(2) for _ in range(90)]
        del whole
        floats(1024)
        del small

    told = explained(tmp_path / "run.json", job)
    if told.failure.unused < 1024 * MIB:
        pytest.skip("this torch laid the small blocks out elsewhere: nothing is fragmented")
    assert told.cause is Cause.FRAGMENTATION


def test_a_limit_is_told_as_what_kept_the_memory_away(tmp_path, little_room):
    def job():
        floats(4096)

    told = explained(tmp_path / "run.json", job)
    assert Cause.LIMIT in causes(told)
    assert any(rescue.kind == "limit" and rescue.fits for rescue in told.rescues.tried)


def test_a_search_for_the_batch_size_has_a_record_of_each_failure(tmp_path, little_room):
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        for mib in (8192, 4096, 512):
            try:
                floats(mib)
            except torch.OutOfMemoryError:
                continue
    found = [f for f in load(tmp_path / "run.json").findings if f.finding == "oom"]
    assert len(found) == 2
    assert found[0].details["device_total"] > ROOM
