"""Real failures of four kinds on a GPU, each explained as what it is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.oom.post_mortem import OomCause, post_mortems  # noqa: E402
from memprof.record.options import SOURCES  # noqa: E402
from memprof.record.process import is_dry_run  # noqa: E402
from memprof.trace import Phase  # noqa: E402
from tests.gpu.patience import LONG_S  # noqa: E402

MIB = 1 << 20
ROOM = 2048 * MIB
"""What the job may add, by a fraction: filling a whole card takes long and disturbs others."""


@pytest.fixture
def little_room():
    """This process may take 2 GiB more than what stays of earlier tests, such as workspaces."""
    gc.collect()  # the frames of an earlier failure
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((held + ROOM) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def failed(path, sources, job):
    """The post-mortem of a job that runs out of memory."""

    def tracked():
        with memprof.track(path, sources=sources, allowance_s=LONG_S):
            job()

    with pytest.raises(torch.OutOfMemoryError):
        tracked()
    (told,) = post_mortems(load(path))
    return told


def explained(path, sources, job):
    """The same of a job that makes its tensors in `floats`."""
    told = failed(path, sources, job)
    assert told.failure.recorded == "event"
    assert told.asked_by.endswith("in floats")
    return told


def floats(mib):
    return torch.empty(mib * MIB // 4, device="cuda")


def causes(told):
    return {weight.cause for weight in told.weights if weight.enough}


def test_a_leak_is_a_leak(tmp_path, sources, little_room):
    def job():
        kept = []
        for _ in range(1000):
            kept.append(floats(64))
            memprof.step()

    assert OomCause.LEAK in causes(explained(tmp_path / "run.json", sources, job))


def test_the_peak_of_one_step_is_no_leak_and_no_fragmentation(tmp_path, sources, little_room):
    def job():
        kept = [floats(256) for _ in range(100)]
        del kept

    found = causes(explained(tmp_path / "run.json", sources, job))
    assert not found & {OomCause.LEAK, OomCause.FRAGMENTATION}


def test_fragmentation_is_fragmentation(tmp_path, sources, little_room):
    def job():
        large, small = [], []
        for _ in range(90):  # each segment of 20 MiB is pinned by the 2 MiB at its end
            large += [floats(9), floats(9)]
            small.append(floats(2))
        large.clear()
        floats(1024)

    told = explained(tmp_path / "run.json", sources, job)
    assert told.cause is OomCause.FRAGMENTATION
    assert told.failure.unused >= 1024 * MIB
    assert any(rescue.kind == "settings" and rescue.fits for rescue in told.rescues.tried)


@pytest.mark.parametrize("max_events", [2_000_000, 0])
def test_a_library_that_cannot_allocate_is_named_with_what_torch_kept_from_it(
    tmp_path, little_room, max_events
):
    text = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"

    def job():
        kept = floats(300)
        unused = floats(700)
        del unused
        memprof.step()
        raise RuntimeError(text, kept.shape[0])

    def tracked():
        with memprof.track(tmp_path / "run.json", max_events=max_events, allowance_s=LONG_S):
            job()

    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED"):
        tracked()
    (told,) = post_mortems(load(tmp_path / "run.json"))
    assert told.failure.beside == "cuBLAS"
    assert told.failure.unused >= 700 * MIB
    assert told.cause in (OomCause.RESERVED, OomCause.OTHERS)
    assert told.asked_by.endswith("in job")
    lines = {group.name.rpartition(" in ")[2]: group.bytes for group in told.sites}
    assert max_events == 0 or lines["floats"] >= 300 * MIB


@pytest.mark.parametrize("sources", [("cuda", "nvml"), SOURCES])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_in_a_forward_pass_the_activations_are_named(
    tmp_path, little_room, sources, with_gradients
):
    class Big(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1024, 1024))

        def forward(self, x):
            return torch.relu(x @ self.weight)

    def train():
        model = torch.nn.Sequential(*[Big() for _ in range(5)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        kept = []
        for rows in (1000, 1000, 90_000):
            batch = torch.ones(rows, 1024, device="cuda")
            with torch.set_grad_enabled(with_gradients):
                outputs = batch
                for module in model:
                    outputs = module(outputs)
                    if not with_gradients:
                        kept.append(outputs)
            if with_gradients:
                outputs.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def tracked():
        with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
            train()

    with pytest.raises(torch.OutOfMemoryError):
        tracked()
    (told,) = post_mortems(load(tmp_path / "run.json"))
    held = {group.name: group.bytes for group in told.categories}
    if with_gradients:
        assert held["activation"] > 0.5 * told.failure.allocated
        assert held.get("unknown", 0) < 0.1 * told.failure.allocated
    else:
        assert "activation" not in held


def test_between_windows_the_cause_is_judged_by_blocks_and_counters(tmp_path, sources, little_room):
    def job():
        model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        kept = []
        for _ in range(10_000):
            model(torch.ones(4096, 2048, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(floats(2))  # so many steps that counters are looked at often enough

    def tracked():
        # No allowance is left for a window that opens as memory climbs, on no machine.
        with memprof.track(tmp_path / "run.json", sources=sources, budget=1e-9, allowance_s=0):
            job()

    with pytest.raises(torch.OutOfMemoryError):
        tracked()
    run = load(tmp_path / "run.json")
    (finding,) = (f for f in run.findings if f.finding == "oom")
    assert finding.details.get("moment") is True, finding.details
    (told,) = post_mortems(run)
    assert told.failure.between_windows
    assert OomCause.LEAK in causes(told)


def test_between_windows_what_graphs_keep_is_still_called_activations(tmp_path, little_room):
    def job():
        model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        history = []
        while True:
            loss = model(torch.ones(1024, 2048, device="cuda")).square().mean()
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
            history.append(loss)

    def tracked():
        with memprof.track(tmp_path / "run.json", max_events=4000, allowance_s=LONG_S):
            job()

    with pytest.raises(torch.OutOfMemoryError):
        tracked()
    (told,) = post_mortems(load(tmp_path / "run.json"))
    assert told.failure.between_windows
    held = {group.name: group.bytes for group in told.categories}
    # The steps after the last window are what is unknown.
    assert held["activation"] > 0.3 * told.failure.allocated
    assert held["parameter"] == 8 * (2048 + 1) * 2048 * 4


def test_a_failure_in_the_losss_backward_pass_is_one_and_names_its_activation(
    tmp_path, sources, little_room
):
    """Where a language model fails: the loss is made outside modules, autograd calls no line."""
    logits = 600 * MIB
    width = 1024
    rows = logits // (4 * width)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        y = model(torch.ones(width, device="cuda").expand(batch, -1))
        (y * y * 2).sum().backward()  # forward three of that size at once, backward four
        optimizer.step()
        optimizer.zero_grad()

    def job():
        for batch in (8, 8, rows):
            step(batch)

    told = failed(tmp_path / "run.json", sources, job)
    assert told.failure.recorded == "event"
    assert (told.failure.label.step, told.failure.label.phase) == (2, Phase.BACKWARD)
    by_category = {group.name: group.bytes for group in told.categories}
    assert by_category["activation"] >= logits  # y, which y * y saved
    assert by_category["temporary"] >= logits  # gradients on the way
    assert by_category.get("unknown", 0) < 100 * MIB  # workspaces of cuBLAS


@pytest.fixture
def other_process(monkeypatch):
    """Another process holds nine tenths of what is free on the device."""
    gc.collect()
    torch.cuda.empty_cache()
    if is_dry_run():
        free, _ = torch.cuda.mem_get_info()
        monkeypatch.setenv("MEMPROF_DRY_RUN_OTHER_BYTES", str(int(free * 0.9)))
        yield
        return
    hold = (
        "import sys, torch\n"
        "free, _ = torch.cuda.mem_get_info()\n"
        "kept = torch.empty(int(free * 0.9), dtype=torch.uint8, device='cuda')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        yield
        other.stdin.close()


@pytest.mark.usefixtures("other_process")
def test_memory_of_another_process_is_told_as_theirs(tmp_path, sources):
    asked = int(torch.cuda.get_device_properties(0).total_memory * 0.3) // MIB
    told = explained(tmp_path / "run.json", sources, lambda: floats(asked))
    assert told.cause is OomCause.OTHERS


def test_a_limit_is_told_as_what_kept_the_memory_away(tmp_path, sources, little_room):
    def job():
        floats(4096)

    told = explained(tmp_path / "run.json", sources, job)
    assert OomCause.LIMIT in causes(told)
    assert any(rescue.kind == "limit" and rescue.fits for rescue in told.rescues.tried)


def test_a_search_for_the_batch_size_has_a_record_of_each_failure(tmp_path, sources, little_room):
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        for mib in (8192, 4096, 512):
            try:
                floats(mib)
            except torch.OutOfMemoryError:
                continue
    run = load(tmp_path / "run.json")
    found = [f for f in run.findings if f.finding == "oom"]
    assert len(found) == 2
    assert run.footer.status == "ok"
    assert found[0].details["device_total"] > ROOM


BEYOND_A_RESERVE = """
import sys, torch, memprof
with memprof.track(sys.argv[1], sources=sys.argv[2:] or None):
    kept = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    torch.empty(1039 << 20, dtype=torch.uint8, device="cuda")  # 1 GiB in whole pages of 20 MiB
    try:
        torch.empty(2048 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
"""


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15),
    reason="needs a torch that has expandable_segments_reserve",
)
def test_a_request_beyond_the_reserve_of_its_segment_asks_for_no_larger_card(tmp_path, sources):
    setting = "expandable_segments:True,expandable_segments_reserve:1G"
    done = subprocess.run(
        [sys.executable, "-c", BEYOND_A_RESERVE, str(tmp_path / "run.json"), *(sources or ())],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "exceeds the expandable-segment reserve" in done.stdout
    (told,) = post_mortems(load(tmp_path / "run.json"))
    assert told.failure.requested == 2048 * MIB
    assert told.failure.free > told.failure.requested  # not the card's size was in the way
    assert told.cause is OomCause.LIMIT
    assert "expandable_segments_reserve lets a segment have 1 GiB" in told.why
    assert told.advice[0].startswith("an expandable_segments_reserve of at least 2 GiB")
    assert "card" not in {rescue.kind for rescue in told.rescues.fitting}
