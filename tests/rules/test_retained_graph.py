"""retained-graph: activations stay after the step's last backward pass, until the next step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from memprof.rules.waste.retained_graph import advice_within
from memprof.source_code.program import program_of
from memprof.trace import Frame
from tests.rules.recorded import findings_of


def job():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def fires():
    model, optimizer = job()
    kept = {}

    def step(number):
        kept["loss"] = model(torch.randn(512, 64)).square().mean()
        kept["loss"].backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def looks_alike():
    """The loss stays, and its graph went with the backward pass."""
    model, optimizer = job()
    kept = {}

    def step(number):
        kept["loss"] = model(torch.randn(512, 64)).square().mean()
        kept["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Game:
    """A graph is made in one function and gone through in another, which asks to keep it."""

    def __init__(self):
        self.model, self.optimizer = job()

    def learn(self, made):
        self.optimizer.zero_grad()
        loss = made.square().mean()
        loss.backward(retain_graph=True)
        self.optimizer.step()
        return {"loss": loss}


def played():
    """A step is over with its optimizer's; what is replaced after it counts to the next."""
    game, terms = Game(), {}

    def step(number):
        made = game.model(torch.randn(512, 64))
        terms.update(game.learn(made))

    return step


def test_the_line_that_asks_is_found_by_the_backward_pass_itself(tmp_path):
    (found, *_) = findings_of(played, tmp_path / "run.json")
    (first, *_) = found.remedies
    assert (found.rule, first.fix) == ("retained-graph", "no_retain_graph")
    assert first.code == "loss.backward(retain_graph=True)"
    assert "-        loss.backward(retain_graph=True)\n+        loss.backward()\n" in first.patch
    assert "unvisited-graph" not in {one.rule for one in findings_of(played, tmp_path / "run.json")}


class Functional(nn.Module):
    """All that a pass keeps is of one module: activations are functions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Trainer:
    def __init__(self, options=None):
        self.model = Functional()
        self.options = {"retain_graph": True} if options is None else options
        self.losses = {}

    def learn(self, x):
        loss = self.model(x).square().mean()
        torch.autograd.backward(loss, **self.options)
        self.model.zero_grad()
        self.losses["last"] = loss

    def learn_by_place(self, x):
        loss = self.model(x).square().mean()
        torch.autograd.backward(loss, None, True)
        self.model.zero_grad()
        self.losses["last"] = loss


def by_options():
    trainer = Trainer()
    return lambda number: trainer.learn(torch.randn(512, 64))


def by_place():
    trainer = Trainer()
    return lambda number: trainer.learn_by_place(torch.randn(512, 64))


def with_other_options():
    trainer = Trainer(options={})
    return lambda number: trainer.learn(torch.randn(512, 64))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (by_options, "torch.autograd.backward(loss, **self.options)"),
        (by_place, "torch.autograd.backward(loss, None, True)"),
    ],
)
def test_a_graph_of_one_module_is_kept_whole_where_options_or_a_place_ask_for_it(
    program, code, tmp_path
):
    (found, *_) = findings_of(program, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("retained-graph", False)
    # Of two steps: of each layer its result, and a number of the loss.
    assert found.bytes == 2 * (4 * 512 * 64 * 4 + 512)
    (asking,) = [one for one in found.remedies if one.fix == "no_retain_graph"]
    assert asking.code == code
    assert "no_grad" not in {
        remedy.fix for one in findings_of(program, tmp_path / "run.json") for remedy in one.remedies
    }


def test_options_that_ask_for_nothing_keep_no_graph(tmp_path):
    rules = {one.rule for one in findings_of(with_other_options, tmp_path / "run.json")}
    assert "retained-graph" not in rules


class ReturnsAll(nn.Module):
    """Results of one module that stay are no graph, whatever another pass asks for."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        parts = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            parts.append(x)
        return parts[:3], x


def with_parts_kept():
    model, kept = ReturnsAll(), {}

    def step(number):
        kept["parts"], result = model(torch.randn(512, 64))
        result.square().mean().backward(retain_graph=number < 0)

    return step


def test_results_of_one_module_that_stay_are_no_graph(tmp_path):
    rules = {one.rule for one in findings_of(with_parts_kept, tmp_path / "run.json")}
    assert "retained-graph" not in rules


def players(cut):
    """A critic's step and a generator's in one: the same samples go through the critic twice."""
    generator, optimizer = job()
    critic, others = job()
    sample = (lambda made: made.detach()) if cut else (lambda made: made)

    def step(number):
        made = generator(torch.randn(512, 64))
        others.zero_grad()
        worth = critic(sample(made)).square().mean()
        worth.backward(retain_graph=not cut)
        others.step()
        optimizer.zero_grad()
        loss = critic(made).mean()
        loss.backward()
        optimizer.step()
        worth.item()

    return step


def test_a_graph_that_stays_beside_the_passes_after_its_own_is_to_be_cut_off(tmp_path):
    found, *_ = findings_of(lambda: players(cut=False), tmp_path / "run.json")
    first, second = found.remedies
    assert found.rule == "retained-graph"
    assert found.match.is_within_step
    assert found.bytes >= 4 * 512 * 64 * 4  # of each Tanh its result
    assert first.saves_bytes > 0
    assert (first.fix, first.typed) == ("detach", "made.detach()")
    assert first.code == "worth = critic(sample(made)).square().mean()"
    assert (second.fix, second.code) == ("del_ref", "worth.backward(retain_graph=not cut)")


def real_and_made():
    """The critic judges what is real first, and that is larger."""
    generator, optimizer = job()
    critic, others = job()

    def step(number):
        made = generator(torch.randn(256, 64))
        real = critic(torch.randn(1024, 64))
        false = critic(made)
        worth = real.square().mean() - false.square().mean()
        others.zero_grad()
        worth.backward(retain_graph=True)
        others.step()
        optimizer.zero_grad()
        critic(made.repeat(4, 1)).mean().backward()
        optimizer.step()
        worth.item()

    return step


def test_the_pass_that_is_to_be_cut_off_is_the_one_of_what_is_needed_later(tmp_path):
    found, *_ = findings_of(real_and_made, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == "retained-graph"
    assert (first.fix, first.typed) == ("detach", "made.detach()")
    assert first.code == "false = critic(made)"


def of_one_batch():
    """Both passes go through the same batch, which has no graph that could be cut off."""
    model, optimizer = job()
    critic, _ = job()

    def step(number):
        batch = torch.randn(512, 64).mul(2)
        worth = critic(batch).square().mean()
        worth.backward(retain_graph=True)
        optimizer.zero_grad()
        loss = model(batch).mean() + critic(batch).mean()
        loss.backward()
        optimizer.step()
        worth.item()

    return step


def test_a_batch_is_not_to_be_detached(tmp_path):
    found, *_ = findings_of(of_one_batch, tmp_path / "run.json")
    assert (found.rule, found.match.is_within_step) == ("retained-graph", True)
    asked, dropped = found.remedies  # no later pass goes through it: none needs it
    assert (asked.fix, asked.code) == ("no_retain_graph", "worth.backward(retain_graph=True)")
    assert (dropped.fix, dropped.code) == ("del_ref", asked.code)
    assert "`worth = worth.item()`" in dropped.why
    assert "detach" not in {one.fix for one in found.remedies}


def twice():
    """Gradients of both passes are for one step of both models."""
    generator, optimizer = job()
    critic, _ = job()

    def step(number):
        made = generator(torch.randn(512, 64))
        worth = critic(made).square().mean()
        worth.backward(retain_graph=True)
        loss = critic(made * 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worth.item()

    return step


def test_where_the_gradients_of_both_passes_are_used_the_graph_is_to_be_let_go_of(tmp_path):
    found, *_ = findings_of(twice, tmp_path / "run.json")
    assert [one.fix for one in found.remedies][:2] == ["del_ref", "detach"]


def test_a_pass_that_is_cut_off_frees_its_graph(tmp_path):
    found = findings_of(lambda: players(cut=True), tmp_path / "run.json")
    assert [one for one in found if one.rule == "retained-graph"] == []


def of_scores():
    """What the loss is made of keeps the graph as well, and has no one number."""
    model, optimizer = job()

    def step(number):
        scores = model(torch.randn(512, 64))
        loss = scores.square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        again = model(torch.randn(512, 64)).mean()
        again.backward()
        optimizer.zero_grad()
        loss.item()

    return step


def test_scores_and_their_loss_are_both_let_go_of(tmp_path):
    found, *_ = findings_of(of_scores, tmp_path / "run.json")
    asked, dropped = found.remedies
    assert (asked.fix, dropped.fix) == ("no_retain_graph", "del_ref")
    assert dropped.why.endswith(": `del scores, loss` there.")


def over_splits():
    """A sequence in parts: the state that goes on from one to the next keeps its graph."""
    cell, head = nn.GRUCell(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.01)

    def step(number):
        optimizer.zero_grad()
        state = torch.zeros(256, 64)
        for _ in range(4):
            state = cell(torch.randn(256, 64), state)
            loss = head(state).square().mean()
            loss.backward(retain_graph=True)
        optimizer.step()

    return step


def test_a_state_that_goes_on_to_the_next_round_is_cut_off(tmp_path):
    (found,) = [
        one
        for one in findings_of(over_splits, tmp_path / "run.json")
        if one.rule == "retained-graph"
    ]
    first = found.remedies[0]
    assert (first.fix, first.typed) == ("detach", "state.detach()")
    assert first.code == "state = cell(torch.randn(256, 64), state)"
    assert "no_retain_graph" not in [one.fix for one in found.remedies]  # it would end the program
    assert "drop `retain_graph=True`" in first.why


def of_real_ones():
    """What is real goes through the critic once, and its graph is retained for nothing."""
    generator, optimizer = job()
    critic, others = job()

    def step(number):
        made = generator(torch.randn(512, 64))
        others.zero_grad()
        of_real = critic(torch.randn(512, 64)).square().mean()
        of_real.backward(retain_graph=True)
        of_made = critic(made).mean()
        of_made.backward(retain_graph=True)
        others.step()
        optimizer.zero_grad()
        critic(made).mean().backward()
        optimizer.step()
        return of_real.item() + of_made.item()

    return step


def test_a_pass_whose_graph_no_other_goes_through_is_not_to_retain_it(tmp_path):
    found = findings_of(of_real_ones, tmp_path / "run.json")
    found = next(one for one in found if one.rule == "retained-graph")
    first, *others = found.remedies
    assert (first.fix, first.code) == ("no_retain_graph", "of_real.backward(retain_graph=True)")
    # and saves what that pass leaves, not what the other does
    assert 0 < first.saves_bytes < found.match.saving.bytes
    # the other pass needs its own: what made the samples is gone through again
    assert "no_retain_graph" not in [one.fix for one in others]


def of_tasks():
    model, optimizer = job()

    def step(number):
        outputs = model(torch.randn(512, 64))
        losses = {"size": outputs.square().mean(), "sum": outputs.sum(1).square().mean()}
        for name, loss in losses.items():
            ((2 if name == "size" else 1) * loss).backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        HELD.update(losses)

    return step


HELD = {}


def test_losses_of_one_graph_are_added_up(tmp_path):
    (found,) = findings_of(of_tasks, tmp_path / "run.json")
    HELD.clear()
    first, second = found.remedies
    assert found.rule == "retained-graph"
    assert (first.fix, second.fix) == ("no_retain_graph", "del_ref")
    assert first.code.endswith("* loss).backward(retain_graph=True)")
    assert "add the losses up" in first.why


def gradients_of_each(model, losses):
    """Surgery on gradients needs those of each task for themselves."""
    of_tasks = []
    for loss in losses.values():
        loss.backward(retain_graph=True)
        of_tasks.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
        for one in model.parameters():
            one.grad = None
    return torch.stack(of_tasks).mean(0)


def of_tasks_apart():
    model, _ = job()

    def step(number):
        outputs = model(torch.randn(512, 64))
        losses = {"size": outputs.square().mean(), "sum": outputs.sum(1).square().mean()}
        gradients_of_each(model, losses)
        HELD.update(losses)

    return step


def test_where_the_gradients_of_each_loss_are_read_the_last_pass_alone_frees_the_graph(tmp_path):
    found = next(
        one
        for one in findings_of(of_tasks_apart, tmp_path / "run.json")
        if one.rule == "retained-graph"
    )
    HELD.clear()
    first = found.remedies[0]
    assert (first.fix, first.code) == ("no_retain_graph", "loss.backward(retain_graph=True)")
    assert "`retain_graph=i < len(losses) - 1`" in first.why


def real_and_cut_off():
    """What the generator made is judged without its graph: none is needed again."""
    generator, optimizer = job()
    critic, others = job()

    def step(number):
        made = generator(torch.randn(256, 64))
        real = critic(torch.randn(1024, 64))
        false = critic(made.detach())
        worth = real.square().mean() - false.square().mean()
        others.zero_grad()
        worth.backward(retain_graph=True)
        others.step()
        optimizer.zero_grad()
        critic(made.repeat(4, 1)).mean().backward()
        optimizer.step()
        worth.item()

    return step


def test_what_is_cut_off_already_needs_no_graph_that_stays(tmp_path):
    found, *_ = findings_of(real_and_cut_off, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("retained-graph", "no_retain_graph")
    assert first.code == "worth.backward(retain_graph=True)"


STEPS = """\
def step(self, x):
    made = self.generator(x)
    real = self.critic(x)
    false = self.critic({handed})
    worth = real.mean() - {added}
    worth.backward(retain_graph=True)
    (self.critic(made).mean() + {later}).backward()
    return worth.item()
"""


@pytest.mark.parametrize(
    ("handed", "added", "later", "fixes"),
    [
        ("made.detach()", "false.mean()", "0", ["no_retain_graph", "del_ref"]),
        ("made.detach()", "false.mean()", "real.detach().mean()", ["no_retain_graph", "del_ref"]),
        ("made.detach()", "false.mean()", "real.mean()", ["del_ref", "detach"]),
        ("made", "false.mean()", "0", ["del_ref", "detach"]),
        ("made.detach()", "(false.mean() + made.mean())", "0", ["del_ref", "detach"]),
    ],
)
def test_what_is_handed_over_without_its_graph_needs_none_that_stays(
    handed, added, later, fixes, tmp_path
):
    path = tmp_path / "train.py"
    path.write_text(STEPS.format(handed=handed, added=added, later=later))
    program = program_of(str(path))
    sites = [program.at(line) for line in (3, 4)]
    match = SimpleNamespace(made_before=frozenset({Frame("step", str(path), 2)}), of_line=None)
    advice = advice_within(sites[0], sites, program.at(6), "8 MiB", match)
    assert [one.fix for one in advice] == fixes
