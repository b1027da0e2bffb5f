"""old-graphs: activations of a bounded number of earlier steps stay with their graphs."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.rules.waste.old_graphs import RULE
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from memprof.views.window import Window
from tests.rules.recorded import findings_of, names

MIB = 1 << 20


def job():
    """A model that is trained, and a critic whose values are stored."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    # Two layers keep something: too few to tell a pass by.
    critic = nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, critic, deque(maxlen=5)


def trained(model, x):
    model(x).square().mean().backward()
    model.zero_grad()


def fires():
    model, critic, recent = job()

    def step(number):
        x = torch.randn(512, 64)
        value = critic(x).mean()
        recent.append(value)
        trained(model, x)

    return step


def looks_alike():
    """Truncated backpropagation through time: the loss of five steps goes backward at once."""
    cell, head = nn.GRUCell(64, 64), nn.Linear(64, 64)
    losses, state = [], [torch.zeros(128, 64)]

    def step(number):
        state[0] = cell(torch.randn(128, 64), state[0])
        losses.append(head(state[0]).square().mean())
        if len(losses) == 5:
            sum(losses).backward()
            losses.clear()
            state[0] = state[0].detach()
            for module in (cell, head):
                module.zero_grad()

    return step


def relearned():
    """The graphs of the last steps are stored, and every step learns through all of them again."""
    net = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(64, 64), nn.Tanh())))
    links = deque(maxlen=5)

    def step(number):
        start = (links[-1][1].detach() if links else torch.ones(512, 64)).requires_grad_(True)
        links.append((start, net(start)))
        grad = torch.ones(512, 64)
        for begin, end in list(links)[::-1]:
            end.backward(grad, retain_graph=True)
            grad, begin.grad = begin.grad, None
        net.zero_grad()

    return step


def outputs():
    """The last outputs of the critic are stored, as large as an activation, without graphs."""
    model, critic, recent = job()

    def step(number):
        x = torch.randn(512, 64)
        recent.append(critic(x).detach())
        trained(model, x)

    return step


def test_outputs_without_graphs_are_no_graphs(tmp_path):
    assert "old-graphs" not in names(outputs, tmp_path / "run.json")


def test_graphs_that_a_later_backward_pass_goes_through_are_meant(tmp_path):
    (graphs,) = [
        one for one in findings_of(relearned, tmp_path / "run.json") if one.rule == "old-graphs"
    ]
    assert graphs.is_tentative
    assert graphs.remedies == ()


def test_what_is_stored_is_told_to_be_detached(tmp_path):
    (graphs,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "old-graphs"
    ]
    assert graphs.match.steps == 4  # the fifth is of the step itself
    assert graphs.bytes == 4 * 2 * 512 * 64 * 4  # of two layers each: what a tanh saves
    assert graphs.remedies[0].code == "recent.append(value)"
    assert "+        recent.append(value.detach())" in graphs.remedies[0].patch


def of_many_layers():
    """The same of a critic in which the pass itself is seen to be kept for nothing."""
    model, _, recent = job()
    critic = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(64, 64), nn.Tanh())))

    def step(number):
        x = torch.randn(512, 64)
        value = critic(x).mean()
        recent.append(value)
        trained(model, x)

    return step


def test_a_pass_that_nothing_learns_through_needs_no_graph_at_all(tmp_path):
    first, *others = findings_of(of_many_layers, tmp_path / "run.json")
    assert first.rule == "evaluation-graph"
    assert (first.remedies[0].fix, first.remedies[0].code) == (
        "no_grad",
        "value = critic(x).mean()",
    )
    assert "old-graphs" not in [one.rule for one in others]


class Learner:
    """Keeps its last losses, whose graphs backward passes are told to retain."""

    def __init__(self):
        self.net, _, self.recent = job()
        self.options = {"retain_graph": True}

    def learn(self, x):
        loss = self.net(x).square().mean()
        loss.backward(**self.options)
        self.net.zero_grad()
        self.recent.append(loss)


def retained_by_options():
    learner = Learner()
    learner.net.append(nn.Linear(64, 64)).append(nn.Tanh())
    return lambda number: learner.learn(torch.randn(512, 64))


def test_a_pass_whose_backward_pass_retains_its_graph_is_not_to_be_without_one(tmp_path):
    found = findings_of(retained_by_options, tmp_path / "run.json")
    (graphs,) = [one for one in found if one.rule == "old-graphs"]
    assert graphs.bytes == 5 * 2 * 512 * 64 * 4  # of two layers each: what a tanh saves
    assert [one.fix for one in graphs.remedies] == ["detach"]
    assert graphs.remedies[0].code == "self.recent.append(loss)"
    assert "no_grad" not in [remedy.fix for one in found for remedy in one.remedies]


class Monitor:
    def __init__(self):
        self.entropy = 0.0

    def update(self, logits):
        logs = logits.log_softmax(-1)
        self.entropy = self.entropy - (logs.exp() * logs).sum(-1).mean()


def with_a_sum_that_is_reset():
    model, monitor = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), Monitor()

    def step(number):
        logits = model(torch.randn(512, 64))
        monitor.update(logits)
        logits.square().mean().backward()
        model.zero_grad()
        if number % 10 == 9:
            monitor.entropy = 0.0

    return step


def test_a_sum_with_its_graphs_outside_of_modules_is_one_too(tmp_path):
    (found,) = [
        one
        for one in findings_of(with_a_sum_that_is_reset, tmp_path / "run.json", steps=40)
        if one.rule == "old-graphs"
    ]
    assert "are activations of 8 earlier steps" in found.title  # those of the last two are fresh
    assert found.remedies[0].fix == "detach"
    assert found.remedies[0].code.startswith("self.entropy = self.entropy - (logs.exp()")


class Meter:
    """An average that is begun anew at each epoch's end."""

    def __init__(self):
        self.total = 0.0

    def update(self, value):
        self.total = self.total + value


def blurred(x):
    return (x.tanh() * x.sigmoid()).exp().square().mean()


def outside_of_modules():
    """What the graph has saved is a metric's most of all, which no module computes."""
    net, meter = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), Meter()

    def step(number):
        if number % 6 == 0:
            meter.total = 0.0
        result = net(torch.randn(512, 64))
        meter.update(blurred(result))
        result.square().mean().backward(retain_graph=False)
        net.zero_grad()

    return step


def test_what_a_metric_saved_outside_of_modules_counts_as_well(tmp_path):
    found = findings_of(outside_of_modules, tmp_path / "run.json", steps=24)
    graphs = next(one for one in found if one.rule == "old-graphs")
    assert graphs.minor is False
    # tanh, sigmoid and exp of five earlier steps
    assert graphs.bytes == 5 * 3 * 512 * 64 * 4
    assert graphs.remedies[0].code == "self.total = self.total + value"


def energy(field):
    return (field.sin() * field).sum()


def solved(field, slope, right, rounds, tracker):
    """Gradient steps for a linear system that `slope`'s graph multiplies by: none learns."""
    x = torch.zeros_like(right)
    r = right
    for _ in range(rounds):
        (product,) = torch.autograd.grad(slope, field, grad_outputs=r.detach(), retain_graph=True)
        length = (r * r).sum() / ((r * product).sum() + 1.0)
        x = x + length * r
        r = r - length * product
        tracker.step()
    return x


def newton(path, *, cut_off):
    """Newton's method, whose right side has a graph, by which each round of the solver keeps one.

    No module is called.
    """
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(4):
            field = torch.rand(128, 128, requires_grad=True)
            (slope,) = torch.autograd.grad(energy(field), field, create_graph=True)
            right = -slope.detach() if cut_off else -slope
            solved(field, slope, right, 12, tracker)
    return findings(load(path))


def test_rounds_of_a_solver_that_nothing_learns_through_begin_with_what_has_no_graph(tmp_path):
    (found,) = [
        one
        for one in newton(tmp_path / "run.json", cut_off=False)
        if one.rule == "old-graphs" and not one.minor
    ]
    (first, *_) = found.remedies
    assert first.fix == "detach"
    assert "each round of a loop computes `r` and `x` from that of the last" in first.why
    # `r` and `product` of the rounds before, and three numbers, which products have saved
    assert found.bytes == 11 * (2 * 128 * 128 * 4 + 3 * 512)
    assert first.saves_bytes >= found.bytes - 2 * 128 * 128 * 4
    detached = newton(tmp_path / "detached.json", cut_off=True)
    assert "old-graphs" not in [one.rule for one in detached]


def unrolled(path):
    """The same rounds, and a backward pass goes through all of them."""
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(4):
            field = torch.rand(128, 128, requires_grad=True)
            x = field * 1.0
            for _ in range(12):
                x = x - 0.1 * x.cos() * x
                tracker.step()
            torch.autograd.grad(energy(x), field, retain_graph=True)
            torch.autograd.grad(x.sum(), field)
    return findings(load(path))


def product_with_graph(total, params):
    return torch.autograd.grad(total, params, create_graph=True)


def product(total, params):
    return torch.autograd.grad(total, params)


def influence(path, multiplied):
    """A model is trained; then a recursion of second derivatives, which nothing learns through."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params)
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        for _ in range(20):
            model(torch.rand(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
        for _ in range(4):
            estimate = [one.detach().clone() for one in params]
            for _ in range(24):
                loss = model(torch.rand(32, 64)).square().mean()
                slopes = torch.autograd.grad(loss, params, create_graph=True)
                parts = zip(slopes, estimate, strict=True)
                total = sum((slope * one.detach()).sum() for slope, one in parts)
                pairs = zip(estimate, multiplied(total, params), strict=True)
                estimate = [0.9 * one - change / 9 for one, change in pairs]
                tracker.step()
    return findings(load(path))


def test_gradients_that_are_asked_for_with_a_graph_are_to_be_asked_for_without(tmp_path):
    found = [one for one in influence(tmp_path / "run.json", product_with_graph) if not one.minor]
    (first, *_) = found[0].remedies
    assert (found[0].rule, first.fix) == ("old-graphs", "no_create_graph")
    assert first.code == "return torch.autograd.grad(total, params, create_graph=True)"
    without = influence(tmp_path / "without.json", product)
    assert "old-graphs" not in [one.rule for one in without]


def test_rounds_that_a_backward_pass_goes_through_are_needed(tmp_path):
    assert "old-graphs" not in [one.rule for one in unrolled(tmp_path / "run.json")]


def looked_at_now_and_then(path):
    """Of most passes it is not known what autograd saved; all of eight steps goes at once."""
    trace = TraceBuilder(device="cpu")
    for step in range(32):
        for module in ("net.0", "net.1"):
            trace.label(step=step, module=module, phase=Phase.FORWARD)
            category = Category.UNKNOWN if step % 8 else Category.ACTIVATION
            made_by = (Frame(f"{module}.forward", str(path.with_suffix(".py")), 3),)
            trace.alloc(MIB, f"{module} {step}", stack=made_by, category=category)
        trace.label(step=step)
        trace.alloc(512, f"number {step}").free(f"number {step}")
        for earlier in range(step - 7, step + 1) if step % 8 == 7 else ():
            trace.free(f"net.0 {earlier}").free(f"net.1 {earlier}")
    return load(write_run(path, trace.build()))


def test_what_the_same_calls_made_while_autograd_was_not_looked_at_counts_as_well(tmp_path):
    run = looked_at_now_and_then(tmp_path / "run.json")
    (graphs,) = [one for one in findings(run) if one.rule == "old-graphs"]
    assert graphs.bytes == 6 * 2 * MIB  # the last two of eight steps are no older than their step


STORED = """class History:
    def push(self, part, x):
        self.table[part] = {}
"""


@pytest.mark.parametrize(
    ("value", "through_graph", "is_unfounded"),
    [("x.detach()", False, True), ("x", False, False), ("x.detach()", True, False)],
)
def test_what_is_stored_detached_keeps_no_graph_though_one_had_saved_it(
    value, through_graph, is_unfounded, tmp_path
):
    findings_of(fires, tmp_path / "run.json")
    source = tmp_path / "history.py"
    source.write_text(STORED.format(value))
    links = [
        Link(LinkKind.LOCAL, "history", "main"),
        Link(LinkKind.ATTRIBUTE, "table", "History"),
        Link(LinkKind.ITEM, "3", "dict", length=6),
        *([Link(LinkKind.AUTOGRAD_NODE, "ReluBackward0")] if through_graph else ()),
    ]
    code = source.read_text().splitlines()[2].strip()
    holder = Holder(kind=LinkKind.ITEM, filename=str(source), line=3, code=code, links=links)
    run = load(tmp_path / "run.json")
    window = Window.of(run.device("cpu").windows[-1], run=run)
    (match,) = RULE.matches(window)
    assert RULE.is_unfounded(match, [holder], window) is is_unfounded


class Memory(nn.Module):
    """Each block attends to what the blocks made of earlier segments, which is stored detached."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3))

    def new_memory(self):
        return [deque(maxlen=5) for _ in self.blocks]

    def forward(self, x, memory):
        for block, past in zip(self.blocks, memory, strict=True):
            inp = x
            x = block(torch.cat([*past, x]))[-512:]
            past.append(inp.detach())
        return x


def remembering():
    model = Memory()
    optimizer, memory = torch.optim.SGD(model.parameters(), 0.01), model.new_memory()

    def step(number):
        optimizer.zero_grad()
        model(torch.randn(512, 64), memory).square().mean().backward()
        optimizer.step()

    return step


def test_what_another_function_stores_detached_has_no_graph(tmp_path):
    found = findings_of(remembering, tmp_path / "run.json")
    assert "old-graphs" not in {one.rule for one in found}
