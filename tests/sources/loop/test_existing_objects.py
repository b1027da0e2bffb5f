"""What a program has when a recording begins in its midst: all modules and optimizers of it."""

from __future__ import annotations

import pytest

from memprof.sources.guarded_access import GuardedAccess
from memprof.sources.loop.existing_objects import existing_objects

torch = pytest.importorskip("torch", reason="there are no modules without torch")


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.alone = [torch.nn.Linear(3, 3)]


class Broken(torch.nn.Module):
    def children(self):
        raise RuntimeError("not yet")


def test_roots_are_found_called_or_not_and_their_children_are_none():
    small, large = torch.nn.Linear(4, 4), Nested()
    roots, optimizers = existing_objects(GuardedAccess())
    assert [r for r in roots if r in (small, large, large.alone[0])] == [
        large,
        *[r for r in roots if r in (small, large.alone[0])],
    ]
    assert {small, large.alone[0]} <= set(roots)
    assert not {large.inner, *large.inner} & set(roots)
    assert optimizers == []


def test_optimizers_are_found_whether_they_have_stepped_or_not():
    model = torch.nn.Linear(2, 2)
    adam = torch.optim.AdamW(model.parameters())

    class Own(torch.optim.SGD):
        pass

    own = Own(model.parameters(), 0.1)
    assert {adam, own} == set(existing_objects(GuardedAccess())[1])


def test_a_module_that_raises_hides_no_other():
    model, broken = torch.nn.Linear(2, 2), Broken()
    guard = GuardedAccess()
    roots, _ = existing_objects(guard)
    assert model in roots
    assert broken is not None
    assert guard.notes() == [
        "an object of type Broken raised when it was looked at: RuntimeError: not yet"
    ]
