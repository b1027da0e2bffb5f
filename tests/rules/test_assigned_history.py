"""assigned-history: an attribute or a buffer is assigned a tensor with the graph that made it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from tests import forks
from tests.rules.bench import Bench
from tests.rules.recorded import findings_of


class Centered(nn.Module):
    """Subtracts a running mean of its outputs, which it keeps with its graph."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.running_mean = torch.zeros(64)

    def forward(self, x):
        out = self.layer(x).tanh()
        mixed = 0.1 * out.mean(0) + 0.9 * self.running_mean
        self.running_mean = mixed
        return out - mixed


class CutOff(nn.Module):
    """The same with a running mean that has no graph, and the last outputs of a few steps."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.center = torch.zeros(64)
        self.outputs = []

    def forward(self, x):
        out = self.layer(x).tanh()
        mixed = 0.1 * out.mean(0) + 0.9 * self.center
        self.center = mixed.detach()
        self.outputs.append(out.detach())
        return out - mixed


def fires():
    layer = Centered()

    def step(number):
        layer(torch.randn(64, 64)).sum().item()

    return step


def looks_alike():
    layer = CutOff()

    def step(number):
        layer(torch.randn(64, 64)).sum().backward()

    return step


def test_what_is_assigned_is_to_be_assigned_without_its_graph(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "assigned-history"
    assert (first.fix, first.code) == ("detach", "self.running_mean = mixed")


class Threshold:
    """Two averages of one prediction, updated without `no_grad`."""

    def __init__(self):
        self.mean = torch.zeros(())
        self.by_class = torch.zeros(64)

    def update(self, out):
        m = 0.9
        self.mean = m * self.mean + (1 - m) * out.amax(1).mean()
        self.by_class = m * self.by_class + (1 - m) * out.mean(0)


def averaging():
    layer, threshold = nn.Linear(64, 64), Threshold()

    def step(number):
        out = layer(torch.randn(256, 64)).softmax(1)
        threshold.update(out)

    return step


def test_of_two_averages_both_are_to_be_computed_without_a_graph(tmp_path):
    found = findings_of(averaging, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.patch) == ("assigned-history", "no_grad", "")
    names = sorted(("`self.mean`", "`self.by_class`"))
    assert all(name in first.why for name in names)
    assert first.code.startswith(("self.mean =", "self.by_class ="))


def test_the_line_is_that_of_the_class_and_not_where_its_object_was_made(tmp_path):
    (found,) = in_file(tmp_path, NORMED)
    assert found.rule == "assigned-history"
    assert found.remedies[0].fix == "detach"
    assert found.remedies[0].code.startswith("self.running_var = 0.1 * out.var(0)")


def test_of_two_classes_with_the_attribute_none_is_named(tmp_path):
    (found,) = in_file(tmp_path, TWIN + NORMED)
    assert not any(one.code.startswith("self.running_var") for one in found.remedies)


def test_a_loop_through_layers_carries_no_state_over_the_steps(tmp_path):
    (found,) = in_file(tmp_path, OBSERVED)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("assigned-history", "detach")
    assert first.code.startswith("self.scale = 0.9 * self.scale + 0.1 * magnitude")


def in_file(folder, text):
    """What is found in a recording of a script of its own, which trains at other times."""
    script = folder / "train.py"
    script.write_text(f"{text}\ndef learn(loss):\n    loss.backward()\n")
    done = forks.run_file(script, folder / "run.json")
    assert done.returncode == 0, done.stderr
    return findings(load(folder / "run.json"))


TWIN = """
from torch import nn

class Scaled(nn.Module):
    def forward(self, x):
        self.running_var = x.var(0)
        return x
"""
NORMED = """
import sys
import memprof
import torch
from torch import nn

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("running_var", torch.ones(64))

    def forward(self, x):
        out = self.layer(x).tanh()
        self.running_var = 0.1 * out.var(0) + 0.9 * self.running_var
        return out / self.running_var.detach().sqrt()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Sequential(nn.Linear(64, 64), Normed()))

    def forward(self, x):
        return self.features(x)

def main():
    model = Net()
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(24):
            model(torch.randn(64, 64)).sum().item()
            tracker.step()

main()
"""
OBSERVED = """
import sys
import memprof
import torch
from torch import nn

class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x):
        magnitude = x.pow(2).mean(0).sqrt()
        self.scale = 0.9 * self.scale + 0.1 * magnitude
        return x

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.observer = nn.Linear(64, 64), Observer()

    def forward(self, x):
        x = self.observer(self.layer(x))
        return x.tanh()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Stage(), Stage()])

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x

def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600):
        for _ in range(24):
            loss = model(torch.randn(256, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

main()
"""


AVERAGED = """
import sys
import memprof
import torch
from torch import nn

class MovingScore:
    def __init__(self):
        self.value = None

    def update(self, score):
        if self.value is None:
            self.value = score
        else:
            self.value = 0.9 * self.value + 0.1 * score
        return self.value

def main():
    model, score = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), MovingScore()
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(24):
            out = model(torch.randn(64, 64))
            out.square().mean().backward()
            smoothed = score.update((out * out.tanh()).mean())
            tracker.step()

main()
"""


def test_of_an_average_that_a_method_hands_back_its_own_line_is_told(tmp_path):
    found, *_ = in_file(tmp_path, AVERAGED)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("assigned-history", "detach")
    assert first.code == "self.value = 0.9 * self.value + 0.1 * score"


def test_of_an_average_that_an_object_returns_when_it_is_called_its_line_is_told(tmp_path):
    called = AVERAGED.replace("def update(self", "def __call__(self").replace(
        "score.update(", "score("
    )
    found, *_ = in_file(tmp_path, called)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("assigned-history", "detach")
    assert first.code == "self.value = 0.9 * self.value + 0.1 * score"


CUT_OFF = (
    AVERAGED.replace("0.1 * score", "0.1 * score.detach()")
    .replace("self.value = score\n", "self.value = score.detach()\n")
    .replace("return self.value", "return score, self.value")
    .replace("def update", "def __call__")
    .replace(
        "smoothed = score.update((out * out.tanh()).mean())",
        "kept, smoothed = score(out.square().mean() + kept)",
    )
    .replace("        for _ in", "        kept, _ = score(torch.zeros(()))\n        for _ in")
)


def test_an_average_without_a_graph_is_not_to_blame_for_what_is_returned_with_it(tmp_path):
    found = in_file(tmp_path, CUT_OFF)
    remedies = [one for finding in found for one in finding.remedies]
    assert found
    assert not any("self.value" in one.code for one in remedies)


def track(module, momentum=0.1, **statistics):
    for name, value in statistics.items():
        old = getattr(module, f"average_{name}", 0.0)
        setattr(module, f"average_{name}", (1 - momentum) * old + momentum * value)


def configure(module, **settings):
    for name, value in settings.items():
        setattr(module, name, value)


class Tracked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        configure(self, momentum=0.1)

    def forward(self, x):
        out = self.layer(x).tanh()
        track(self, self.momentum, scale=out.square().mean())
        return out


def tracking():
    model = Tracked()

    def step(number):
        model(torch.randn(64, 64)).sum().backward()

    return step


def test_an_attribute_is_set_by_its_name_in_a_function(tmp_path):
    found = findings_of(tracking, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "assigned-history"
    assert (first.fix, first.code) == (
        "detach",
        'setattr(module, f"average_{name}", (1 - momentum) * old + momentum * value)',
    )
    assert "`module.average_scale` keeps the graph" in first.why


class Ranges(nn.Module):
    """Two attributes by the tuple that a method returns; the graph of one of them grows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.low, self.high = torch.zeros(()), torch.ones(())

    def ranges(self, out):
        return out.detach().min(), 0.9 * self.high + 0.1 * out.square().mean()

    def forward(self, x):
        out = self.layer(x).tanh()
        self.low, self.high = self.ranges(out)
        return out


def ranging():
    model = Ranges()

    def step(number):
        model(torch.randn(64, 64)).sum().backward()

    return step


def test_of_a_tuple_the_attribute_is_named_that_has_the_graph(tmp_path):
    found = findings_of(ranging, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("assigned-history", "detach")
    assert first.code == "self.low, self.high = self.ranges(out)"
    assert "`self.high` keeps the graph" in first.why


SCORING = """
import torch
from torch import nn

class Scoring(nn.Module):
    def __init__(self, x):
        self.score = VALUE

    def forward(self, x):
        return self.score(x)
"""


@pytest.mark.parametrize(
    ("value", "is_kept"), [("nn.Linear(64, 1)", False), ("torch.tanh(x)", True)]
)
def test_a_part_of_a_model_with_the_name_of_a_field_keeps_no_graph(value, is_kept, tmp_path):
    bench = Bench(tmp_path).write(SCORING.replace("VALUE", value))
    links = [
        Link(LinkKind.ITEM, "30", "list", length=63),
        Link(LinkKind.ATTRIBUTE, "score", "Prediction"),
        Link(LinkKind.AUTOGRAD_NODE),
        Link(LinkKind.SAVED_TENSOR, "mat1", "AddmmBackward0"),
    ]
    advice = bench.advise("return self.score", bench.holder("self.score = ", *links))
    assert ("assigned-history" in {one.rule for one in advice}) is is_kept
