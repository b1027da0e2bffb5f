"""no-backward: graphs are built and kept where nothing ever runs a backward pass."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame, Phase
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, record


def job():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def fires():
    model, scores = job(), []

    def step(number):
        scores.append(model(torch.randn(64, 64)).square().mean())

    return step


def looks_alike():
    """The same in a job that trains: the graph may be wanted."""
    model, scores = job(), []

    def step(number):
        model(torch.randn(64, 64)).square().mean().backward()
        model.zero_grad()
        scores.append(model(torch.randn(64, 64)).square().mean())

    return step


def samples_after_training():
    """A few steps of training, and then samples that are drawn one from the other."""
    model, images = job(), [torch.randn(64, 64)]

    def step(number):
        if number < 4:
            model(torch.randn(64, 64)).square().mean().backward()
            model.zero_grad()
        else:
            images.append(model(images[-1]))

    return step


def test_a_backward_pass_that_was_over_before_is_none_of_the_samples(tmp_path):
    (first, *_) = findings_of(samples_after_training, tmp_path / "run.json", 24)
    (remedy,) = (one for one in first.remedies if one.rule == "no-backward")
    assert (remedy.fix, remedy.code) == ("no_grad", "images.append(model(images[-1]))")


def drawn_on():
    """One image, drawn from itself again and again by a model with many layers."""
    model = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(64, 64), nn.GELU())))
    images = [torch.randn(512, 64)]

    def step(number):
        images[0] = model(images[0])

    return step


def four_calls_in_a_step():
    """Each with its own graph, all kept."""
    model, scores = job(), []

    def step(number):
        scores.extend(model(torch.randn(64, 64)).square().mean() for _ in range(4))

    return step


def without_any_graph():
    """The same as it is to be."""
    step = four_calls_in_a_step()
    return torch.no_grad()(step)


def test_without_gradients_no_call_of_a_step_has_a_graph_at_the_peak(tmp_path):
    (first, *_) = findings_of(four_calls_in_a_step, tmp_path / "run.json", 24)
    (remedy,) = (one for one in first.remedies if one.rule == "no-backward")
    record(without_any_graph, tmp_path / "mended.json", 24)
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    assert (remedy.fix, remedy.saves_per_step) == ("no_grad", True)
    of_one_call = 6 * 64 * 64 * 4  # bytes
    assert 0 <= mended.peak_allocated - remedy.peak_after < of_one_call


def kept_on():
    """Results alone, of one layer."""
    model, images = job(), []

    @torch.no_grad()
    def step(number):
        images.append(model(torch.randn(512, 64)))

    return step


@pytest.mark.parametrize(("program", "fix"), [(drawn_on, "no_grad"), (kept_on, "clear_container")])
def test_what_several_modules_made_hangs_on_a_graph_though_nobody_is_known_to_hold_it(
    program, fix, tmp_path
):
    record(program, tmp_path / "run.json", 16)
    (found, *_) = findings(replace(load(tmp_path / "run.json"), findings=()))
    assert found.holders == ()
    assert found.remedies[0].fix == fix


@pytest.mark.parametrize(("modules", "is_graph"), [(4, True), (2, False)])
def test_what_several_modules_made_is_a_graph_though_none_could_be_read(
    modules, is_graph, tmp_path
):
    """A pool's threads call the model: graphs are not read while these might train."""
    source = tmp_path / "embed.py"
    source.write_text("def embed(model, x):\n    return model(x).mean(0)\n")
    os.utime(source, (1, 1))  # before the recording, whose time is made up
    inner = Frame("Linear.forward", "/x/site-packages/torch/nn/modules/linear.py", 134)
    stack = (inner, Frame("embed", str(source), 2))
    trace = TraceBuilder(device="cpu")
    for step in range(20):
        for number in range(modules):
            trace.label(step=step, phase=Phase.FORWARD, module=f"Net.{number}")
            trace.alloc(1 << 20, f"{step}-{number}", stack=stack)
    unknown = Link(LinkKind.UNKNOWN, unowned=Unowned(cut_off=True))
    holder = Holder(LinkKind.UNKNOWN, "", 0, "", [unknown])
    held = Finding("holders", device="cpu", step=15, stack=1, holders=[holder])
    (found, *_) = findings(load(write_run(tmp_path / "run.json", trace.build(), more=[held])))
    assert found.bytes_per_step == modules << 20
    assert (found.remedies[0].fix == "no_grad") is is_graph


@pytest.mark.parametrize(
    ("is_graph", "learns", "is_told"), [(True, False, True), (True, True, False), (False,) * 3]
)
def test_a_list_that_a_comprehension_makes_keeps_graphs_as_well(
    is_graph, learns, is_told, tmp_path
):
    """It is bound when it is whole, and then the graphs are of no use to anybody."""
    source = tmp_path / "predict.py"
    source.write_text("def predict(net, tiles):\n    return cat([net(one) for one in tiles])\n")
    os.utime(source, (1, 1))  # before the recording, whose time is made up
    inner = Frame("Linear.forward", "/x/site-packages/torch/nn/modules/linear.py", 134)
    stack = (inner, Frame("predict", str(source), 2))
    trace = TraceBuilder(device="cpu")
    for step in range(20):
        trace.label(step=step, phase=Phase.FORWARD, module="Net")
        trace.alloc(1 << 20, f"saved {step}", stack=stack)
    if learns:
        trace.label(step=20, phase=Phase.BACKWARD).alloc(512, "gradient").free("gradient")
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner="list")),
        Link(LinkKind.ITEM, "2", "list", length=7),
    ]
    if is_graph:
        links += [
            Link(LinkKind.AUTOGRAD_NODE, nodes=[("SigmoidBackward0", 1)]),
            Link(LinkKind.SAVED_TENSOR, "input", "ConvolutionBackward0"),
        ]
    holder = Holder(links[-1].kind, links=links)
    held = Finding("holders", device="cpu", step=15, stack=1, holders=[holder])
    growing = findings(load(write_run(tmp_path / "run.json", trace.build(), more=[held])))
    remedies = [one.remedies[0] for one in growing if one.bytes_per_step]
    code = "return cat([net(one) for one in tiles])"
    assert [(one.fix, one.code) for one in remedies] == [("no_grad", code)] * is_told


def cached():
    """Each answer is as large as all that its graph saves, many times over."""
    layer, cache = torch.nn.Linear(16, 4096), {}

    def step(number):
        cache[number] = layer(torch.randn(1, 16))

    return step


def test_a_graph_that_is_little_of_what_is_kept_is_not_the_first_to_go(tmp_path):
    found, *_ = findings_of(cached, tmp_path / "run.json", 40)
    assert found.remedies[0].fix != "no_grad"
    (ungraded,) = [one for one in found.remedies if one.fix == "no_grad"]
    assert ungraded.saves_bytes < found.bytes_per_step / 4
