"""Steps out of stacks: which loop of a program is the one that its recording goes by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.loop_steps import with_loop_steps
from memprof.records import SCHEMA_VERSION, DeviceInfo, Finding, GuessedSteps, Header, WindowRecord
from memprof.run import DeviceRun, Run, Steps
from memprof.testing import TraceBuilder
from memprof.trace import Action, Annotation, Frame, Label, Phase, Trace
from memprof.views.steps import step_of_event

KIB = 1 << 10
PROGRAM = "/home/me/train.py"
TORCH = "/usr/lib/python3/site-packages/torch"
OPTIMIZER = Frame("wrapper", f"{TORCH}/optim/optimizer.py", 484)
BACKWARD = Frame("backward", f"{TORCH}/_tensor.py", 581)
CALL = Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1773)
NATIVE = Frame("at::_ops::add_Tensor::call", "??", 0)
THREAD = Frame("_bootstrap", "/usr/lib/python3.12/threading.py", 1032)


def at(*lines: int | Frame) -> tuple[Frame, ...]:
    """A stack, innermost first, of functions of the program named after their depth."""
    frames = [
        one if isinstance(one, Frame) else Frame(f"f{depth}" if depth else "<module>", PROGRAM, one)
        for depth, one in enumerate(lines)
    ]
    return tuple(reversed(frames))


def program(*stacks: tuple[Frame, ...]) -> Trace:
    builder = TraceBuilder()
    for number, stack in enumerate(stacks):
        builder.alloc(KIB, f"t{number}", stack=stack)
    return builder.build()


def run_of(*traces: Trace) -> Run:
    devices = tuple(
        DeviceRun(f"cuda:{number}", DeviceInfo(f"cuda:{number}"), (trace,))
        for number, trace in enumerate(traces)
    )
    return Run("", Header(schema=SCHEMA_VERSION, created_us=0), devices)


def steps_of(run: Run, device: int = 0) -> list[int]:
    steps: list[int] = step_of_event(run.devices[device].windows[0]).tolist()
    return steps


def allocated_in(*stacks: tuple[Frame, ...]) -> tuple[list[int], GuessedSteps | None]:
    """The step that each was allocated in, and what is told of them."""
    run = with_loop_steps(run_of(program(*stacks)))
    actions = run.devices[0].windows[0].events.action.tolist()
    steps = zip(steps_of(run), actions, strict=True)
    return [step for step, action in steps if action == Action.ALLOC], run.guessed


def test_a_loop_of_operators_comes_round_where_its_stack_goes_back() -> None:
    steps, guess = allocated_in(at(3), *(at(line) for _ in range(20) for line in (6, 7, 9)))

    assert steps == [0, *(turn for turn in range(20) for _ in range(3))]
    assert guess == GuessedSteps(first=0, last=19, sign="line", filename=PROGRAM, line=6)


def test_a_line_that_follows_upon_itself_has_run_once_more() -> None:
    steps, guess = allocated_in(*(at(5) for _ in range(20)))

    assert steps == list(range(20))
    assert guess is not None
    assert guess.line == 5


def test_an_operator_that_allocates_several_times_is_no_turn_of_its_loop() -> None:
    steps, _ = allocated_in(*(at(line) for _ in range(20) for line in (6, 6, 6, 8)))

    assert steps == [turn for turn in range(20) for _ in range(4)]


def test_few_turns_of_operators_are_no_steps() -> None:
    steps, guess = allocated_in(*(at(line) for _ in range(16) for line in (6, 7)))

    assert set(steps) == {-1}
    assert guess is None


def test_of_loops_within_loops_the_outer_one_tells_unless_it_seldom_comes_round() -> None:
    inner = [at(12, line) for _ in range(10) for line in (3, 4)]
    steps, guess = allocated_in(*(one for _ in range(20) for one in (at(10), *inner)))
    assert guess is not None
    assert (guess.line, guess.last, steps[-1]) == (10, 19, 19)

    inner = [at(12, line) for _ in range(40) for line in (3, 4)]
    steps, guess = allocated_in(*(one for _ in range(20) for one in (at(10), *inner)))
    assert guess is not None
    assert (guess.line, guess.last) == (3, 799)
    assert steps[81] == 40  # the outer one's turn is one of the inner one, too


def training(turns: int) -> list[tuple[Frame, ...]]:
    """Epochs of a loop with layers, a backward pass and an optimizer."""
    layers = [at(8, 21, CALL, line, NATIVE) for _ in range(3) for line in (50, 51)]
    turn = [at(8, 20), *layers, at(8, 22, BACKWARD), at(8, 23, OPTIMIZER, 90), at(8, 23, OPTIMIZER)]
    return [one for _ in range(turns) for one in turn]


def test_what_trains_is_told_by_two_turns_of_the_loop_around_its_optimizer() -> None:
    steps, guess = allocated_in(at(4), *training(3), at(30))

    assert steps == [0, *(turn for turn in range(3) for _ in range(10)), 2]
    assert guess == GuessedSteps(first=0, last=2, sign="line", filename=PROGRAM, line=23)


def test_loops_within_a_call_of_a_module_are_no_steps() -> None:
    steps, guess = allocated_in(*(at(8, 21, CALL, line) for _ in range(40) for line in (50, 51)))

    assert set(steps) == {-1}
    assert guess is None


def test_one_step_of_a_training_has_none_whatever_else_comes_round() -> None:
    _, guess = allocated_in(*(at(2, line) for _ in range(40) for line in (3, 4)), *training(1))

    assert guess is None


def test_of_several_optimizers_the_last_one_tells() -> None:
    critic = [at(12), at(13, CALL), at(15, OPTIMIZER)]
    turn = [*critic * 4, at(17, CALL), at(19, OPTIMIZER)]
    steps, guess = allocated_in(*(one for _ in range(5) for one in turn))

    assert steps == [step for step in range(5) for _ in turn]
    assert guess is not None
    assert guess.line == 19


def test_a_server_is_told_by_the_loop_around_the_call_of_its_model() -> None:
    steps, guess = allocated_in(
        *(one for _ in range(4) for one in (at(6, 30), at(7, CALL, NATIVE)))
    )

    assert steps == [0, 0, 1, 1, 2, 2, 3, 3]
    assert guess is not None
    assert guess.line == 6


def test_threads_of_python_tell_where_there_is_no_other() -> None:
    worker = [(*at(line)[:-1], Frame("work", PROGRAM, line), THREAD) for line in (40, 41)]
    loop = [at(6), at(7)]
    steps, guess = allocated_in(*(one for _ in range(20) for one in (*loop, *worker, *worker)))
    assert guess is not None
    assert (guess.line, steps[-1]) == (6, 19)

    steps, guess = allocated_in(*(one for _ in range(20) for one in worker))
    assert guess is not None
    assert (guess.line, steps[-1]) == (40, 19)


def test_recorders_may_name_the_same_function_with_its_class_and_without() -> None:
    named = [at(6), at(7), (Frame("Sim.f1", PROGRAM, 31), *at(8)), at(8, 32)]
    steps, _ = allocated_in(*(one for _ in range(20) for one in named))
    assert steps == [turn for turn in range(20) for _ in named]

    named = [(Frame(name, PROGRAM, line), *at(9)) for name, line in (("Sim.f1", 6), ("f1", 7))]
    steps, _ = allocated_in(*(one for _ in range(20) for one in named))
    assert steps == [turn for turn in range(20) for _ in named]


def test_devices_share_the_steps_of_one_loop() -> None:
    # Both clocks begin at the same time: on the second device an event comes every other one.
    first = program(*(at(line) for _ in range(20) for line in (6, 7)))
    second = TraceBuilder(step_us=40)
    for number in range(10):
        second.alloc(KIB, f"t{number}")
    other = replace(second.build(), tables=first.tables)
    run = with_loop_steps(run_of(first, other))

    assert run.guessed is not None
    assert run.guessed.last == 19
    assert [len(device.steps) for device in run.devices] == [20, 20]
    times = dict(zip(run.devices[0].windows[0].events.time_us.tolist(), steps_of(run), strict=True))
    for time_us, step in zip(other.events.time_us.tolist(), steps_of(run, 1), strict=True):
        before = [number for when, number in times.items() if when <= time_us]
        assert step == (before[-1] if before else 0)


def test_without_a_clock_the_device_with_most_events_tells() -> None:
    first = program(*(at(line) for _ in range(20) for line in (6, 7)))
    timeless = replace(first, events=replace(first.events, time_us=first.events.time_us * 0 - 1))
    other = replace(TraceBuilder().alloc(KIB, "a").build(), tables=first.tables)
    run = with_loop_steps(run_of(other, timeless))

    assert [len(device.steps) for device in run.devices] == [0, 20]
    assert steps_of(run, 1)[-1] == 19


def test_what_was_counted_at_the_end_stays() -> None:
    run = run_of(program(*(at(line) for _ in range(20) for line in (6, 7))))
    counted = Steps.build(first=[0], last=[0], retries=[3], allocated=[40 * KIB], end_us=[10**16])
    run = with_loop_steps(replace(run, devices=(replace(run.devices[0], steps=counted),)))

    steps = run.devices[0].steps
    assert steps.last.tolist() == list(range(20))
    assert steps.retries.tolist() == [-1] * 19 + [3]
    assert steps.allocated.tolist() == [-1] * 19 + [40 * KIB]
    assert steps.end_us[-1] == 10**16


def test_labels_keep_what_else_they_say_and_records_name_the_last_step() -> None:
    builder = TraceBuilder().label(step=0, phase=Phase.OTHER, annotation="load")
    for number in range(40):
        builder.alloc(KIB, f"t{number}", stack=at(6 + number % 2))
    before = run_of(builder.build())
    finding = Finding(finding="holders", device="cuda:0")
    window = WindowRecord(
        window=0, reason="first", end="stop", start_us=0, end_us=9, first_step=0, last_step=0
    )
    run = with_loop_steps(replace(before, findings=(finding,), windows=[window]))

    trace = run.devices[0].windows[0]
    last = trace.tables.labels[int(trace.events.label[-1])]
    assert last == Label(19, Phase.OTHER, "", "load")
    assert run.findings[0].step == run.windows[0].last_step == 19


@pytest.mark.parametrize("how", ["guessed", "counted", "labelled", "profiled"])
def test_a_run_that_has_steps_stays_as_it_is(how: str) -> None:
    trace = program(*(at(line) for _ in range(20) for line in (6, 7)))
    run = run_of(trace)
    if how == "guessed":
        run = replace(run, guessed=GuessedSteps(0, 3, "call"))
    elif how == "counted":
        counted = Steps.build(first=[0, 1], last=[0, 1])
        run = replace(run, devices=(replace(run.devices[0], steps=counted),))
    elif how == "labelled":
        tables = replace(trace.tables, labels=(*trace.tables.labels, Label(2)))
        run = run_of(replace(trace, tables=tables))
    else:
        run = run_of(replace(trace, annotations=(Annotation("ProfilerStep#4", 1, 2),)))

    assert with_loop_steps(run) is run


def test_a_few_steps_that_turns_shared_give_way_to_the_turns() -> None:
    run = run_of(program(*(at(line) for _ in range(20) for line in (6, 7))))

    by_turns = with_loop_steps(replace(run, guessed=GuessedSteps(0, 4, "line")))
    assert by_turns.guessed == GuessedSteps(0, 19, "line", filename=PROGRAM, line=6)
    many = replace(run, guessed=GuessedSteps(0, 16, "line"))
    assert with_loop_steps(many) is many


def test_nothing_comes_round_in_a_file_without_stacks_events_or_devices() -> None:
    bare = run_of(TraceBuilder().alloc(KIB, "a").alloc(KIB, "b").alloc(KIB, "c").build())
    for run in (bare, run_of(TraceBuilder().build()), run_of()):
        assert with_loop_steps(run) is run
