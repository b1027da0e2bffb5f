"""Operators of other threads are seen as those of the recorded one, and nothing stays there."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils import _python_dispatch  # noqa: E402

import memprof  # noqa: E402
from memprof.trace import Action  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402

KIB = 1 << 10


@pytest.fixture
def recorder():
    it = CpuRecording()
    yield it
    it.close()
    assert it.loop_watch.notes() == []
    assert threading._profile_hook is None


def in_a_thread(work, name="prefetch_3"):
    kept = []
    thread = threading.Thread(target=lambda: kept.append(work()), name=name)
    thread.start()
    thread.join()
    return kept[0]


def made(chunk, interner):
    """Size, innermost function and annotation of every allocation."""
    tables, events = interner.tables(), chunk.events
    rows = (events.action == Action.ALLOC).nonzero()[0]
    return [
        (
            int(events.size[row]),
            next((frame.name for frame in tables.stack(int(events.stack[row]))), ""),
            tables.labels[int(events.label[row])].annotation,
        )
        for row in rows
    ]


def modes_here():
    return (
        _python_dispatch._len_torch_dispatch_stack_no_infra()
        if hasattr(_python_dispatch, "_len_torch_dispatch_stack_no_infra")
        else torch._C._len_torch_dispatch_stack()
    )


def test_what_a_thread_makes_has_its_stack_and_the_name_of_the_thread(recorder):
    def load_batch():
        return torch.ones(KIB)

    recorder.source.begin_window()
    kept = in_a_thread(load_batch)
    (chunk,) = recorder.source.drain()
    (one,) = [row for row in made(chunk, recorder.interner) if row[0] == 4 * KIB]
    assert one[1].endswith("load_batch")
    assert one[2] == "thread prefetch"
    assert recorder.source.counters()[0].allocated >= kept.nbytes
    recorder.source.end_window()
    assert recorder.source.notes() == []


def test_what_a_thread_drops_is_seen_to_go(recorder):
    recorder.source.begin_window()
    before = recorder.source.counters()[0].allocated
    in_a_thread(lambda: torch.ones(KIB).sum().item())
    counters = recorder.source.counters()[0]
    assert counters.allocated == before
    assert counters.peak_allocated >= before + 4 * KIB
    recorder.source.end_window()


def test_a_thread_that_was_there_before_is_seen_from_its_first_call_of_a_model(recorder):
    model = nn.Linear(KIB, 1)
    with ThreadPoolExecutor(1, thread_name_prefix="server") as pool:
        pool.submit(int).result()
        recorder.source.begin_window()

        def serve():
            with torch.no_grad():
                return model(torch.ones(KIB)), torch.ones(2 * KIB)

        kept = pool.submit(serve).result()
        (chunk,) = recorder.source.drain()
        assert kept[1].nbytes in [
            size for size, _, name in made(chunk, recorder.interner) if name == "thread server"
        ]
        recorder.source.end_window()


def test_after_the_window_the_mode_leaves_a_thread_with_its_next_operator(recorder):
    with ThreadPoolExecutor(1) as pool:
        recorder.source.begin_window()
        pool.submit(torch.ones, 5).result()
        assert pool.submit(modes_here).result() == 1
        recorder.source.end_window()

        def next_operator():
            torch.ones(5)
            return modes_here(), sys.getprofile()

        assert pool.submit(next_operator).result() == (0, None)


def test_nothing_is_left_of_threads_that_have_ended(recorder):
    recorder.source.begin_window()
    seen = []

    def work():
        torch.ones(5)
        seen.append(weakref.ref(threading.current_thread()))
        seen.append(weakref.ref(_python_dispatch._get_current_dispatch_mode()))

    in_a_thread(work)
    recorder.source.drain()
    recorder.source.end_window()
    gc.collect()
    assert [one() for one in seen] == [None, None]


def test_a_profile_function_of_the_program_stays(recorder):
    called = []
    threading.setprofile(lambda *_: called.append(None))
    try:
        recorder.source.begin_window()
        in_a_thread(lambda: torch.ones(5))
        recorder.source.end_window()
        assert called
        assert threading._profile_hook is not None
    finally:
        threading.setprofile(None)


def test_results_that_a_pool_caches_without_end_are_found_with_their_line(tmp_path):
    model, cache = nn.Linear(64, 1024).eval(), {}

    def serve(request):
        with torch.inference_mode():
            cache[request] = model(torch.full((4, 64), float(request)))

    path = tmp_path / "run.json"
    with memprof.track(path, sources=["cpu"], allowance_s=600), ThreadPoolExecutor(2) as pool:
        list(pool.map(serve, range(60)))
    run = memprof.load(path)
    steps = run.device("cpu").steps  # two that end at once may be one row
    covered = [one for a, b in zip(steps.first, steps.last, strict=True) for one in range(a, b + 1)]
    assert covered == list(range(60))
    from memprof.rules.ranked_findings import findings

    found = findings(run)[0]
    assert found.kind.value == "leak"
    # two requests of the pool may end in one step
    assert found.bytes_per_step == pytest.approx(4 * 1024 * 4, rel=0.25)
    assert (found.site.filename, found.site.line) == (
        __file__,
        serve.__code__.co_firstlineno + 2,
    )
    assert "cache" in found.title
