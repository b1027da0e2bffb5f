"""unreset-metric: an object collects values, and its method that empties it is not called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.reference_chain import Link, LinkKind
from tests.rules.bench import Bench
from tests.rules.recorded import findings_of

WIDTH = 64


class Metric:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def reset(self):
        self.values.clear()


class Training:
    def __init__(self, epoch):
        self.metric, self.epoch = Metric(), epoch

    def step(self, number):
        self.metric.update(torch.zeros(WIDTH, WIDTH))
        if number % self.epoch == self.epoch - 1:
            self.metric.reset()


def fires():
    """One epoch that has no end."""
    return Training(epoch=1 << 20).step


def looks_alike():
    """It is reset at the end of each epoch of four steps."""
    return Training(epoch=4).step


def test_the_method_that_empties_it_is_named(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "unreset-metric"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "reset_metric"
    assert "`reset()` would empty it" in first.why


class Score(nn.Module):
    """Its state is copied with each call, as a library's metrics do."""

    def __init__(self):
        super().__init__()
        self.values = []

    def forward(self, value):
        self.values = [one.detach().clone() for one in self.values]
        self.values.append(value.clone())

    def reset(self):
        self.values.clear()


class Monitored:
    """The state is kept over each backward pass, and is no graph's: it was made without one."""

    def __init__(self):
        self.model, self.score = nn.Linear(WIDTH, WIDTH), Score()

    @torch.no_grad()
    def observe(self, output):
        self.score(output)

    def step(self, number):
        output = self.model(torch.randn(WIDTH, WIDTH))
        self.observe(output)
        output.square().mean().backward()
        self.model.zero_grad()


def observed():
    return Monitored().step


def test_a_state_that_was_made_without_a_graph_is_not_to_be_detached(tmp_path):
    (found,) = findings_of(observed, tmp_path / "run.json", steps=40)
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert not {"detach", "no_grad"} & {one.fix for one in found.remedies}


class Callback:
    """What empties it is for the library to call, which has something to give it."""

    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def on_train_begin(self, trainer):
        self.values.clear()


def called_back():
    callback = Callback()
    return lambda number: callback.update(torch.zeros(WIDTH, WIDTH))


def test_a_method_that_must_be_given_something_is_not_to_be_called(tmp_path):
    (found,) = findings_of(called_back, tmp_path / "run.json")
    assert found.rule == "growing-container"
    assert found.remedies[0].fix == "clear_container"


DISTANCE = """\
from metrics import Metric


class Distance(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("real", default=[])

    def update(self, real):
        self.real.append(real)

    def compute(self):
        return join(self.real).mean()


class Module:
    def __init__(self):
        self.distance = Distance()

    def validate(self, batch):
        self.distance.update(batch)

    def on_epoch_end(self):
        value = self.distance.compute()
        self.history.append(value.item())
"""
OWN_STATE = DISTANCE.replace('self.add_state("real", default=[])', "self.real = []")
OWN_RESET = DISTANCE + "        self.distance.reset()\n"
OF_ALL = DISTANCE + "        for metric in self.metrics:\n            metric.reset()\n"
OF_OTHERS = DISTANCE + "        self.sampler.reset()\n"
ANOTHER = DISTANCE.replace(
    "    def compute", "    def reset(self):\n        self.count = 0\n\n    def compute"
)


def advised(folder, text):
    bench = Bench(folder).write(text)
    links = (
        Link(LinkKind.LOCAL, "module", "main"),
        Link(LinkKind.MODULE_ATTRIBUTE, "distance.real", "Module", releases=("reset",)),
        Link(LinkKind.ITEM, "29", "list", length=61),
    )
    holder = bench.holder("self.real.append(real)", *links)
    return bench.advise("self.distance.update(batch)", holder)[0]


@pytest.mark.parametrize("text", [DISTANCE, OF_OTHERS])
def test_a_state_of_a_librarys_class_is_reset_where_it_is_computed(text, tmp_path):
    first = advised(tmp_path, text)
    assert (first.rule, first.fix) == ("unreset-metric", "reset_metric")
    assert first.code == "value = self.distance.compute()"
    assert "`reset()` would empty it" in first.why


COLLECTION = DISTANCE.replace("Distance()", "Collection({'fid': Distance()})")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (COLLECTION, "value = self.distances.compute()"),
        # of an object of the program's own a method of the same name is another one
        (f"{COLLECTION}\n\nclass Collection:\n    pass\n", "self.real.append(real)"),
    ],
)
def test_a_part_of_a_collection_is_reset_where_that_is_computed(text, code, tmp_path):
    bench = Bench(tmp_path).write(text.replace("self.distance.", "self.distances."))
    links = (
        Link(LinkKind.ATTRIBUTE, "distances", "Module"),
        Link(LinkKind.MODULE_ATTRIBUTE, "fid.real", "Collection", releases=("reset",)),
        Link(LinkKind.ITEM, "29", "list", length=61),
    )
    holder = bench.holder("self.real.append(real)", *links)
    first = bench.advise("self.distances.update(batch)", holder)[0]
    assert (first.rule, first.fix, first.code) == ("unreset-metric", "reset_metric", code)


PROPERTY = """\
class Metric:
    def __init__(self):
        self.clear()

    def clear(self):
        self.preds, self.targets = [], []

    def update(self, preds, targets):
        self.preds += [preds]
        self.targets += [targets]

    @property
    def value(self):
        return (torch.cat(self.preds) - torch.cat(self.targets)).abs().mean().item()


def validate(net, loader):
    metric = Metric()
    for epoch in range(8):
        for x, y in loader:
            metric.update(net(x), y)
        print(metric.value)
"""


def test_a_property_computes_as_well(tmp_path):
    bench = Bench(tmp_path).write(PROPERTY)
    links = (
        Link(LinkKind.LOCAL, "metric", "validate"),
        Link(LinkKind.ATTRIBUTE, "targets", "Metric"),
        Link(LinkKind.ITEM, "15", "list", length=31),
    )
    holder = bench.holder("self.targets += [targets]", *links)
    first = bench.advise("metric.update(net(x), y)", holder)[0]
    assert (first.rule, first.fix) == ("unreset-metric", "reset_metric")
    assert first.code == "print(metric.value)"
    assert "`clear()` would empty it" in first.why


@pytest.mark.parametrize("text", [OWN_STATE, OWN_RESET, OF_ALL, ANOTHER])
def test_what_the_library_does_not_know_of_or_is_reset_is_emptied_otherwise(text, tmp_path):
    assert advised(tmp_path, text).fix == "clear_container"
