"""What torch keeps for cuBLAS, told by its size and by what asked for it."""

from __future__ import annotations

import dataclasses

import pytest

from memprof.loading import load
from memprof.testing.runs import write_run
from memprof.testing.traces import TraceBuilder
from memprof.trace import Action, BlockState, Category, Frame, Phase
from memprof.views.infer_category import infer
from memprof.views.lifetimes import lifetimes

TORCH = "/env/lib/python3.12/site-packages/torch"
TRAIN = Frame("train", "/home/u/train.py", 20)
LINEAR = [Frame("Linear.forward", f"{TORCH}/nn/modules/linear.py", 134), TRAIN]
HEADS = [Frame("multi_head_attention_forward", f"{TORCH}/nn/functional.py", 6487), TRAIN]
WINDOWS = [Frame("Linear.forward", "C:\\env\\torch\\nn\\modules\\linear.py", 134), TRAIN]
PASS = [
    Frame("backward", f"{TORCH}/autograd/__init__.py", 364),
    Frame("Tensor.backward", f"{TORCH}/_tensor.py", 630),
    TRAIN,
]
MOST, HOPPER = 8_519_680, 32 << 20
WORKSPACE, UNKNOWN = Category.LIBRARY_WORKSPACE, Category.UNKNOWN
ACTIVATION, TEMPORARY = Category.ACTIVATION, Category.TEMPORARY


def categories(tmp_path, trace) -> tuple[list[int], list[int]]:
    """Of what was allocated, and of what was there at the end."""
    (window,) = load(write_run(tmp_path / "run.json", trace)).devices[0].windows
    used = window.end.blocks.state == BlockState.ACTIVE_ALLOCATED
    made = window.events.action == Action.ALLOC
    return window.events.category[made].tolist(), window.end.blocks.category[used].tolist()


@pytest.mark.parametrize(
    ("size", "phase", "stack", "given", "category"),
    [
        (HOPPER, Phase.FORWARD, LINEAR, UNKNOWN, WORKSPACE),
        (HOPPER, Phase.FORWARD, HEADS, UNKNOWN, WORKSPACE),
        (HOPPER, Phase.FORWARD, WINDOWS, UNKNOWN, WORKSPACE),
        (HOPPER, Phase.BACKWARD, (), UNKNOWN, WORKSPACE),
        (HOPPER, Phase.BACKWARD, PASS, UNKNOWN, WORKSPACE),
        (HOPPER, Phase.BACKWARD, [TRAIN, *PASS], UNKNOWN, UNKNOWN),  # a hook's
        (HOPPER, Phase.FORWARD, LINEAR, ACTIVATION, ACTIVATION),  # a large layer's
        (HOPPER, Phase.BACKWARD, (), TEMPORARY, TEMPORARY),
        (HOPPER, Phase.FORWARD, [TRAIN], UNKNOWN, UNKNOWN),  # the program's own
        (HOPPER, Phase.FORWARD, [TRAIN, *LINEAR], UNKNOWN, UNKNOWN),
        (HOPPER, Phase.UNKNOWN, (), UNKNOWN, UNKNOWN),
        (HOPPER + 512, Phase.FORWARD, LINEAR, UNKNOWN, UNKNOWN),
        (MOST, Phase.FORWARD, LINEAR, ACTIVATION, WORKSPACE),
        (MOST, Phase.UNKNOWN, [TRAIN], UNKNOWN, WORKSPACE),  # no tensor has such a size
        (MOST, Phase.BACKWARD, (), Category.GRADIENT, Category.GRADIENT),
    ],
)
def test_size_and_stack_say_that_it_is_a_workspace(tmp_path, size, phase, stack, given, category):
    trace = TraceBuilder().label(step=1, phase=phase)
    trace.alloc(size, "a", stack=stack, category=given)
    assert categories(tmp_path, trace.build()) == ([category], [category])


def test_a_tensor_of_the_cpu_is_none(tmp_path):
    trace = TraceBuilder(device="cpu").alloc(MOST, "a", stack=[TRAIN]).build()
    assert categories(tmp_path, trace) == ([UNKNOWN], [UNKNOWN])


def test_a_free_keeps_its_category(tmp_path):
    trace = TraceBuilder().alloc(MOST, "a").free("a").build()
    (window,) = load(write_run(tmp_path / "run.json", trace)).devices[0].windows
    assert sorted(set(window.events.category.tolist())) == [UNKNOWN, WORKSPACE]


def test_a_window_without_an_end_has_it_too(tmp_path):
    trace = dataclasses.replace(TraceBuilder().alloc(MOST, "a").build(), end=None)
    (window,) = load(write_run(tmp_path / "run.json", trace)).devices[0].windows
    assert window.end is None
    made = window.events.action == Action.ALLOC
    assert window.events.category[made].tolist() == [WORKSPACE]


def test_a_snapshot_of_torch_has_it_inferred():
    trace = TraceBuilder().existing(MOST, "before").alloc(HOPPER, "a", stack=LINEAR)
    trace.alloc(HOPPER, "b", stack=[TRAIN])
    built = trace.build()
    found = infer(built, lifetimes(built)).category
    assert found.tolist() == [WORKSPACE, WORKSPACE, UNKNOWN]
