"""Views of which torch cannot tell any more which node made them, wherever graphs are read."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch", reason="the tensors are torch's")

from memprof.referrers.find_holders import holders  # noqa: E402
from memprof.referrers.graph_growth import longest_graph  # noqa: E402
from memprof.referrers.list_tensors import tensors  # noqa: E402
from memprof.sources.autograd import (  # noqa: E402
    grad_fn_of,
    grad_fns_of,
    gradient_of,
    has_gradient,
    is_leaf,
)
from memprof.sources.cpu.find_storages import StorageSearch  # noqa: E402
from memprof.sources.cuda.label_timeline import LabelRecorder  # noqa: E402
from memprof.sources.guarded_access import GuardedAccess  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch  # noqa: E402
from memprof.sources.owners.tensor_owners import Differentiated  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402


def stale_views():
    """A tensor that was changed in place, and the views that it was unbound into before."""
    whole = torch.ones(4, 3, requires_grad=True) * 1
    views = whole.unbind()
    whole.mul_(2)
    return whole, views


def test_such_a_view_raises_where_torch_is_asked_for_its_node():
    _, views = stale_views()
    for name in ("grad_fn", "is_leaf"):
        with pytest.raises(RuntimeError, match="modified inplace"):
            getattr(views[0], name)


def test_one_such_view_among_many_tensors_hides_no_other_ones_node():
    whole, (view, *_) = stale_views()
    leaf = torch.ones(3)
    assert grad_fns_of([whole, leaf]) == [whole.grad_fn, None]
    assert grad_fns_of([whole, view, leaf]) == [whole.grad_fn, None, None]


def test_such_a_view_has_no_node_and_no_gradient_and_is_no_leaf():
    whole, (view, *_) = stale_views()
    assert (grad_fn_of(view), gradient_of(view)) == (None, None)
    assert not is_leaf(view)
    assert not has_gradient(view)
    assert grad_fn_of(whole) is whole.grad_fn is not None


def test_a_gradient_that_just_ends_is_none_and_ends_once():
    """In a process of its own: torch aborts it where the gradient ends twice."""
    program = """
import gc
import weakref
import torch
from memprof.referrers.find_holders import holders
from memprof.referrers.torch_references import is_bare
from memprof.sources.autograd import gradient_of

leaf = torch.ones(4, requires_grad=True)
seen = []
for ask in (gradient_of, is_bare):
    leaf.grad = torch.ones(4)
    assert gradient_of(leaf) is leaf.grad
    reference = weakref.ref(leaf.grad.untyped_storage(), lambda _: seen.append(ask(leaf)))
    leaf.grad = None
    del reference
leaf.grad = torch.full((4,), 3.0)
tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
assert len(tensors) == 2 and {*map(id, tensors)} == {id(leaf), id(leaf.grad)}
assert holders(leaf)[0].links[0].name == "leaf"
print(seen, leaf.grad.tolist())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "[None, True] [3.0, 3.0, 3.0, 3.0]\n"


class Scaled(torch.Tensor):
    """A tensor whose gradient is kept elsewhere, and made anew for whoever asks."""

    @property
    def grad(self):
        return torch.full((3,), 2.0)


def test_a_gradient_that_a_class_makes_anew_is_told_and_let_go_of():
    leaf = torch.ones(3).as_subclass(Scaled)
    gradient = gradient_of(leaf)
    assert gradient.tolist() == [2.0, 2.0, 2.0]
    end = weakref.ref(gradient)
    del gradient
    assert end() is None


def test_a_leaf_has_its_gradient_and_no_node():
    leaf = torch.ones(3, requires_grad=True)
    assert gradient_of(leaf) is None
    (leaf * 2).sum().backward()
    assert gradient_of(leaf) is leaf.grad is not None
    assert grad_fn_of(leaf) is None
    assert is_leaf(leaf)


@pytest.mark.filterwarnings("error")
def test_the_gradient_of_what_has_none_is_not_asked_for():
    result = torch.ones(3, requires_grad=True) * 2
    assert gradient_of(result) is None
    result.retain_grad()
    result.sum().backward()
    assert gradient_of(result) is result.grad is not None


def test_holders_are_found_beside_such_views():
    whole, views = stale_views()
    assert "local `whole` of" in " ".join(one.description for one in holders(whole))
    assert "`views`" in " ".join(one.description for one in holders(views[2]))
    assert any("local `whole`" in one.name for one in tensors())


def test_searches_for_storages_and_graphs_pass_over_such_views():
    whole, views = stale_views()
    guard = GuardedAccess()
    search = StorageSearch(guard)
    keys = {storage._cdata for storage in search.everything()}
    assert whole.untyped_storage()._cdata in keys
    Differentiated(guard).see([whole, *views])
    assert guard.notes() == []
    assert longest_graph(budget_s=5).nodes >= 1


class Cut(torch.nn.Module):
    def forward(self, x):
        whole = x * 1
        views = whole.unbind()
        whole.mul_(2)
        return [whole, *views]


class Odd:
    """Whatever is asked of it, it raises."""

    def __getattribute__(self, name):
        raise ValueError(name)


class Wraps(torch.nn.Module):
    def forward(self, x):
        return Odd(), x * 2


def test_a_module_may_give_back_such_views_or_anything_else_while_boundaries_are_marked():
    loop_watch = LoopWatch(Interner())
    passed = []
    keeper = LabelRecorder(loop_watch, passed.append)
    loop_watch.open(on_step=lambda step: None)
    keeper.start()
    x = torch.ones(3, 2, requires_grad=True)
    try:
        whole, *_ = Cut()(x)
        _, doubled = Wraps()(x)
        before_backward = len(passed)
        (whole.sum() + doubled.sum()).backward()
        # a mark for each of the two outputs, and the end of the pass
        assert len(passed) == before_backward + 3
    finally:
        keeper.stop()
        loop_watch.close()
    assert x.grad.tolist() == [[4.0, 4.0]] * 3
