"""double-precision: a model was converted to float64, and with it all that is computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.records import DoubleResults
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from tests.rules.recorded import findings_of

WIDTH = 128


def model(width=WIDTH):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))


def training(net, dtype):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(number):
        net(torch.randn(32, WIDTH, dtype=dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(model().double(), torch.float64)


class Summed(nn.Module):
    """A model in single precision, of which one small layer is computed in double precision."""

    def __init__(self):
        super().__init__()
        self.body = model()
        self.calibration = nn.Linear(4, 4).double()

    def forward(self, x):
        return self.calibration(self.body(x).double())


def looks_alike():
    return training(Summed(), torch.float32)


def test_half_of_the_peak_is_what_single_precision_saves(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "double-precision"
    ]
    saving = found.match.saving
    assert found.bytes == saving.before == 2 * saving.bytes
    assert found.site.code == "return training(model().double(), torch.float64)"
    assert [one.fix for one in found.remedies] == ["single_precision"]


def test_autocast_which_narrows_no_double_is_not_what_helps():
    net = model().double()
    with torch.autocast("cpu", torch.bfloat16):
        assert net(torch.randn(2, WIDTH, dtype=torch.float64)).dtype == torch.float64


def by_line_searches():
    """L-BFGS: its searches end early where differences of the loss are rounded off."""
    net = model().double()
    optimizer = torch.optim.LBFGS(net.parameters(), history_size=8)

    def step(number):
        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(32, WIDTH, dtype=torch.float64)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    return step


def test_an_optimizer_that_needs_it_is_a_reason_and_its_history_is_no_second_state(tmp_path):
    rules = {
        one.rule for one in findings_of(by_line_searches, tmp_path / "run.json") if not one.minor
    }
    assert not rules & {"double-precision", "second-states"}


def doubled(program, line, path):
    """What is found where a layer that a line of a program calls returns doubles in each step."""
    made = (Frame("<module>", str(program), line),)
    trace = TraceBuilder(device="cpu")
    trace.alloc(1 << 10, "weight", category=Category.PARAMETER)
    for step in range(12):
        trace.label(step=step, phase=Phase.FORWARD, module="Net.layer")
        trace.alloc(1 << 20, "out", stack=made, category=Category.ACTIVATION)
        trace.label(step=step, phase=Phase.BACKWARD).free("out")
    doubles = DoubleResults("cpu", stack=[1], size=[1 << 20], origin=[0])
    write_run(path, trace.build(), more=(doubles,))
    return [one for one in findings(load(path)) if one.rule == "double-precision"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Net().double()", True),
        ("Net().to(torch.float64)", True),
        ("Net().to(batch.dtype)", True),
        ("Net().type(torch.float64)", True),
        ("Net().type(str(batch))", False),
        ("Net().to(device)", False),
        ("Net()", False),
    ],
)
def test_a_model_that_was_converted_between_windows_is_told_by_what_it_computes(
    line, told, tmp_path
):
    program = tmp_path / "train.py"
    program.write_text(f"model = {line}\nfor batch in data:\n    model(batch)\n")
    found = doubled(program, 3, tmp_path / "run.json")
    assert [(one.site.line, one.remedies[0].line) for one in found] == ([(1, 1)] if told else [])


@pytest.mark.parametrize("kind", ["torch.float64", "kind", "Settings.kind"])
def test_of_a_model_and_its_data_it_is_the_conversion_of_what_is_called(kind, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "kind = torch.float64\nclass Settings:\n    kind = torch.float64\n"
        f"for batch in data:\n    batch = batch.to(device, {kind})\n    model(batch)\n"
        f"model = Net()\nmodel = model.to({kind})\n"
    )
    found = doubled(program, 6, tmp_path / "run.json")
    assert [one.site.line for one in found] == [8]


class Wide(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH, **given)
        self.out = nn.Linear(WIDTH, 4, **given)

    def forward(self, x):
        return self.out(torch.tanh(self.mix(x)))


def by_the_layers():
    """Each layer is made with the type that the model is given."""
    net = Wide(dtype=torch.float64)
    return training_with(net, torch.float64)


def by_method_of_modules():
    """A model and its data are brought to double precision by `to`."""
    net = Wide()
    net = net.to(torch.device("cpu"), torch.float64)
    return training_with(net, torch.float64)


def by_type():
    net = Wide()
    net = net.type(torch.float64)
    return training_with(net, torch.float64)


def training_with(net, dtype):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(number):
        net(torch.randn(128, WIDTH).to(dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (by_the_layers, "net = Wide(dtype=torch.float64)"),
        (by_method_of_modules, 'net = net.to(torch.device("cpu"), torch.float64)'),
        (by_type, "net = net.type(torch.float64)"),
    ],
)
def test_the_line_that_makes_the_parameters_so_is_named(program, code, tmp_path):
    (found,) = [
        one for one in findings_of(program, tmp_path / "run.json") if one.rule == "double-precision"
    ]
    assert found.site.code == code
    assert [one.fix for one in found.remedies] == ["single_precision"]
    assert found.bytes == found.match.saving.before == 2 * found.match.saving.bytes


def in_single_precision():
    """Some of the data is in double precision, and nothing that the model computes."""
    table = torch.randn(256, WIDTH).to(torch.float64)
    net = Wide()

    def step(number):
        net(table[:128].float()).square().mean().backward()
        net.zero_grad()

    return step


def test_data_in_double_precision_is_none_of_the_model(tmp_path):
    rules = {one.rule for one in findings_of(in_single_precision, tmp_path / "run.json")}
    assert "double-precision" not in rules
