"""Steps of programs in which nothing but operators run, by the lines that allocate."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.nn.functional import normalize  # noqa: E402

import memprof  # noqa: E402
from memprof.record import session  # noqa: E402
from memprof.records import GuessedSteps  # noqa: E402
from memprof.sources.loop import line_turns  # noqa: E402
from memprof.sources.loop.line_turns import LEAST_TURNS, FrameChains, LineTurns  # noqa: E402
from memprof.sources.loop.main_thread import Beat  # noqa: E402
from memprof.trace import Action  # noqa: E402


@pytest.fixture(params=["operators", "allocator"])
def record(request, tmp_path, monkeypatch):
    """A function that records another one and returns the run; by the mode, and natively."""
    if request.param == "allocator":
        request.getfixturevalue("with_native")
    else:
        monkeypatch.setenv("MEMPROF_NATIVE", "0")
    monkeypatch.setattr(line_turns, "LEAST_STEP_NS", 1)
    # A turn that comes while the beat makes its call is told with the next one, as one.
    monkeypatch.setattr(Beat, "start", lambda *_: None)

    def recorded(program):
        path = tmp_path / "run.json"
        with memprof.track(path, sources=["cpu"], allowance_s=600):
            program()
        run = memprof.load(path)
        assert run.device("cpu").info.recorder == request.param
        numbers = run.device("cpu").steps
        assert numbers.first.tolist() == numbers.last.tolist() == list(range(len(numbers)))
        return run

    return recorded


def line_of(function, text):
    """Number of the line of a function that begins with a text."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if line.strip().startswith(text))


def grown(run):
    """Bytes by which each step's end lies above the one before it."""
    allocated = run.device("cpu").steps.allocated
    return (allocated[1:] - allocated[:-1]).tolist()


def test_each_turn_of_a_simulation_is_a_step(record):
    positions = []

    def program():
        x, v = torch.zeros(256), torch.ones(256)
        for _ in range(40):
            v = v * 0.99
            x = x + v
            positions.append(x)

    run = record(program)
    # The first turn shows as the second begins.
    turns = 40 - LEAST_TURNS
    assert len(run.device("cpu").steps) == turns
    line = line_of(program, "v = v * 0.99")
    assert run.guessed == GuessedSteps(0, turns - 1, "line", filename=__file__, line=line)
    assert set(grown(run)) == {1024}
    # The operator that shows that a turn is over is one of the next turn.
    (window,) = run.device("cpu").windows
    events, tables = window.events, window.tables
    is_result = (events.action == Action.ALLOC) & (events.size == 1024)
    lines = {}
    for label, stack in zip(events.label[is_result], events.stack[is_result], strict=True):
        lines.setdefault(tables.labels[label].step, []).append(tables.stack(stack)[0].line)
    assert all(lines[step] == [line, line + 1] for step in range(1, turns))


def test_a_line_that_follows_upon_itself_has_run_once_more(record):
    samples = []

    def program():
        for _ in range(50):
            samples.append(torch.ones(512))

    run = record(program)
    assert len(run.device("cpu").steps) == 50 - LEAST_TURNS
    assert run.guessed.line == line_of(program, "samples.append")
    assert set(grown(run)) == {2048}


def test_so_has_a_function_that_is_called_again_and_one_of_torchs(record):
    def request():
        scores = torch.ones(64, 64)
        return scores.softmax(1)

    def serve():
        for _ in range(40):
            request()

    def prepare():
        for _ in range(40):
            normalize(torch.ones(4, 64))

    run = record(serve)
    assert len(run.device("cpu").steps) == 40 - LEAST_TURNS
    assert run.guessed.line == line_of(request, "scores =")
    assert len(record(prepare).device("cpu").steps) == 40 - LEAST_TURNS


def test_of_loops_within_loops_the_outer_one_tells(record):
    def program():
        for _ in range(40):
            x = torch.ones(64)
            for _ in range(5):
                x = x * 0.5
            x.sum()

    run = record(program)
    assert run.guessed.line == line_of(program, "x = torch.ones")
    # Sixteen turns of the inner one come in the fourth of the outer one, which has turned thrice.
    assert len(run.device("cpu").steps) == 40 - 4


def test_but_the_inner_one_where_it_comes_round_far_more_often(record):
    def program():
        for _ in range(3):
            torch.ones(64)
            for _ in range(50):
                x = torch.ones(64)
                x * 0.5

    run = record(program)
    assert run.guessed.line == line_of(program, "x = torch.ones")
    # The outer turns end one as well, and the first of an inner loop is no turn.
    assert len(run.device("cpu").steps) == 3 * 50 - LEAST_TURNS


def test_data_that_are_made_before_a_training_belong_to_its_first_step(record):
    def program():
        data = torch.stack([torch.ones(8) * i for i in range(60)])
        for row in data:
            row.mul(2).add(1)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(10):
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run = record(program)
    assert (len(run.device("cpu").steps), run.guessed) == (10, None)


def test_so_they_do_before_steps_that_are_marked(record):
    def program():
        data = [torch.ones(8) * i for i in range(60)]
        for _ in range(12):
            for row in data:
                row.mul(2).add(1)
            memprof.step()

    run = record(program)
    assert (len(run.device("cpu").steps), run.guessed) == (12, None)


def test_before_calls_of_a_model_and_a_training_after_those(record):
    def program():
        data = torch.stack([torch.ones(8) * i for i in range(60)])
        model = nn.Linear(8, 4)
        with torch.no_grad():
            for _ in range(12):
                model.eval()(data)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(10):
            loss = model.train()(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run = record(program)
    assert (len(run.device("cpu").steps), run.guessed) == (10, None)


def test_a_model_of_many_layers_is_no_loop_of_steps(record):
    def program():
        with torch.no_grad():
            model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(LEAST_TURNS - 2)])
            for _ in range(12):
                model(torch.ones(2, 4))

    run = record(program)
    assert len(run.device("cpu").steps) == 12
    assert run.guessed.sign == "call"


def test_short_turns_share_a_step_that_has_no_line(monkeypatch):
    ticks = iter(range(0, 10**9, 40_000))
    keys = FrameChains()
    turns = LineTurns(keys.places, lambda: next(ticks))
    monkeypatch.setattr(line_turns, "LEAST_STEP_NS", 10_000)
    assert turns.line == ("", 0)
    import sys

    told = []
    for _ in range(LEAST_TURNS + 1 + 15):
        told.append(turns.sees(keys.key(sys._getframe())))
    # 40 µs went by while the first 16 turns came: four of them take 10 µs.
    assert [i for i, ends in enumerate(told) if ends] == [16, 20, 24, 28]
    assert turns.line == ("", 0)


def test_what_comes_after_a_pause_follows_upon_nothing():
    import sys

    keys = FrameChains()
    turns = LineTurns(keys.places)
    for _ in range(4 * LEAST_TURNS):
        turns.interrupt()
        assert not turns.sees(keys.key(sys._getframe()))


def test_what_grows_before_anything_else_ran_is_logged_when_it_is_no_data(
    record, monkeypatch, caplog
):
    monkeypatch.setattr(session, "FLUSH_IN_WINDOW_US", 0)

    def make(late=lambda: None):
        samples = []
        for number in range(60):
            samples.append(torch.ones(1024))
            if number == 50:
                late()
        return samples

    def train():
        data = torch.stack(make())
        model = nn.Linear(1024, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(data).sum().backward()
            optimizer.step()

    with caplog.at_level("WARNING", logger="memprof"):
        record(train)
        record(make)
        assert not [one for one in caplog.messages if "memory grows" in one]
        record(lambda: make(late=lambda: monkeypatch.setattr(session, "PREPARES_US", 0)))
        assert len([one for one in caplog.messages if "memory grows" in one]) == 1
