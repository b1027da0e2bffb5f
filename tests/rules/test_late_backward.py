"""late-backward: graphs of several passes wait for one backward pass of the sum of their losses."""

from __future__ import annotations

import operator
from functools import partial, reduce

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names


def model():
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))


def fires():
    net = model()

    def step(number):
        losses = []
        for _ in range(4):
            losses.append(net(torch.randn(256, 64)).square().mean())
        torch.stack(losses).sum().backward()
        net.zero_grad()

    return step


def looks_alike():
    """An unrolled recurrence: each pass goes on from the one before, so the graphs are one."""
    net = model()

    def step(number):
        total, state = torch.zeros(()), torch.randn(256, 64)
        for _ in range(4):
            state = net(state)
            total = total + state.square().mean()
        total.backward()
        net.zero_grad()

    return step


def test_the_statement_that_collects_the_losses_is_named(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "late-backward"
    )
    assert found.match.passes == 4
    assert found.remedies[0].code == "losses.append(net(torch.randn(256, 64)).square().mean())"


def each_by_itself():
    """Of each loss of a list the gradient is taken by itself, when all are there."""
    net = model()

    def step(number):
        likelihoods = []
        for _ in range(6):
            likelihoods.append(net(torch.randn(64, 64)).log_softmax(1).mean())
        total = torch.zeros(())
        for likelihood in likelihoods:
            gradients = torch.autograd.grad(likelihood, list(net.parameters()))
            total += sum(one.square().sum() for one in gradients)
        return total.item()

    return step


def test_losses_of_a_list_that_a_loop_takes_the_gradients_of_are_collected_too(tmp_path):
    (late,) = [
        one
        for one in findings_of(each_by_itself, tmp_path / "r.json")
        if one.rule == "late-backward"
    ]
    (first,) = late.remedies
    assert first.code == "likelihoods.append(net(torch.randn(64, 64)).log_softmax(1).mean())"
    assert first.saves_bytes > 0


def one_entry_for_each_task():
    net = model()

    def step(number):
        parts = {}
        for task in range(4):
            parts[task] = net(torch.randn(256, 64)).square().mean()
        total = sum(parts.values())
        total.backward()
        net.zero_grad()

    return step


def test_losses_in_a_dict_with_an_entry_for_each_turn_are_added_up_as_well(tmp_path):
    found = findings_of(one_entry_for_each_task, tmp_path / "run.json")
    found = next(one for one in found if one.rule == "late-backward")
    assert found.match.passes == 4
    assert found.remedies[0].code == "parts[task] = net(torch.randn(256, 64)).square().mean()"


def smoothed(logits):
    """A loss that takes more than the model itself."""
    logs = logits.repeat(1, 40).exp().log_softmax(-1)
    return -(logs * logs.exp()).sum(-1).mean()


def a_large_loss():
    net = model()

    def step(number):
        total = 0.0
        for _ in range(4):
            logits = net(torch.randn(64, 64))
            total = total + smoothed(logits) / 4
        total.backward()
        net.zero_grad()

    return step


def test_losses_that_take_most_are_of_the_passes(tmp_path):
    found = findings_of(a_large_loss, tmp_path / "run.json")
    found = next(one for one in found if one.rule == "late-backward")
    assert found.match.passes == 4
    assert found.remedies[0].code == "total = total + smoothed(logits) / 4"


def now_and_then():
    net = model()

    def step(number):
        total = 0
        for at in range(4):
            loss = net(torch.randn(256, 64)).square().mean() / 4
            total = total + loss
            if (at + 1) % 4 == 0:
                total.backward()
                net.zero_grad()
                total = 0

    return step


def under_a_condition():
    """Each loss has its own pass, if it is finite; the rest is for nothing."""
    net = model()

    def step(number):
        for _ in range(4):
            loss = net(torch.randn(256, 64)).square().mean()
            loss = loss + 1.0
            if loss.isfinite():
                loss.backward()
            net.zero_grad()

    return step


def test_a_backward_pass_under_a_condition_is_of_the_rounds_before(tmp_path):
    found = findings_of(now_and_then, tmp_path / "run.json")
    found = next(one for one in found if one.rule == "late-backward")
    assert found.match.passes == 4
    assert found.remedies[0].code == "total = total + loss"
    found = findings_of(under_a_condition, tmp_path / "other.json")
    assert "late-backward" not in [one.rule for one in found]


class Learner:
    """Its method has the backward pass."""

    def __init__(self):
        self.net = model()

    def update(self, total):
        scaled = total / 4
        scaled.backward()
        self.net.zero_grad()

    def learn(self, results):
        loss = torch.stack(results).mean(0) @ torch.ones(64, 1) / 4
        loss.sum().backward()
        self.net.zero_grad()

    def compare(self, results):
        loss = torch.cat(results).var()
        loss.backward()
        self.net.zero_grad()


def by_a_method():
    learner = Learner()

    def step(number):
        total = 0.0
        for at in range(1, 5):
            total = total + learner.net(torch.randn(256, 64)).square().mean()
            if at % 4 == 0:
                learner.update(total)
                total = 0.0

    return step


def compared_by_a_method():
    """A loss of all results together, which no single one of them has."""
    learner = Learner()

    def step(number):
        results = []
        for _ in range(4):
            results.append(learner.net(torch.randn(256, 64)))
        learner.compare(results)

    return step


def averaged_by_a_method():
    """A loss of what the results are together, after a division."""
    learner = Learner()

    def step(number):
        results = []
        for _ in range(4):
            results.append(learner.net(torch.randn(256, 64)))
        learner.learn(results)

    return step


def test_a_function_that_is_given_the_sum_may_have_the_backward_pass(tmp_path):
    found = findings_of(by_a_method, tmp_path / "run.json")
    found = next(one for one in found if one.rule == "late-backward")
    assert found.match.passes == 4
    assert found.remedies[0].code == (
        "total = total + learner.net(torch.randn(256, 64)).square().mean()"
    )
    for program in (compared_by_a_method, averaged_by_a_method):
        found = findings_of(program, tmp_path / f"{program.__name__}.json")
        assert "late-backward" not in [one.rule for one in found]


def with_a_term_each():
    """Each task adds its loss and a term of its own in one statement."""
    net = model()
    weights = nn.Parameter(torch.zeros(4))

    def step(number):
        total = 0.0
        for task in range(4):
            loss = net(torch.randn(256, 64)).square().mean()
            total = total + torch.exp(-weights[task]) * loss + 0.5 * weights[task]
        total.backward()
        net.zero_grad()
        weights.grad = None

    return step


def test_a_statement_that_adds_two_terms_adds_up_losses(tmp_path):
    found = next(
        one
        for one in findings_of(with_a_term_each, tmp_path / "run.json")
        if one.rule == "late-backward"
    )
    assert found.match.passes == 4
    assert found.remedies[0].code.startswith("total = total + torch.exp(-weights[task]) * loss")


def beside_what_is_only_shown():
    net = model()

    def step(number):
        losses = [torch.zeros(()), torch.zeros(())]
        for _ in range(4):
            with torch.no_grad():
                losses[0] += net(torch.randn(256, 64)).square().mean()
            losses[1] = losses[1] + net(torch.randn(256, 64)).square().mean()
        losses[-1].backward()
        net.zero_grad()

    return step


def test_what_is_added_up_without_gradients_starts_no_backward_pass(tmp_path):
    found = findings_of(beside_what_is_only_shown, tmp_path / "run.json")
    first = next(one for one in found if one.rule == "late-backward").remedies[0]
    assert first.code == "losses[1] = losses[1] + net(torch.randn(256, 64)).square().mean()"


def by_a_comprehension():
    net = model()

    def loss_of(x):
        return net(x).square().mean()

    def step(number):
        losses = torch.stack([loss_of(torch.randn(256, 64)) for _ in range(4)])
        losses.mean().backward()
        net.zero_grad()
        return losses.detach().max().item()

    return step


def by_a_reduction():
    net = model()

    def step(number):
        jobs = (lambda: net(torch.randn(256, 64)).square().mean() for _ in range(4))
        total = reduce(operator.add, (job() for job in jobs)) / 4
        total.backward()
        net.zero_grad()

    return step


def compared_with_each_other():
    """How far the losses are apart is a part of the loss."""
    net = model()

    def step(number):
        losses = torch.stack([net(torch.randn(256, 64)).square().mean() for _ in range(4)])
        total = losses.mean() + losses.std()
        total.backward()
        net.zero_grad()

    return step


def multiplied_with_each_other():
    net = model()

    def step(number):
        losses = torch.stack([net(torch.randn(256, 64)).square().mean() for _ in range(4)])
        (losses.sum() * losses.mean()).backward()
        net.zero_grad()

    return step


def views_of_one_batch():
    """A loss of all views together."""
    net = model()

    def step(number):
        views = torch.stack([net(torch.randn(256, 64)) for _ in range(4)])
        loss = views.var(0).mean()
        loss.backward()
        net.zero_grad()

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (
            by_a_comprehension,
            "losses = torch.stack([loss_of(torch.randn(256, 64)) for _ in range(4)])",
        ),
        (by_a_reduction, "total = reduce(operator.add, (job() for job in jobs)) / 4"),
    ],
)
def test_a_comprehension_computes_losses_that_are_added_up(program, code, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.match.passes) == ("late-backward", 4)
    (first,) = found.remedies
    assert (first.fix, first.code) == ("early_backward", code)
    assert first.saves_bytes > found.bytes // 2


@pytest.mark.parametrize(
    "program", [compared_with_each_other, multiplied_with_each_other, views_of_one_batch]
)
def test_losses_that_are_computed_with_each_other_need_all_graphs(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    assert "late-backward" not in [one.rule for one in found]


class Carried:
    """A state goes from frame to frame, in an attribute: the graphs of a window are one."""

    def __init__(self):
        self.net, self.state = model(), torch.zeros(256, 64)

    def window(self):
        losses = []
        for _ in range(4):
            out, self.state = self.advance(torch.randn(256, 64), self.state)
            losses.append(out.square().mean())
        torch.stack(losses).sum().backward()
        self.net.zero_grad()
        self.state = self.state.detach()

    def advance(self, x, state):
        out = self.net(x + state)
        return out, out


def carried():
    job = Carried()
    return lambda number: job.window()


def test_a_state_in_an_attribute_joins_the_graphs_of_a_window(tmp_path):
    assert "late-backward" not in names(carried, tmp_path / "run.json")


class Resetting(Carried):
    """Now and then a sequence ends, and the state begins anew."""

    def window(self):
        losses = []
        for number in range(4):
            if number == 2 or self.state is None:
                self.state = torch.zeros(256, 64)
            out, self.state = self.advance(torch.randn(256, 64), self.state)
            losses.append(out.square().mean())
        torch.stack(losses).sum().backward()
        self.net.zero_grad()
        self.state = self.state.detach()


def resetting():
    job = Resetting()
    return lambda number: job.window()


def test_a_state_that_begins_anew_now_and_then_joins_them_as_well(tmp_path):
    assert "late-backward" not in names(resetting, tmp_path / "run.json")


class Manually:
    """As a module of Lightning goes backward that steps its optimizers itself."""

    def __init__(self):
        self.net = model()

    def manual_backward(self, loss):
        loss.backward()

    def terms_of(self, x):
        out = self.net(x)
        return {"square": out.square().mean(), "sum": out.sum(1).square().mean()}

    def step(self, number):
        terms = {"square": 0.0, "sum": 0.0}
        for part in torch.randn(1024, 64).split(256):
            for name, value in self.terms_of(part).items():
                terms[name] = terms[name] + value / 4
        self.manual_backward(terms["square"] + 0.1 * terms["sum"])
        self.net.zero_grad()


def test_what_a_loop_goes_over_is_computed_before_its_body_runs(tmp_path):
    found = next(
        one
        for one in findings_of(lambda: Manually().step, tmp_path / "run.json")
        if one.rule == "late-backward"
    )
    assert found.match.passes == 4
    assert found.remedies[0].code == "terms[name] = terms[name] + value / 4"


def domain_losses(net, domains):
    losses = {}
    for name in domains:
        losses[name] = net(torch.randn(256, 64)).square().mean()
    return losses


def mean_of(losses):
    return torch.stack(list(losses.values())).mean()


def returned_in_a_dict():
    net = model()

    def step(number):
        losses = domain_losses(net, "abcd")
        loss = mean_of(losses)
        net.zero_grad()
        loss.backward()
        return {name: value.item() for name, value in losses.items()}

    return step


def loss_and_number(net):
    total = torch.zeros(())
    for _ in range(4):
        loss = net(torch.randn(256, 64)).square().mean()
        total = torch.add(total, loss)
    return total / 4, 4


def returned_with_a_number():
    net = model()

    def step(number):
        loss, _parts = loss_and_number(net)
        loss.backward()
        net.zero_grad()
        print(loss.item())

    return step


def begun_by_the_first():
    net = model()

    def step(number):
        total = None
        for _ in range(4):
            loss = net(torch.randn(256, 64)).square().mean()
            total = loss if total is None else total + loss
        total.backward()
        net.zero_grad()

    return step


class Accumulator:
    """A loop elsewhere calls its method, which adds up, and goes backward now and then."""

    def __init__(self):
        self.net, self.total, self.count = model(), 0.0, 0

    def add(self, x):
        loss = self.net(x).square().mean()
        self.total += loss / 4
        self.count += 1
        if self.count == 4:
            self.learn()

    def learn(self):
        self.total.backward()
        self.net.zero_grad()
        self.total, self.count = 0.0, 0


def in_an_attribute():
    job = Accumulator()

    def step(number):
        for x in torch.randn(4, 256, 64):
            job.add(x)

    return step


def loss_of(net, x):
    return net(x).square().mean()


def by_map():
    net = model()

    def step(number):
        losses = list(map(partial(loss_of, net), torch.randn(4, 256, 64)))
        loss = reduce(operator.add, losses) / len(losses)
        loss.backward()
        net.zero_grad()

    return step


class Scaler:
    """As torch's of mixed precision."""

    def scale(self, loss):
        return loss * 2.0


def scaled():
    net, scaler = model(), Scaler()

    def step(number):
        losses = [loss_of(net, x) for x in torch.randn(4, 256, 64)]
        scaler.scale(torch.stack(losses).mean()).backward()
        net.zero_grad()

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (returned_in_a_dict, "losses[name] = net(torch.randn(256, 64)).square().mean()"),
        (returned_with_a_number, "total = torch.add(total, loss)"),
        (begun_by_the_first, "total = loss if total is None else total + loss"),
        (in_an_attribute, "self.total += loss / 4"),
        (by_map, "losses = list(map(partial(loss_of, net), torch.randn(4, 256, 64)))"),
        (scaled, "losses = [loss_of(net, x) for x in torch.randn(4, 256, 64)]"),
    ],
)
def test_the_way_from_the_losses_to_the_backward_pass_may_be_longer(program, code, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.match.passes) == ("late-backward", 4)
    (first,) = found.remedies
    assert (first.fix, first.code) == ("early_backward", code)
    assert first.saves_bytes > found.bytes // 2


def results_of(net):
    results = []
    for _ in range(4):
        results.append(net(torch.randn(256, 64)))
    return results


def returned_to_be_compared():
    """The loss is of all results together."""
    net = model()

    def step(number):
        results = results_of(net)
        loss = torch.cat(results).var()
        loss.backward()
        net.zero_grad()

    return step


class Unrolled:
    """A state goes from call to call: the graphs are one."""

    def __init__(self):
        self.net, self.total, self.count = model(), 0.0, 0
        self.state = torch.zeros(256, 64)

    def add(self, x):
        self.state = self.net(x + self.state)
        self.total += self.state.square().mean() / 4
        self.count += 1
        if self.count == 4:
            self.total.backward()
            self.net.zero_grad()
            self.total, self.count, self.state = 0.0, 0, self.state.detach()


def unrolled():
    job = Unrolled()

    def step(number):
        for x in torch.randn(4, 256, 64):
            job.add(x)

    return step


class Compared:
    """What is learned from is the square of the sum."""

    def __init__(self):
        self.net, self.total, self.count = model(), 0.0, 0

    def add(self, x):
        self.total += self.net(x).square().mean() / 4
        self.count += 1
        if self.count == 4:
            (self.total * self.total).backward()
            self.net.zero_grad()
            self.total, self.count = 0.0, 0


def squared_in_an_attribute():
    job = Compared()

    def step(number):
        for x in torch.randn(4, 256, 64):
            job.add(x)

    return step


class Summing(nn.Module):
    """A layer that adds a term of its own to a sum, each time that it is run."""

    def __init__(self):
        super().__init__()
        self.body, self.total = model(), 0.0

    def forward(self, x):
        out = self.body(x)
        self.total += out.square().mean()
        return out


def one_layer_again_and_again():
    layer = Summing()

    def step(number):
        x = torch.randn(256, 64)
        for _ in range(4):
            x = layer(x)
        layer.total.backward()
        layer.zero_grad()
        layer.total = 0.0

    return step


@pytest.mark.parametrize(
    "program",
    [returned_to_be_compared, unrolled, squared_in_an_attribute, one_layer_again_and_again],
)
def test_what_is_learned_from_by_another_function_may_need_all_graphs(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    assert "late-backward" not in [one.rule for one in found]
