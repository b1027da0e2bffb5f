"""Time and memory of the holder search over a large heap; run by hand, prints figures.

python tests/benchmarks/bench_holders.py [objects] [tensors]
"""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from collections.abc import Callable

import psutil
import torch

from memprof.referrers.find_holders import find_holders
from memprof.referrers.list_tensors import tensors


class Sample:
    """One item of a data set: an instance, its dict, a list and a dict."""

    def __init__(self, number: int) -> None:
        self.name = f"sample {number}"
        self.box = [float(number), [number]]
        self.meta = {"id": number, "tags": [str(number)]}


class Result:
    """Keeps one tensor, as a record of a step does."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def build(objects: int, count: int) -> dict[str, object]:
    """A heap of about ``objects`` tracked objects with ``count`` tensors in it."""
    gc.disable()
    data = [Sample(number) for number in range(objects // 6)]
    kept = [Result(torch.empty(4)) for _ in range(count // 2)]
    graphs = [torch.empty(4, requires_grad=True).exp() for _ in range(count // 4)]
    gc.enable()
    return {"data": data, "kept": kept, "graphs": graphs}


def measured(name: str, call: Callable[[], object]) -> None:
    """Print the seconds that ``call`` takes and the most memory it adds."""
    process = psutil.Process()
    before, most, done = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            most[0] = max(most[0], process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(f"{name:<28} {seconds:6.2f} s  +{most[0] / 1e6:6.0f} MB  {len(result)} results")  # type: ignore[arg-type]


def main() -> None:
    """Build the heap and time each kind of search."""
    objects = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 50_000
    heap = build(objects, count)
    print(
        f"{len(gc.get_objects())} tracked objects, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB"
    )
    kept = heap["kept"]
    keys = [one.tensor.untyped_storage()._cdata for one in kept[:: len(kept) // 50]]  # type: ignore[index, arg-type]
    budget_s = float(sys.argv[3]) if len(sys.argv) > 3 else 30.0
    measured("find_holders, 50 targets", lambda: find_holders(keys, budget_s=budget_s))
    lost = torch.empty(4).untyped_storage()._cdata  # nobody holds it: the whole heap is seen
    measured("find_holders, lost target", lambda: find_holders([lost], budget_s=budget_s))
    measured("tensors()", lambda: tensors(budget_s=budget_s))


if __name__ == "__main__":
    main()
