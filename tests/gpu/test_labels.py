"""Whose allocations these are on a GPU: phases, modules, streams, pools."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.record.process import is_dry_run  # noqa: E402
from memprof.trace import Action, Phase  # noqa: E402
from tests.gpu.devices import recorded  # noqa: E402
from tests.gpu.nets import WIDTH, Net  # noqa: E402
from tests.gpu.patience import LONG_S  # noqa: E402

WEIGHT = 4 * WIDTH * WIDTH


def trained(model, optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.ones(32, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        memprof.step()


def made_in(path):
    """(bytes, label) of every allocation of the first window."""
    window = recorded(load(path)).windows[0]
    rows = (window.events.action == Action.ALLOC).nonzero()[0]
    sizes, labels = window.events.size[rows].tolist(), window.events.label[rows].tolist()
    return [(size, window.label(row)) for size, row in zip(sizes, labels, strict=True)]


def test_gradients_are_made_in_the_backward_pass_and_state_by_the_optimizer(tmp_path, sources):
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        trained(model, optimizer)
    made = made_in(tmp_path / "run.json")
    assert {label.phase for _, label in made} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    first = [label for size, label in made if size == WEIGHT and label.step == 0]
    by_phase = {phase: sum(label.phase is phase for label in first) for phase in Phase}
    assert by_phase[Phase.BACKWARD] >= 2  # a gradient each
    assert by_phase[Phase.OPTIMIZER] >= 4  # two moments each
    assert by_phase[Phase.FORWARD] == 0


def test_what_a_backward_pass_makes_has_the_line_that_asked_for_it(tmp_path, sources):
    """It runs in a thread of autograd's, which has no Python frames."""
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        trained(model, optimizer)
    window = recorded(load(tmp_path / "run.json")).windows[0]
    made = (window.events.action == Action.ALLOC) & (window.events.size == WEIGHT)
    rows = [row for row in made.nonzero()[0] if window.stack(int(window.events.stack[row]))]
    assert len(rows) == made.sum() >= 6  # two weights, three steps
    for row in rows:
        assert window.label(int(window.events.label[row])).phase is Phase.BACKWARD
        own = [f for f in window.stack(int(window.events.stack[row])) if f.filename == __file__]
        assert [frame.name for frame in own] == [
            "trained",
            "test_what_a_backward_pass_makes_has_the_line_that_asked_for_it",
        ]


def test_activations_bear_the_path_of_their_module(tmp_path, sources):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        trained(model, optimizer)
    activation = 4 * 32 * WIDTH
    made = [(s, x) for s, x in made_in(tmp_path / "run.json") if x.step == 1]
    forward = [x.module for s, x in made if s == activation and x.phase is Phase.FORWARD]
    assert [path for path in forward if path] == ["Net.first", "Net", "Net.second"]
    backward = {x.module for s, x in made if s == WEIGHT and x.phase is Phase.BACKWARD}
    assert backward == {"Net.first", "Net.second"}


def test_metadata_that_the_program_gives_to_torch_is_the_annotation(tmp_path, sources):
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        pytest.skip("this torch has no metadata of allocations")
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        torch.cuda.memory._set_memory_metadata("theirs")
        kept = torch.empty(12345, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._set_memory_metadata("")
        memprof.step()
    labels = [x for s, x in made_in(tmp_path / "run.json") if s == kept.nbytes]
    assert [label.annotation for label in labels] == ["theirs"]


def test_blocks_of_every_stream_are_recorded(tmp_path, sources):
    side = torch.cuda.Stream()
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        with torch.cuda.stream(side):
            kept = torch.ones(1 << 20, device="cuda")
        memprof.step()
    window = recorded(load(tmp_path / "run.json")).windows[0]
    row = window.events.address.tolist().index(kept.data_ptr())
    assert window.events.stream[row] == side.cuda_stream


def test_a_captured_graph_replays_as_before_and_its_pool_is_in_the_state(tmp_path, sources):
    graph, static = torch.cuda.CUDAGraph(), torch.ones(256, 256, device="cuda")
    wanted = static @ static  # cuBLAS is ready when the capture begins
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        with torch.cuda.graph(graph):
            out = static @ static
        graph.replay()
        memprof.step()
    reserved = torch.cuda.memory_reserved()  # comparing takes memory, too
    if not is_dry_run():
        assert torch.equal(out, wanted)
    run = load(tmp_path / "run.json")
    assert run.footer.status == "ok"
    window = recorded(run).windows[0]
    pools = {window.tables.pools[int(row)] for row in window.end.segments.pool}
    assert len(pools - {(0, 0)}) >= 1
    assert window.end.reserved == reserved


def test_a_second_device_is_recorded_from_its_first_byte(tmp_path, sources):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    torch.ones(1, device="cuda:0")
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        kept = torch.ones(1 << 20, device="cuda:1")
        memprof.step()
        memprof.step()
    device = load(tmp_path / "run.json").device("cuda:1")
    assert kept.data_ptr() in device.windows[0].events.address.tolist()


def test_what_another_thread_makes_beside_the_forward_pass_is_no_modules(tmp_path, sources):
    """A loader that brings batches to the device while the model runs."""
    asked, brought = threading.Event(), threading.Event()
    batch = 4 * 777 * 512

    def bring(batches: int) -> None:
        for _ in range(batches):
            asked.wait()
            asked.clear()
            here.append(torch.empty(batch // 4, device="cuda"))
            brought.set()

    class Waiting(torch.nn.Module):
        def forward(self, x):
            asked.set()
            brought.wait()
            brought.clear()
            here.pop()
            return x.relu()

    here: list[torch.Tensor] = []
    model = torch.nn.Sequential(Net(), Waiting()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        loader = threading.Thread(target=bring, args=(3,))
        loader.start()
        trained(model, optimizer)
        loader.join()
    labels = [label for size, label in made_in(tmp_path / "run.json") if size == batch]
    assert [(x.step, x.phase, x.module) for x in labels] == [(n, Phase.OTHER, "") for n in range(3)]


def test_the_loop_may_run_in_a_thread_of_its_own(tmp_path, sources):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = threading.Thread(target=trained, args=(model, optimizer))
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        loop.start()
        loop.join()
    activation = 4 * 32 * WIDTH
    made = [(s, x) for s, x in made_in(tmp_path / "run.json") if x.step == 1]
    forward = [x.module for s, x in made if s == activation and x.phase is Phase.FORWARD]
    assert [path for path in forward if path] == ["Net.first", "Net", "Net.second"]


def test_entries_of_torchs_recorder_bear_the_time_of_our_clock():
    """Labels are put to entries by it, so where clocks run apart labels are wrong."""
    spans = []
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000)
    try:
        for number in range(2000):
            began_us = time.time_ns() / 1000
            torch.empty(1000 + number, dtype=torch.uint8, device="cuda")
            spans.append((began_us, time.time_ns() / 1000))
        ring = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(None)
    times_us = [entry["time_us"] for entry in ring if entry["action"] == "alloc"]
    off_us = sorted(
        max(began_us - time_us, time_us - ended_us, 0.0)
        for time_us, (began_us, ended_us) in zip(times_us, spans, strict=True)
    )
    print(
        f"off by {off_us[1000]:.1f} µs at the median, {off_us[-20]:.1f} µs at the 99th percentile"
    )
    assert off_us[-20] < 20


def test_a_thread_has_no_label_of_an_earlier_recording(tmp_path, sources):
    model = Net().cuda()

    def call():
        with torch.no_grad():
            model(torch.ones(32, WIDTH, device="cuda"))

    with ThreadPoolExecutor(1) as pool:
        with memprof.track(tmp_path / "first.json", sources=sources, allowance_s=LONG_S):
            for _ in range(12):  # rows of labels that the next recording does not have
                pool.submit(call).result()
                memprof.step()
        with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
            pool.submit(torch.empty, 7 << 20, dtype=torch.uint8, device="cuda").result()
            memprof.step()
    made = [label for size, label in made_in(tmp_path / "run.json") if size == 7 << 20]
    assert [(label.step, label.module) for label in made] == [(0, "")]
