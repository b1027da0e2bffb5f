"""The line that a holder names: what fills the container, makes the cycle, takes the view."""

from __future__ import annotations

import gc
import itertools
import linecache
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.find_holders import find_holders, holders
from memprof.referrers.heap import Deadline
from memprof.referrers.rank_chains import holder_of
from memprof.source_code.find_line import (
    forget,
)
from tests.referrers.marks import reads_saved

KEPT: dict[str, object] = {}
SWITCH = False


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    KEPT.clear()
    gc.collect()


def source(tmp_path: Path, text: str) -> str:
    """A file with that text, by its name."""
    path = tmp_path / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    forget()
    return str(path)


def line_of(filename: str, text: str) -> int:
    """The number of the one line that contains ``text``."""
    (found,) = [
        at for at, line in enumerate(Path(filename).read_text().splitlines(), 1) if text in line
    ]
    return found


def test_a_branch_that_a_global_switches_off_binds_nothing() -> None:
    def take(x: torch.Tensor) -> None:
        part = x.unbind(1)[-1]
        if SWITCH:
            part = part.clone()
        KEPT["part"] = part

    take(torch.ones(4, 4))
    best = holders(KEPT["part"])[0]  # type: ignore[arg-type]
    assert best.code == "part = x.unbind(1)[-1]"


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.heads.append(nn.Linear(4, 4))
        return self.heads[-1](x)


def test_a_parameter_in_a_module_list_is_told_by_the_line_that_appends() -> None:
    net = KEPT["net"] = Growing()
    net(torch.ones(1, 4))
    best = holders(net.heads[0].weight)[0]
    assert best.code == "self.heads.append(nn.Linear(4, 4))"


def test_a_local_name_of_an_attribute_leads_to_its_line() -> None:
    state = KEPT["state"] = SimpleNamespace(history=[])
    history = state.history
    history.append({"loss": torch.ones(3)})
    best = holders(history[0]["loss"])[0]
    assert best.code == 'history.append({"loss": torch.ones(3)})'


def batches() -> Iterator[torch.Tensor]:
    while True:
        yield torch.ones(5)


def test_itertools_cycle_is_told_with_its_call() -> None:
    stream = KEPT["stream"] = itertools.cycle(batches())
    best = holders(next(stream))[0]
    assert best.kind == "iterator"
    assert "itertools.cycle, which keeps what it has passed on" in best.description
    assert best.code == 'stream = KEPT["stream"] = itertools.cycle(batches())'


def test_the_slower_branch_of_a_tee_is_told_with_its_call() -> None:
    quick, KEPT["slow"] = itertools.tee(batches())
    first = next(quick)
    for _ in range(200):
        next(quick)
    best = holders(first)[0]
    assert best.kind == "iterator"
    assert best.description.count("itertools.tee") == 1
    assert best.code == 'quick, KEPT["slow"] = itertools.tee(batches())'


def test_an_array_over_a_tensors_memory_is_its_holder() -> None:
    columns: list[object] = []
    KEPT["columns"] = columns

    def predict() -> int:
        probs = torch.ones(8, 4)
        columns.append(probs.numpy()[:, 1])
        return probs.untyped_storage()._cdata

    (one,) = find_holders([predict()], budget_s=20)[0][:1]
    assert one.code == "columns.append(probs.numpy()[:, 1])"
    assert one.description.startswith("a NumPy array that shows 32 of 128 bytes, kept by list")


def test_an_array_in_a_dict_that_the_collector_does_not_track_is_its_holder() -> None:
    by_step: dict[int, object] = {}
    KEPT["by_step"] = by_step

    def predict() -> int:
        probs = torch.ones(8, 4)
        by_step[3] = (1, probs.numpy())
        return probs.untyped_storage()._cdata

    key = predict()
    gc.collect()  # a tuple, and then the dict, are found to hold nothing that is tracked
    assert not gc.is_tracked(by_step[3])
    (one,) = find_holders([key], budget_s=20)[0][:1]
    assert one.code == "by_step[3] = (1, probs.numpy())"
    assert one.description.startswith("a NumPy array, kept by")


def test_a_closure_in_a_list_is_told_by_the_line_that_puts_it_there() -> None:
    penalties: list[object] = []
    KEPT["penalties"] = penalties

    def anchored(weights: torch.Tensor) -> object:
        return lambda now: (now - weights).square().sum()

    first = torch.ones(9)
    key = first.untyped_storage()._cdata
    for one in (first, torch.ones(9)):
        penalties.append(anchored(one))
    del first, one
    (holder,) = find_holders([key], budget_s=20)[0][:1]
    assert holder.code == "penalties.append(anchored(one))"


@reads_saved
def test_weights_that_a_loop_carries_on_are_named_and_not_what_was_computed_last() -> None:
    weight = torch.ones(5, requires_grad=True)
    fast = {"weight": weight}
    keys = []
    for _ in range(5):
        loss = (fast["weight"] ** 3).sum()
        (gradient,) = torch.autograd.grad(loss, [fast["weight"]], create_graph=True)
        kept = (gradient * 2).exp()  # which its own node saves
        keys.append(kept.untyped_storage()._cdata)
        fast = {"weight": fast["weight"] - kept * 0.1}
        outer = (fast["weight"] ** 2).sum()
    del kept, gradient, loss
    (one,) = find_holders([keys[1]], budget_s=20)[0][:1]
    assert "dict `fast`" in one.description
    assert one.code == 'fast = {"weight": fast["weight"] - kept * 0.1}'
    assert outer.requires_grad


class Released:
    def __init__(self) -> None:
        self.data = torch.ones(7)
        self.end = weakref.finalize(self, print, self)


@pytest.mark.whole_heap
def test_what_a_librarys_class_keeps_is_told_by_the_call_of_that_class() -> None:
    made = Released()
    key = made.data.untyped_storage()._cdata
    end = weakref.ref(made)
    del made
    (one,) = find_holders([key], budget_s=20)[0][:1]
    assert one.kind == "class_attribute"
    assert one.code == "self.end = weakref.finalize(self, print, self)"
    kept = end()
    assert kept is not None
    kept.end.detach()


def held_by_cycle(tensor: torch.Tensor) -> list[int]:
    """The key of what is about to become unreachable."""
    return [tensor.untyped_storage()._cdata]


def found(keys: list[int]) -> Holder:
    (one,) = find_holders(keys, budget_s=20)[0][:1]
    assert one.kind == "cycle"
    return one


class Block(nn.Module):
    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        object.__setattr__(self, "owner", owner)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(self)


def test_a_cycle_of_modules_is_told_by_the_link_that_points_back() -> None:
    one = found(held_by_cycle(Net().block.fc.weight))
    assert one.code == 'object.__setattr__(self, "owner", owner)'
    assert "_modules" not in one.description


class Dispatching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.heads = {"a": self.first, "b": self.second}

    def first(self) -> None: ...

    def second(self) -> None: ...


def test_a_table_of_an_objects_own_methods_is_told_by_its_line() -> None:
    one = found(held_by_cycle(Dispatching().fc.weight))
    assert one.code == 'self.heads = {"a": self.first, "b": self.second}'


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.fc.register_forward_hook(self.count)

    def count(self, *_: object) -> None: ...


def test_a_module_hooked_with_its_owners_method_is_told_by_the_registration() -> None:
    one = found(held_by_cycle(Hooked().fc.weight))
    assert one.code == "self.fc.register_forward_hook(self.count)"


class Tuple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        y = x * 2
        ctx.kept = (x, y)
        return y

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad * 2


def test_a_tuple_on_ctx_with_the_output_in_it_is_a_cycle() -> None:
    def run() -> list[int]:
        x = torch.ones(3, requires_grad=True)
        return held_by_cycle(Tuple.apply(x))  # type: ignore[no-untyped-call]

    assert found(run()).code == "ctx.kept = (x, y)"


def test_a_deadline_counts_what_the_thread_computes_and_patience_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread_s, clock_s = 100.0, 1000.0
    monkeypatch.setattr(time, "thread_time", lambda: thread_s)
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)
    deadline = Deadline(0.1)
    clock_s += 0.35  # the thread waits for a processor
    assert not deadline.check()
    clock_s += 0.1
    assert deadline.check()
    busy = Deadline(0.02)
    thread_s += 0.019
    assert not busy.check()
    thread_s += 0.002
    assert busy.check()
    thread_s -= 1.0
    assert busy.passed


def test_a_slow_machine_has_up_to_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    thread_s, clock_s = 100.0, 1000.0
    monkeypatch.setattr(time, "thread_time", lambda: thread_s)
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)

    def has_passed(*slowness: float, thread: float = 0.0, clock: float = 0.0) -> bool:
        """Whether 0.1 s are over after so many seconds of the thread's time, or of the clock's."""
        nonlocal thread_s, clock_s
        deadline = Deadline(0.1)
        for one in slowness:
            deadline.allow_for(one)
        thread_s += thread
        clock_s += clock
        return deadline.check()

    for slowness, budget_s in (
        ((), 0.1),
        ((0.5,), 0.1),
        ((1.5,), 0.15),
        ((1.2, 1.5, 1.1), 0.15),
        ((2.0,), 0.2),
        ((7.0,), 0.2),
    ):
        assert not has_passed(*slowness, thread=budget_s - 0.001, clock=4 * budget_s - 0.001)
        assert has_passed(*slowness, thread=budget_s + 0.001)
        assert has_passed(*slowness, clock=4 * budget_s + 0.001)


@pytest.mark.parametrize("in_passing", [True, False])
def test_only_while_a_job_waits_the_machine_is_measured(
    in_passing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []
    monkeypatch.setattr(Deadline, "allow_for", lambda _, slowness: measured.append(slowness))
    tensor = torch.ones(2)
    ((holder, *_),) = find_holders([tensor], budget_s=60.0, in_passing=in_passing)
    assert holder.description.startswith("local `tensor`")
    assert len(measured) == in_passing
    assert all(one > 0.0 for one in measured)


IN_ORDER_OF_IMPORT = """
class Reader:
    def __init__(self):
        self.pending = []
    def read(self, x):
        self.pending.append(x)
"""
THE_OBJECTS_OWN = """
class Writer:
    def __init__(self):
        self.pending = {}
    def write(self, key, x):
        self.pending[key] = x  # its own
"""


def test_an_attribute_is_looked_for_in_the_file_of_its_class_first(tmp_path: Path) -> None:
    files = []
    for name, text in (("readers", IN_ORDER_OF_IMPORT), ("writers", THE_OBJECTS_OWN)):
        (tmp_path / f"{name}.py").write_text(text)
        files.append(str(tmp_path / f"{name}.py"))
    links = [
        Link(LinkKind.GLOBAL, "writer", "__main__"),
        Link(LinkKind.ATTRIBUTE, "pending", "Writer"),
        Link(LinkKind.ITEM, "'a'", "dict", length=8),
    ]
    holder = holder_of(links, files)
    assert (holder.filename, holder.line) == (files[1], line_of(files[1], "# its own"))

    # An attribute that no class of that name fills is still found where another's is.
    links[1] = Link(LinkKind.ATTRIBUTE, "pending", "Both", filename=str(tmp_path / "both.py"))
    holder = holder_of(links, files)
    assert (holder.filename, holder.line) == (files[0], 6)


def test_what_a_class_of_the_program_has_is_no_attribute_of_a_librarys_object(
    tmp_path: Path,
) -> None:
    name = tmp_path / "train.py"
    name.write_text(THE_OBJECTS_OWN + "metric = library.Metric()\nmetric.pending.append(1)\n")
    links = [
        Link(LinkKind.GLOBAL, "metric", "__main__"),
        Link(LinkKind.ATTRIBUTE, "pending", "Metric"),
        Link(LinkKind.ITEM, "3", "list", length=8),
    ]
    holder = holder_of(links, [str(name)])
    assert holder.line == line_of(str(name), "metric.pending.append(1)")

    name.write_text(THE_OBJECTS_OWN + "metric = library.Metric()\n")
    forget()
    assert holder_of(links, [str(name)]).line != line_of(str(name), "# its own")
