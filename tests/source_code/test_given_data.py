"""Whether what a call is given may have a graph, where it is computed of other values."""

from __future__ import annotations

import pytest

from memprof.source_code.given_data import calls_given_data, is_given_data
from memprof.source_code.program import source_of
from memprof.trace import Frame

HEAD = """import torch
import torch.nn.functional as F
SIZE = 4
TWICE = 2 * SIZE

def noise(count, scale):
    values = torch.rand(count, TWICE) * scale
    return F.relu(values)

def shown(values):
    return net(values)

def pair(count):
    values = torch.rand(count, TWICE)
    return F.interpolate(values, scale_factor=0.5), values

def run(other):
"""
DOUBLED = "\n".join(
    ["    a0 = noise(SIZE, 1)", *(f"    a{n + 1} = a{n} * a{n} + a{n}" for n in range(40))]
)


@pytest.mark.parametrize(
    ("body", "is_data"),
    [
        ("    x = torch.zeros(SIZE)\n    net(x)", True),
        ("    x = noise(SIZE, 0.1).clamp(0, 1)[:2]\n    net(x)", True),
        ("    x = shown(noise(SIZE, 1))\n    net(x)", False),
        ("    x = noise(SIZE, other)\n    net(x)", False),
        ("    x = torch.rand(3) + weights\n    net(x)", False),
        ("    x = torch.rand(3)\n    x = x + 1\n    net(x)", False),  # of itself: not followed
        ("    x = torch.nn.Linear(3, 3)\n    net(x)", False),
        (f"{DOUBLED}\n    net(a40)", True),
        ("    low, high = pair(SIZE)\n    net(high)", True),  # one of several results
        ("    low, high = pair(SIZE)\n    high = high * weights\n    net(high)", False),
        ("    low, high = shown(SIZE)\n    net(high)", False),
        ("    for low, high in [pair(SIZE)]:\n        net(high)", True),  # one of a loop's
        ("    for high in shown(SIZE):\n        net(high)", False),
    ],
)
def test_data_is_what_comes_of_new_tensors_alone(body, is_data, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + body + "\n")
    program = source_of(str(path))
    line = len((HEAD + body).splitlines())
    assert is_given_data([program], (Frame("run", str(path), line),)) is is_data


X = "x = torch.rand(SIZE)"


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        ("F.mse_loss(net(other), net(x))", [False, True]),
        ("net(x) - net(other)", [True, False]),
        ("net(x)", []),
        ("F.relu(net(x)) + F.relu(other)", []),  # torch's function is no model
        ("net(net(x))", []),  # the inner one runs first
        ("net(x) if other else net(other)", []),
        ("[net(x) for _ in other] + [net(other)]", []),
        ("net(x) + net(other) + head(x) + head(other)", []),  # of two things
    ],
)
def test_several_calls_of_one_thing_in_the_order_in_which_they_run(statement, given, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(f"{HEAD}    {X}\n    y = {statement}\n")
    line = len(path.read_text().splitlines())
    calls = calls_given_data([source_of(str(path))], (Frame("run", str(path), line),))
    assert [is_given for _, is_given in calls] == given


LOOP = """import torch
from torch.utils.data import DataLoader

def scored(model, ids):
    return model(input_ids=ids)

def both(model, batch):
    ids = torch.cat([batch["first"], batch["second"]], dim=0)
    return scored(model, ids)

def train(reference, batch):
    return both(reference, batch)

def main(accelerator, reference, model):
    loader = DataLoader(pairs, batch_size=4)
    {prepared}
    for step, batch in {iterated}:
        train(reference, batch)
"""
CALLED = (("scored", 5), ("both", 9), ("train", 12), ("main", 18))


@pytest.mark.parametrize(
    ("prepared", "iterated", "is_data"),
    [
        ("pass", "enumerate(loader)", True),
        ("model, loader = accelerator.prepare(model, loader)", "enumerate(loader)", True),
        ("pass", "enumerate(tqdm(loader))", True),
        ("loader = model(loader)", "enumerate(loader)", False),
        ("pass", "enumerate(zip(loader, model))", False),
    ],
)
def test_what_is_joined_of_parameters_is_followed_to_the_loop(
    prepared, iterated, is_data, tmp_path
):
    path = tmp_path / "program.py"
    path.write_text(LOOP.format(prepared=prepared, iterated=iterated))
    stack = tuple(Frame(name, str(path), line) for name, line in CALLED)
    assert is_given_data([source_of(str(path))], stack) is is_data


MADE = """import torch
import torch.nn.functional as F
from torch import nn

class Patches({base}):
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        {made}

    def scaled(self, images):
        return F.interpolate(images, scale_factor=0.5)

    def next(self, batch):
        images = torch.rand(batch, 3, 8, 8, generator=self.generator)
        return {returned}

class Loss(nn.Module):
    def forward(self, output, target):
        return self.encoder(target)

def step(model, loss, low, high):
    output = model(low)
    value = loss(output, high)

def main(model, loss):
    train, other = Patches(seed=1), Patches(seed=2)
    step(model, {given})
"""


@pytest.mark.parametrize(
    ("base", "made", "returned", "given", "is_data"),
    [
        ("object", "pass", "self.scaled(images), images", "loss, *train.next(4)", True),
        ("torch.utils.data.Dataset", "pass", "images, images", "loss, *train.next(4)", True),
        ("object", "pass", "images, images", "*(loss, *train.next(4))", False),
        ("object", "pass", "images, images", "*[loss], *train.next(4)", False),
        ("nn.Module", "pass", "images, images", "loss, *train.next(4)", False),
        ("object", "self.net = nn.Linear(3, 3)", "images, images", "loss, *train.next(4)", False),
        ("object", "pass", "self.net(images), images", "loss, *train.next(4)", False),
        ("object", "pass", "made.net(images), images", "loss, *train.next(4)", False),
    ],
)
def test_what_an_object_without_modules_makes_is_data(
    base, made, returned, given, is_data, tmp_path
):
    path = tmp_path / "program.py"
    path.write_text(MADE.format(base=base, made=made, returned=returned, given=given))
    lines = path.read_text().splitlines()
    wanted = (("forward", "encoder"), ("step", "loss(output"), ("main", "step(model,"))
    stack = tuple(
        Frame(name, str(path), max(n for n, one in enumerate(lines, 1) if text in one))
        for name, text in wanted
    )
    assert is_given_data([source_of(str(path))], stack) is is_data


FED = """class Distiller(Trainer):
    def compute_loss(self, model, inputs):
        return self.teacher(input_ids=inputs["input_ids"])
    def compare(self, states):
        return self.teacher(states)
    def embed(self, model, inputs):
        inputs["embedded"] = self.prompt(inputs["input_ids"])
        return self.teacher(embedded=inputs["embedded"])
"""


def test_a_method_that_a_library_calls_with_a_batch_is_given_data(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(FED)
    program = source_of(str(path))
    for caller, is_data in (("transformers/trainer.py", True), ("library/loop.py", False)):
        by = Frame("training_step", f"/x/site-packages/{caller}", 1)
        of_batch = (Frame("Distiller.compute_loss", str(path), 3), by)
        assert is_given_data([program], of_batch) is is_data
        of_states = (Frame("Distiller.compare", str(path), 5), by)
        assert not is_given_data([program], of_states)
        of_prompt = (Frame("Distiller.embed", str(path), 8), by)
        assert not is_given_data([program], of_prompt)  # its gradient is wanted
