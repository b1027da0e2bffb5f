"""running-sum: a sum over the steps hangs on the graph of everything that was added to it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from memprof.loading import load
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import running_sum
from memprof.rules.growth.running_sum import innermost
from memprof.rules.ranked_findings import findings
from memprof.source_code.program import program_of
from tests import forks
from tests.rules.recorded import findings_of


def job():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def fires():
    model, meter = job(), SimpleNamespace(total=0.0)

    def step(number):
        loss = model(torch.randn(64, 64)).square().mean()
        meter.total = meter.total + loss

    return step


def looks_alike():
    """Batch statistics, as a normalization keeps them: a sum over the steps of what has no graph."""
    model, kept = job(), []
    meter = SimpleNamespace(total=torch.zeros(64))

    def step(number):
        out = model(torch.randn(64, 64))
        meter.total = meter.total + out.detach().mean(0)
        kept.append(out.detach())
        out.square().mean().backward()

    return step


def test_what_was_added_is_named_and_the_number_added_instead(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first, *_, last = found.remedies
    assert found.rule == first.rule == "running-sum"
    assert (first.fix, last.fix) == ("item", "detach")
    assert first.code == "meter.total = meter.total + loss"
    assert "+        meter.total = meter.total + loss.item()" in first.patch
    assert first.saves_bytes == round(found.bytes_per_step)


def first_of(text, tmp_path):
    """The first finding of a script."""
    script = tmp_path / "train.py"
    script.write_text(text)
    done = forks.run_file(script, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    return findings(load(tmp_path / "run.json"))[0]


MOVING = """
import sys
import memprof
import torch
from torch import nn

def main():
    model, mean = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.zeros(())
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(24):
            out = model(torch.randn(64, 64))
            out.square().mean().backward()
            mean = 0.9 * mean + 0.1 * (out * out.tanh()).mean()
            tracker.step()

main()
"""


def test_an_average_that_moves_is_a_sum_with_weights(tmp_path):
    first = first_of(MOVING, tmp_path)
    assert first.rule == first.remedies[0].rule == "running-sum"
    assert first.remedies[0].code == "mean = 0.9 * mean + 0.1 * (out * out.tanh()).mean()"


SMOOTHED = """
import sys
import memprof
import torch
from torch import nn

def smoother(beta):
    value = None

    def smooth(new):
        nonlocal value
        value = new if value is None else beta * value + (1 - beta) * new
        return value

    return smooth

def score(model, x, ema):
    error = model(x).square().mean()
    return ema(error)

def main():
    model, ema = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), smoother(0.9)
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(24):
            current = score(model, torch.randn(64, 64), ema)
            model(torch.randn(64, 64)).square().mean().backward()
            tracker.step()

main()
"""


def test_of_an_average_that_two_functions_return_the_line_in_the_closure_is_named(tmp_path):
    first = first_of(SMOOTHED, tmp_path)
    assert first.rule == first.remedies[0].rule == "running-sum"
    line = "value = new if value is None else beta * value + (1 - beta) * new"
    assert (first.remedies[0].fix, first.remedies[0].code) == ("detach", line)
    cut = "value = new.detach() if value is None else beta * value + ((1 - beta) * new).detach()"
    assert cut in first.remedies[0].patch


def in_closure():
    """Nobody binds what the average returns: only the closure has it."""
    model = job()
    value = None

    def update(new):
        nonlocal value
        if value is None:
            value = torch.zeros(())
        value = 0.9 * value + 0.1 * new
        return value

    def step(number):
        update(model(torch.randn(64, 64)).square().mean())
        model(torch.randn(64, 64)).square().mean().backward()

    return step


def test_what_a_closure_has_is_named_by_the_line_that_goes_on_with_it(tmp_path):
    (found,) = findings_of(in_closure, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "running-sum"
    assert (first.fix, first.code) == ("item", "value = 0.9 * value + 0.1 * new")


DYNAMICS = """
import sys
import memprof
import torch
from torch import nn

def forces_at(model, pos):
    pos = pos.detach().requires_grad_(True)
    (grad,) = torch.autograd.grad(model(pos).sum(), pos, create_graph=True)
    return -grad

def main():
    model, pos, vel = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(64, 64), 0.0
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        force = forces_at(model, pos)
        for _ in range(24):
            vel = vel + 0.01 * force
            pos = pos + 0.01 * vel
            force = forces_at(model, pos)
            tracker.step()

main()
"""


def test_of_sums_of_one_another_what_theinnermost_adds_is_to_come_without_its_graph(tmp_path):
    """To cut what is added to `pos` off leaves the graph of `vel`."""
    first = first_of(DYNAMICS, tmp_path)
    remedy = first.remedies[0]
    assert (first.rule, remedy.fix) == ("running-sum", "detach")
    assert remedy.code == "force = forces_at(model, pos)"
    assert remedy.typed == "force = force.detach()"


TRAINED = """
import torch

def run(model, pos, target):
    vel = 0.0
    for _ in range(24):
        vel = vel + 0.01 * model(pos)
        pos = pos + 0.01 * vel
    (pos - target).square().mean().backward()
"""


def test_sums_through_which_a_backward_pass_goes_are_left_alone(tmp_path):
    script = tmp_path / "trained.py"
    script.write_text(TRAINED)
    program = program_of(str(script))
    place = program.at(8)
    assert innermost(place, running_sum(place), [program]) is None


BY_NAME = """
import sys
import memprof
import torch
from torch import nn

def epoch(model, sums, tracker):
    for _ in range(8):
        loss = model(torch.randn(64, 64)).square().mean()
        for name, value in {"loss": loss, "root": loss.sqrt()}.items():
            sums[name] = sums.get(name, 0) + value
        model(torch.randn(64, 64)).square().mean().backward()
        tracker.step()

def main():
    model, sums = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), {}
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(4):
            epoch(model, sums, tracker)

main()
"""


def test_a_sum_in_a_dict_that_a_function_is_handed_is_named_where_it_is_added_to(tmp_path):
    first = first_of(BY_NAME, tmp_path)
    remedy = first.remedies[0]
    assert (first.rule, remedy.fix) == ("running-sum", "item")
    assert remedy.code == "sums[name] = sums.get(name, 0) + value"


SHADOW = """
import sys
import memprof
import torch
from torch import nn

class Shadow:
    def __init__(self, model):
        self.means = {name: one.clone() for name, one in model.named_parameters()}

    def update(self, model):
        for name, one in model.named_parameters():
            self.means[name] = 0.9 * self.means[name] + 0.1 * one

def main():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    shadow, optimizer = Shadow(model), torch.optim.SGD(model.parameters(), 0.1)
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(48):
            model(torch.randn(64, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            shadow.update(model)
            tracker.step()

main()
"""


def test_an_average_of_parameters_that_an_object_moves_is_to_be_made_without_graphs(tmp_path):
    found = first_of(SHADOW, tmp_path)
    first = found.remedies[0]
    assert (found.kind, first.rule, first.fix) == (Kind.HOST_GROWTH, "running-sum", "detach")
    assert first.code == "self.means[name] = 0.9 * self.means[name] + 0.1 * one"
    assert "0.9 * self.means[name] + (0.1 * one).detach()" in first.patch
