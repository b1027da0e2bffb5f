"""Phases and categories guessed where nobody recorded them: snapshots that torch wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.testing.traces import TraceBuilder
from memprof.trace import Annotation, Category, Frame, Label, Phase, Tables, Trace
from memprof.views.infer_category import infer
from memprof.views.lifetimes import lifetimes
from memprof.views.owners import owners

KIB = 1024
TORCH = "/env/lib/python3.12/site-packages/torch"
TRAIN = Frame("train", "/home/u/train.py", 20)
CALL = Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
LINEAR = Frame("forward", f"{TORCH}/nn/modules/linear.py", 125)
FORWARD = [LINEAR, CALL, TRAIN]
BACKWARD = [Frame("backward", f"{TORCH}/_tensor.py", 600), TRAIN]
STEP = [Frame("_single_tensor_adam", f"{TORCH}/optim/adam.py", 400), TRAIN]
INIT_STATE = [Frame("_init_group", f"{TORCH}/optim/adam.py", 150), *STEP]


def told(trace: Trace) -> list[tuple[Phase, Category]]:
    """Phase and category of every lifetime, in the order of allocation."""
    found = infer(trace, lifetimes(trace))
    return [(Phase(p), Category(c)) for p, c in zip(found.phase, found.category, strict=True)]


def categories(trace: Trace) -> list[Category]:
    return [category for _, category in told(trace)]


def phase_of(*stack: Frame) -> Phase:
    # A frame of C++ elsewhere says that native stacks were recorded.
    native = Frame("c10::alloc", "??", 0)
    trace = TraceBuilder().alloc(KIB, "native", stack=[native]).alloc(KIB, "a", stack=stack).build()
    return told(trace)[-1][0]


def test_a_forward_pass_is_a_call_of_a_module() -> None:
    assert phase_of(*FORWARD) == Phase.FORWARD
    assert phase_of(TRAIN) == Phase.OTHER


@pytest.mark.parametrize(
    "frame",
    [
        Frame("backward", f"{TORCH}/_tensor.py", 1),
        Frame("grad", f"{TORCH}/autograd/__init__.py", 1),
        Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 1),
        Frame("backward", "C:\\env\\torch\\_tensor.py", 1),
        Frame("torch::autograd::Engine::evaluate_function(...)", "??", 0),
        Frame("torch::autograd::python::PythonEngine::thread_init(int)", "??", 0),
    ],
)
def test_a_backward_pass_is_told_by_autograds_own_frames(frame: Frame) -> None:
    assert phase_of(frame, TRAIN) == Phase.BACKWARD


def test_a_function_of_the_user_called_backward_is_none() -> None:
    assert phase_of(Frame("backward", "/home/u/game.py", 3), TRAIN) == Phase.OTHER


def test_what_a_backward_pass_computes_anew_belongs_to_it() -> None:
    assert phase_of(*FORWARD[:2], *BACKWARD) == Phase.BACKWARD


def test_an_optimizer_is_told_by_its_file_but_zero_grad_is_no_step() -> None:
    assert phase_of(*STEP) == Phase.OPTIMIZER
    zero = Frame("zero_grad", f"{TORCH}/optim/optimizer.py", 900)
    assert phase_of(zero, TRAIN) == Phase.OTHER


def test_an_allocation_without_a_stack_among_python_stacks_is_autograds() -> None:
    python = TraceBuilder().alloc(KIB, "a", stack=FORWARD).alloc(KIB, "b").build()
    assert told(python)[1][0] == Phase.BACKWARD
    native = Frame("at::empty", "??", 0)
    cpp = TraceBuilder().alloc(KIB, "a", stack=[native, *FORWARD]).alloc(KIB, "b").build()
    assert told(cpp)[1][0] == Phase.UNKNOWN
    nothing = TraceBuilder().alloc(KIB, "a").build()
    assert told(nothing) == [(Phase.UNKNOWN, Category.UNKNOWN)]


def test_what_was_there_without_a_stack_has_no_phase() -> None:
    trace = TraceBuilder().existing(KIB, "w").alloc(KIB, "a", stack=FORWARD).build()
    assert told(trace)[0] == (Phase.UNKNOWN, Category.UNKNOWN)


def test_a_training_step_is_told_apart() -> None:
    trace = (
        TraceBuilder()
        .alloc(KIB, "kept", stack=FORWARD)
        .alloc(KIB, "scratch", stack=FORWARD)
        .free("scratch")
        .alloc(KIB, "gradient", stack=BACKWARD)
        .alloc(KIB, "passing", stack=BACKWARD)
        .free("passing")
        .alloc(KIB, "sum", stack=BACKWARD)
        .free("kept")
        .alloc(KIB, "moment", stack=INIT_STATE)
        .alloc(KIB, "root", stack=STEP)
        .free("root")
        .alloc(KIB, "again", stack=STEP)
        .free("again")
        .alloc(KIB, "batch", stack=[TRAIN])
        .build()
    )
    assert told(trace) == [
        (Phase.FORWARD, Category.ACTIVATION),
        (Phase.FORWARD, Category.TEMPORARY),
        (Phase.BACKWARD, Category.GRADIENT),
        (Phase.BACKWARD, Category.TEMPORARY),
        (Phase.BACKWARD, Category.GRADIENT),
        (Phase.OPTIMIZER, Category.OPTIMIZER_STATE),
        (Phase.OPTIMIZER, Category.TEMPORARY),
        (Phase.OPTIMIZER, Category.TEMPORARY),
        (Phase.OTHER, Category.UNKNOWN),
    ]


def test_state_that_every_step_replaces_is_state() -> None:
    trace = (
        TraceBuilder()
        .alloc(KIB, "state", stack=STEP)
        .alloc(KIB, "a", stack=FORWARD)
        .free("a")
        .alloc(KIB, "new state", stack=STEP)
        .free("state")
        .alloc(KIB, "scratch", stack=STEP)
        .free("scratch")
        .build()
    )
    state = Category.OPTIMIZER_STATE
    assert categories(trace) == [state, Category.TEMPORARY, state, Category.TEMPORARY]


@pytest.mark.parametrize("between", [[], STEP])
def test_gradients_that_are_dropped_at_any_time_were_gradients(between: list[Frame]) -> None:
    step = TraceBuilder()
    for name in ("first", "second"):
        step.alloc(KIB, f"activation {name}", stack=FORWARD)
        if name == "second":  # zero_grad just before backward()
            step.free("gradient first")
        step.alloc(KIB, f"gradient {name}", stack=BACKWARD)
        step.free(f"activation {name}")
        if between:
            step.alloc(KIB, "scratch", stack=between).free("scratch")
    step.free("gradient second")  # zero_grad after the step
    found = told(step.alloc(KIB, "activation", stack=FORWARD).build())
    assert [c for p, c in found if p == Phase.BACKWARD] == [Category.GRADIENT] * 2


def test_what_inference_drops_is_temporary_whenever_that_is() -> None:
    trace = (
        TraceBuilder()
        .alloc(KIB, "first", stack=FORWARD)
        .alloc(KIB, "second", stack=FORWARD)
        .free("first")
        .free("second")
        .build()
    )
    assert categories(trace) == [Category.TEMPORARY, Category.TEMPORARY]


def test_what_lives_as_memory_runs_out_was_kept() -> None:
    trace = (
        TraceBuilder()
        .alloc(KIB, "a", stack=FORWARD)
        .oom(1 << 40)
        .free("a")
        .alloc(KIB, "b", stack=FORWARD)
        .free("b")
        .build()
    )
    assert categories(trace) == [Category.ACTIVATION, Category.TEMPORARY]


@pytest.mark.parametrize("name", ["__init__", "reset_parameters", "convert", "_apply"])
def test_what_a_module_makes_or_moves_is_a_parameter(name: str) -> None:
    frame = Frame(name, f"{TORCH}/nn/modules/linear.py", 100)
    trace = TraceBuilder().alloc(KIB, "w", stack=[frame, TRAIN]).build()
    assert categories(trace) == [Category.PARAMETER]


def test_a_module_that_is_made_within_a_forward_pass_is_no_parameter() -> None:
    frame = Frame("__init__", f"{TORCH}/nn/modules/linear.py", 100)
    trace = TraceBuilder().alloc(KIB, "w", stack=[frame, *FORWARD]).free("w").build()
    assert categories(trace) == [Category.TEMPORARY]


def test_the_users_own_init_makes_no_parameter() -> None:
    frame = Frame("__init__", "/home/u/model.py", 10)
    trace = TraceBuilder().alloc(KIB, "w", stack=[frame, TRAIN]).build()
    assert categories(trace) == [Category.UNKNOWN]


def test_an_annotation_of_an_optimizers_step_outweighs_the_stack() -> None:
    trace = (
        TraceBuilder()
        .alloc(KIB, "before", stack=[TRAIN])
        .alloc(KIB, "inside", stack=[TRAIN])
        .alloc(KIB, "after", stack=[TRAIN])
        .build()
    )
    times = trace.events.time_us[-3:].tolist()
    step = Annotation("Optimizer.step#Lion.step", times[1], times[1])
    unfinished = Annotation("Optimizer.step#Lion.step", times[0])
    other = Annotation("ProfilerStep#3", times[0], times[2])
    annotated = replace(trace, annotations=(unfinished, step, other))
    assert told(annotated) == [
        (Phase.OTHER, Category.UNKNOWN),
        (Phase.OPTIMIZER, Category.OPTIMIZER_STATE),
        (Phase.OTHER, Category.UNKNOWN),
    ]


def test_a_trace_that_says_a_phase_or_a_category_is_not_guessed_at() -> None:
    trace = TraceBuilder().alloc(KIB, "a", stack=FORWARD).build()
    assert owners(trace, lifetimes(trace)).inferred
    labels = (Label(phase=Phase.OTHER), *trace.tables.labels[1:])
    tables = Tables(trace.tables.frames, trace.tables.stacks, labels, trace.tables.pools)
    recorded = owners(trace_with(trace, tables), lifetimes(trace))
    assert not recorded.inferred
    assert recorded.category.of.tolist() == [Category.UNKNOWN]


def trace_with(trace: Trace, tables: Tables) -> Trace:
    return replace(trace, tables=tables)


def test_nothing_is_inferred_of_nothing() -> None:
    trace = TraceBuilder().existing(KIB, "w").build()
    empty = infer(trace, lifetimes(trace))
    assert len(empty.phase) == len(empty.category) == 1


def after_the_model_was_built(*held: int, states: bool = False) -> list[Category]:
    """Categories of what was there when a window began, in which gradients of two sizes are made.

    ``held`` are sizes in KiB; the gradients are three of 64 and three of 3 KiB.
    """
    builder = TraceBuilder()
    for number, size in enumerate(held):
        builder.existing(size * KIB, f"held{number}")
    for number in range(3):
        builder.alloc(64 * KIB, f"grad{number}", stack=BACKWARD)
        builder.alloc(3 * KIB, f"grad of bias{number}", stack=BACKWARD)
    builder.alloc(KIB, "between", stack=FORWARD)
    for number in range(6 if states else 0):
        builder.alloc(64 * KIB, f"state{number}", stack=INIT_STATE)
    return categories(builder.build())[: len(held)]


MODEL = (64, 3, 64, 3, 64, 3)


def test_what_was_there_and_is_as_large_as_gradients_one_for_one_are_parameters() -> None:
    assert after_the_model_was_built(*MODEL, 7) == [*[Category.PARAMETER] * 6, Category.UNKNOWN]


def test_what_there_is_two_or_three_times_of_it_is_the_state_of_an_optimizer_as_well() -> None:
    found = after_the_model_was_built(*MODEL, *MODEL, *MODEL)
    assert found.count(Category.PARAMETER) == 6
    assert found.count(Category.OPTIMIZER_STATE) == 12


def test_where_an_optimizer_has_state_a_size_must_be_one_of_its_states_too() -> None:
    found = after_the_model_was_built(64, 3, 64, 3, 64, 3, states=True)
    assert found == [Category.UNKNOWN] * 6  # one size is met by chance


@pytest.mark.parametrize("held", [(64, 64, 64, 7, 7, 7), (64, 3, 3, 3), (7, 9, 11)])
def test_sizes_that_others_happen_to_have_too_are_no_model(held: tuple[int, ...]) -> None:
    assert set(after_the_model_was_built(*held)) == {Category.UNKNOWN}
