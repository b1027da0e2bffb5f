"""evaluation-graph: a forward pass keeps its activations for a backward pass that never comes."""

from __future__ import annotations

import runpy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.rules.waste.evaluation_graph import RULE
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, names, record


def job():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(model, optimizer):
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def fires():
    model, optimizer = job()

    def step(number):
        trained(model, optimizer)
        model(torch.randn(1024, 64)).square().mean().item()

    return step


def looks_alike():
    model, optimizer = job()

    def step(number):
        trained(model, optimizer)
        with torch.no_grad():
            model(torch.randn(1024, 64)).square().mean().item()

    return step


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return torch.tanh(x + self.second(torch.tanh(self.first(x)).exp()).exp())


def votes():
    """No optimizer: a call of each model is taken for a step, and graphs last for several."""
    members = [nn.Sequential(*(Block() for _ in range(3))).eval() for _ in range(5)]

    def step(number):
        x = torch.randn(512, 64)
        results = [member(x).softmax(-1) for member in members]
        return torch.stack(results).mean(0).argmax(-1).tolist()

    return step


def with_features():
    """A model that returns what its blocks made, without a graph."""
    members = [nn.Sequential(*(Block() for _ in range(3))).eval() for _ in range(5)]

    @torch.no_grad()
    def step(number):
        x = torch.randn(512, 64)
        features = []
        for member in members:
            for block in member:
                x = block(x)
                features.append(x)
        return torch.stack(features).mean(0).argmax(-1).tolist()

    return step


def test_graphs_that_several_models_keep_until_their_votes_are_counted_are_for_nothing(tmp_path):
    (first, *_) = findings_of(votes, tmp_path / "run.json")
    assert (first.rule, first.minor) == ("evaluation-graph", False)
    remedy = first.remedies[0]
    assert (remedy.fix, remedy.code) == (
        "no_grad",
        "results = [member(x).softmax(-1) for member in members]",
    )


def drawn_on():
    """An image that a model draws from itself, until the next one begins."""
    layers = (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))
    model = nn.Sequential(*(m for _ in range(3) for m in layers)).eval()
    images = [torch.randn(512, 64)]

    def step(number):
        images[0] = torch.randn(512, 64) if number == 14 else model(images[0]) / 2

    return step


def test_graphs_of_earlier_steps_need_not_be_cut_where_they_need_not_be(tmp_path):
    (first, *others) = findings_of(drawn_on, tmp_path / "run.json")
    assert (first.rule, first.minor) == ("evaluation-graph", False)
    assert "old-graphs" not in [one.rule for one in others]


def test_what_blocks_return_without_a_graph_is_none(tmp_path):
    rules = {one.rule for one in findings_of(with_features, tmp_path / "run.json")}
    assert "evaluation-graph" not in rules


LIBRARY = """
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

class Classifier:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, train, test):
        self.model(train).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.predict(test)

    def predict(self, rows):
        return self.model(rows).square().mean().item()
"""
"""A trainer that tests with gradients on, while it fits and when it is asked to predict."""


def fitted(folder, *, at_one_line):
    path = folder / "site-packages/tables/classifier.py"
    path.parent.mkdir(parents=True)
    path.write_text(LIBRARY)
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)

    def program():
        classifier = names["Classifier"](*job())

        def fits(number):
            classifier.fit(torch.randn(256, 64), torch.randn(8192, 64))

        def predicts(number):
            trained(classifier.model, classifier.optimizer)
            classifier.predict(torch.randn(8192, 64))

        return fits if at_one_line else predicts

    return program


@pytest.mark.parametrize("at_one_line", [True, False])
def test_a_line_that_trains_as_well_is_not_to_be_put_under_no_grad(at_one_line, tmp_path):
    every = findings_of(fitted(tmp_path, at_one_line=at_one_line), tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "evaluation-graph"]
    assert found.match.tentative is at_one_line
    remedy = found.remedies[0]
    assert remedy.fix == "no_grad"
    assert ("This line trains as well" in remedy.why) is at_one_line
    assert remedy.code.startswith("classifier.fit(" if at_one_line else "classifier.predict(")


def evaluated_first():
    """Within one step: the backward pass that follows is that of another forward pass."""
    model, optimizer = job()

    def step(number):
        for _ in range(2):
            model(torch.randn(8192, 64)).square().mean().item()
        trained(model, optimizer)

    return step


def summed():
    """One backward pass goes through all of them."""
    model, optimizer = job()

    def step(number):
        losses = [model(torch.randn(4096, 64)).square().mean() for _ in range(3)]
        sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_passes_before_that_of_the_training_are_told_from_passes_of_a_sum(tmp_path):
    found, *_ = findings_of(evaluated_first, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("evaluation-graph", False)
    assert found.remedies[0].saves_bytes == 3 * 8192 * 64 * 4  # all results but the last
    rules = {one.rule for one in findings_of(summed, tmp_path / "sum.json")}
    assert "evaluation-graph" not in rules


def drawn_now_and_then():
    """Between two steps: the graph of what was drawn last is there until it is drawn anew."""
    model, optimizer = job()
    kept = []

    def step(number):
        trained(model, optimizer)
        if number % 6 == 5:
            image = torch.randn(1024, 64)
            for _ in range(4):
                image = image + model(image) / 4
            kept[:] = [image]

    return step


def penalized():
    """The backward pass goes through both passes, and its graph stays for a second one."""
    model, optimizer = job()

    def step(number):
        first = model(torch.randn(4096, 64)).square().mean()
        second = model(torch.randn(4096, 64)).square().mean()
        (first + second).backward(retain_graph=True)
        first.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_graph_that_a_later_backward_pass_leaves_alone_is_for_nothing(tmp_path):
    found, *_ = findings_of(drawn_now_and_then, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("evaluation-graph", False)
    first = found.remedies[0]
    assert (first.fix, first.code) == ("no_grad", "image = image + model(image) / 4")
    rules = {one.rule for one in findings_of(penalized, tmp_path / "twice.json")}
    assert "evaluation-graph" not in rules


class Player:
    """Makes batches for training, and fills a pool in the same way before that."""

    def __init__(self):
        self.net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
        self.pool = []

    def make(self):
        self.made = self.net(torch.randn(256, 64))
        self.pool.append(self.made.mean())

    def fill(self):
        for _ in range(8):
            self.make()

    def learn(self):
        self.make()
        self.made.square().mean().backward()
        self.net.zero_grad()


def filled_by_what_trains():
    player = Player()

    def step(number):
        if number % 4 == 1:
            player.fill()
        else:
            player.learn()
        del player.pool[:]

    return step


def test_the_line_is_one_that_training_does_not_come_by(tmp_path):
    found, *_ = findings_of(filled_by_what_trains, tmp_path / "run.json")
    assert found.rule == "evaluation-graph"
    assert {(one.fix, one.code) for one in found.remedies} == {
        ("no_grad", "self.make()"),
        ("inference_mode", "self.make()"),
    }
    lines = {one.line for one in found.remedies}
    assert lines == {Player.fill.__code__.co_firstlineno + 2}


INLINE = """
import torch
from torch import nn

def main():
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    for _ in range(12):
        net(torch.randn(64, 64)).square().mean().backward()
        net.zero_grad()
        out = net(torch.randn(1024, 64))
        out.mean().item()
        del out
        TRACKER.step()

main()
"""


def test_a_function_that_trains_as_well_is_not_called_without_gradients(tmp_path):
    """Nothing further out is: the line stays the one that calls the model."""
    job, path = tmp_path / "job.py", tmp_path / "run.json"
    job.write_text(INLINE)
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        runpy.run_path(str(job), {"TRACKER": tracker})
    found, *_ = findings(load(path))
    assert found.rule == "evaluation-graph"
    assert {one.code for one in found.remedies} == {"out = net(torch.randn(1024, 64))"}


def predicts():
    """Results of all chunks so far are kept with their graphs as the recording ends."""
    model, _ = job()
    results = []

    def step(number):
        results.append(model(torch.randn(1024, 64)))

    return step


class Agent:
    def __init__(self):
        self.model, self.optimizer = job()
        self.chosen = []

    def act(self, seen):
        self.chosen.append(self.model(seen).mean())

    def learn(self):
        torch.stack(self.chosen).sum().backward()
        self.chosen.clear()
        self.optimizer.step()


def acts():
    """An episode is as long as the recording; what was chosen is learnt from at its end."""
    agent = Agent()

    def step(number):
        agent.act(torch.randn(1024, 64))
        if number == 99:
            agent.learn()

    return step


def test_passes_whose_graphs_are_all_there_at_the_end_are_for_nothing_where_nothing_learns(
    tmp_path,
):
    record(predicts, tmp_path / "run.json", steps=10)  # where nobody says that the list grows
    (device,) = examine(load(tmp_path / "run.json")).devices
    (match,) = RULE.matches(device.peak_window)
    assert not match.tentative
    assert match.saving.bytes == match.nbytes == 10 * 3 * 1024 * 64 * 4


def test_an_episode_that_is_learnt_from_later_needs_its_graphs(tmp_path):
    found = findings_of(acts, tmp_path / "run.json", steps=10)
    assert "evaluation-graph" not in [one.rule for one in found]


class Recurrent(nn.Module):
    """Two modules only, of which one goes through a sequence."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.GRU(8, 64, batch_first=True), nn.Linear(64, 1)

    def forward(self, x, state):
        y, state = self.layer(x, state)
        return self.out(y), state


def rolling():
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def evaluate():
        state, total = torch.zeros(1, 32, 64), 0.0
        for _ in range(8):
            out, state = model(torch.randn(32, 24, 8), state)
            total += out.square().mean().item()
        return total

    def step(number):
        out, _ = model(torch.randn(32, 24, 8), torch.zeros(1, 32, 64))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        evaluate()

    return step


def test_a_recurrent_layer_keeps_a_graph_by_itself(tmp_path):
    found = [
        one for one in findings_of(rolling, tmp_path / "run.json") if one.rule == "evaluation-graph"
    ]
    assert [one.remedies[0].fix for one in found] == ["no_grad"]
    assert found[0].remedies[0].code == "out, state = model(torch.randn(32, 24, 8), state)"


def epochs_end_in_a_test(retain_graph=False):
    """Each epoch of twenty steps ends in a test of four batches, whose losses are all kept."""
    model, optimizer = job()
    losses = []

    def step(number):
        optimizer.zero_grad()
        model(torch.randn(256, 64)).square().mean().backward(retain_graph=retain_graph)
        optimizer.step()
        if number % 20 == 19:
            losses.append([model(torch.randn(1024, 64)).square().mean() for _ in range(4)])

    return step


def test_the_graphs_of_two_tests_are_for_nothing_if_much_training_went_through_neither(tmp_path):
    (found, *_) = findings_of(epochs_end_in_a_test, tmp_path / "run.json", steps=64)
    assert (found.rule, found.remedies[0].fix) == ("evaluation-graph", "no_grad")
    # Three tests of four passes, with a result of each `tanh`; the last one of a test may stay.
    assert found.bytes == 3 * (4 * 4 - 1) * 1024 * 64 * 4


def test_the_graph_of_one_test_may_be_learnt_from(tmp_path):
    assert not any(
        one.rule == "evaluation-graph"
        for one in findings_of(epochs_end_in_a_test, tmp_path / "run.json", steps=36)
    )


def test_graphs_that_backward_passes_leave_whole_may_be_learnt_from_again_and_again(tmp_path):
    found = findings_of(
        lambda: epochs_end_in_a_test(retain_graph=True), tmp_path / "run.json", steps=64
    )
    assert not any(one.rule == "evaluation-graph" and not one.bytes_per_step for one in found)


class Functional(nn.Module):
    """Two layers' activations are functions: all that a pass keeps is of the model itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        return F.log_softmax(self.third(x), dim=1)


def of_functions(*, is_off=False):
    model = Functional()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    labels = torch.randint(0, 64, (1024,))

    def trained():
        optimizer.zero_grad()
        F.nll_loss(model(torch.randn(256, 64)), labels[:256]).backward()
        optimizer.step()

    def test():
        total = 0.0
        for _ in range(2):
            x = torch.randn(1024, 64)
            output = model(x)
            total += F.nll_loss(output, labels).item()
        return total

    def step(number):
        trained()
        torch.set_grad_enabled(not is_off)
        test()
        torch.set_grad_enabled(True)

    return step


def test_a_model_of_functions_keeps_a_graph_by_itself(tmp_path):
    found, *_ = findings_of(of_functions, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("evaluation-graph", False)
    assert {(one.fix, one.code) for one in found.remedies} == {
        ("no_grad", "output = model(x)"),
        ("inference_mode", "output = model(x)"),
    }


def test_what_a_model_of_functions_returns_without_a_graph_is_none(tmp_path):
    rules = names(lambda: of_functions(is_off=True), tmp_path / "run.json")
    assert "evaluation-graph" not in rules


class Features(nn.Module):
    """Returns what its last two layers make; the layers before these keep nothing unasked."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers[:3]:
            x = F.relu(layer(x))
        first = F.relu(self.layers[3](x))
        second = F.relu(self.layers[4](first))
        return first, second, F.relu(self.layers[5](second))


def looked_at():
    """Training too is of a list: what tests keep are results of the model's, without a graph."""
    model = Features()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        model(torch.randn(256, 64))[-1].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.set_grad_enabled(False)
        parts = model(torch.randn(1024, 64))
        sum(part.mean() for part in parts).item()
        torch.set_grad_enabled(True)

    return step


def test_features_of_one_module_are_no_graph(tmp_path):
    assert "evaluation-graph" not in names(looked_at, tmp_path / "run.json")


def run_epoch(model, batches, criterion, optimizer=None):
    total = 0.0
    for x, labels in batches:
        outputs = model(x)
        loss = criterion(outputs, labels)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


def batches(number, rows):
    return [(torch.randn(rows, 64), torch.randint(0, 64, (rows,))) for _ in range(number)]


def one_function_for_both():
    """Nothing is made outside of modules between two batches of a test and the next training."""
    model, optimizer = job()
    criterion = nn.CrossEntropyLoss()
    train, test = batches(2, 256), batches(2, 1024)

    def step(number):
        run_epoch(model, train, criterion, optimizer)
        run_epoch(model, test, criterion)

    return step


def test_of_one_function_for_both_the_call_for_the_test_is_to_be_changed(tmp_path):
    found, *_ = findings_of(one_function_for_both, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("evaluation-graph", False)
    assert {(one.fix, one.code) for one in found.remedies} == {
        ("no_grad", "run_epoch(model, test, criterion)"),
        ("inference_mode", "run_epoch(model, test, criterion)"),
    }


def phases():
    """One line calls the model for both, and all that leads to it does, too."""
    model, optimizer = job()
    data = {"train": batches(2, 256), "val": batches(2, 1024)}

    def step(number):
        for phase in ("train", "val"):
            for x, labels in data[phase]:
                outputs = model(x)
                loss = F.cross_entropy(outputs, labels)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

    return step


def test_a_line_for_both_turns_gradients_on_where_a_backward_pass_follows(tmp_path):
    found, *_ = findings_of(phases, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("evaluation-graph", False)
    assert [(one.fix, one.code, one.typed, one.patch) for one in found.remedies] == [
        ("no_grad", "outputs = model(x)", "with torch.set_grad_enabled(phase == 'train'):", "")
    ]
    assert "This line trains as well" in found.remedies[0].why


def pooled(score):
    """Parts are scored by the threads of a pool, which the caller's `no_grad` does not reach."""

    def program():
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
        pool = ThreadPoolExecutor(2)

        def step(number):
            parts = [(model, torch.randn(1024, 64)) for _ in range(4)]
            with torch.no_grad():
                return sum(pool.map(score, parts))

        return step

    return program


def with_gradients(part):
    model, x = part
    scores = model(x)
    return scores.mean().item()


@torch.no_grad()
def without_them(part):
    model, x = part
    return model(x).mean().item()


def test_a_thread_has_gradients_on_until_it_turns_them_off(tmp_path):
    found = findings_of(pooled(with_gradients), tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "evaluation-graph"]
    assert not one.minor
    first = one.remedies[0]
    assert (first.fix, first.code) == ("no_grad", "scores = model(x)")
    assert "Each thread has gradients on" in first.why
    assert "evaluation-graph" not in names(pooled(without_them), tmp_path / "none.json")
