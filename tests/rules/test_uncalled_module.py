"""uncalled-module: a part of a model that no step calls, and that nothing reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

WIDTH = 256


class Plain(nn.Module):
    """The decoder is from an earlier version."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(WIDTH, 16)
        self.reconstruction = nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, 2 * WIDTH))

    def forward(self, x):
        return self.encoder(x)


class Tied(nn.Module):
    """It computes with weights of a part that it never calls."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH).requires_grad_(False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return x @ self.embedding.weight + self.bias


class Pretrained(nn.Module):
    """What its own module does not call is for torch's own module to know."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2).requires_grad_(False)
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.last(self.attention(x, x, x)[0])


def training(net):
    optimizer = torch.optim.SGD(one for one in net.parameters() if one.requires_grad)

    def step(number):
        optimizer.zero_grad()
        net(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    return step


def fires():
    return training(Plain())


def looks_alike():
    return training(Tied())


def test_the_line_that_makes_it_is_named_and_its_parameters_are_saved(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert found.rule == "uncalled-module"
    assert "`Plain.reconstruction`, which no step calls" in found.title
    assert (only.fix, only.code) == (
        "del_ref",
        "self.reconstruction = nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, 2 * WIDTH))",
    )
    nbytes = 4 * (16 * WIDTH + WIDTH + 2 * WIDTH * WIDTH + 2 * WIDTH)
    assert found.bytes == only.saves_bytes == nbytes
    assert only.saves_bytes < peak_of(tmp_path / "run.json")


def test_parts_of_modules_of_torch_are_left_alone(tmp_path):
    assert "uncalled-module" not in names(lambda: training(Pretrained()), tmp_path / "run.json")


def test_a_tower_of_a_library_that_the_program_never_names_is_told(tmp_path, library):
    def program():
        net = library("towers").Pair(WIDTH)
        head = nn.Linear(WIDTH, 4)

        def step(number):
            head.zero_grad()
            head(net(torch.randn(8, WIDTH))).square().mean().backward()

        return step

    found = findings_of(program, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "uncalled-module"]
    assert "`Pair.text_model`, which no step calls" in one.title
    assert one.remedies[0].code.startswith("net = library(")
    assert "del model.text_model" in one.remedies[0].why


class Entries(nn.Module):
    """The parts have names in a dictionary, and one of them is from an earlier version."""

    def __init__(self):
        super().__init__()
        parts = {
            "encode": nn.Linear(WIDTH, 16),
            "reconstruct": nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)),
        }
        self.parts = nn.ModuleDict(parts)

    def forward(self, x):
        return self.parts["encode"](x)


class OneByOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict()
        self.parts["narrow"] = nn.Linear(WIDTH, 16)
        self.parts["widen"] = nn.Linear(16, 8 * WIDTH)

    def forward(self, x):
        return self.parts["narrow"](x)


class ByKind(nn.Module):
    """One part for each kind of input, of which another one may come any time."""

    def __init__(self):
        super().__init__()
        parts = {"picture": nn.Linear(WIDTH, 16), "sound": nn.Linear(WIDTH, 8 * WIDTH)}
        self.of_kind = nn.ModuleDict(parts)

    def forward(self, x, kind="picture"):
        return self.of_kind[kind](x)


def test_an_entry_of_a_dictionary_that_nothing_reads_is_told_with_its_own_line(tmp_path):
    found = findings_of(lambda: training(Entries()), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert found.rule == "uncalled-module"
    assert "`Entries.parts.reconstruct`, which no step calls" in found.title
    assert only.code.startswith('"reconstruct": nn.Sequential(')
    assert found.bytes == 4 * (16 * WIDTH + WIDTH + 2 * WIDTH * WIDTH + 2 * WIDTH)
    found = findings_of(lambda: training(OneByOne()), tmp_path / "one.json")[0]
    assert found.rule == "uncalled-module"
    assert found.remedies[0].code == 'self.parts["widen"] = nn.Linear(16, 8 * WIDTH)'


def test_entries_that_a_variable_names_may_be_called_later(tmp_path):
    assert "uncalled-module" not in names(lambda: training(ByKind()), tmp_path / "run.json")


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(WIDTH, 16)
        self.back = nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, 2 * WIDTH))

    def forward(self, x):
        return self.back(self.into(x))


class Half(Whole):
    """It has a `forward` of its own, which does without a part of its base class."""

    def forward(self, x):
        return self.into(x)


class Stack(nn.Module):
    """The first few layers of several, each of which is a small part of the peak."""

    def __init__(self, used):
        super().__init__()
        self.used = used
        self.stacked = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(16)])

    def forward(self, x):
        for layer in self.stacked[: self.used]:
            x = layer(x)
        return x


class Averaged(nn.Module):
    """Weights of layers that are not called are read."""

    def __init__(self):
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(16)]
        self.averaged = nn.ModuleList(layers).requires_grad_(False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        mean = torch.stack([layer.weight for layer in self.averaged]).mean(0)
        for layer in self.averaged[:2]:
            x = layer(x)
        return x @ mean + self.bias


class OfTask(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"words": 8 * WIDTH, "tags": 16}
        self.of_task = nn.ModuleDict({name: nn.Linear(WIDTH, n) for name, n in sizes.items()})

    def forward(self, x, task="tags"):
        return self.of_task[task](x)


def of_a_base_class():
    return training(Half())


def of_a_list():
    return training(Stack(4))


def of_a_task():
    return training(OfTask())


def averaged():
    return training(Averaged())


@pytest.mark.parametrize(
    ("program", "module", "code", "unused", "nbytes"),
    [
        (
            of_a_base_class,
            "Half.back",
            "self.back = nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, 2 * WIDTH))",
            "back",
            4 * (16 * WIDTH + WIDTH + 2 * WIDTH * WIDTH + 2 * WIDTH),
        ),
        (
            of_a_list,
            "Stack.stacked.4 to .15",
            "self.stacked = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(16)])",
            "stacked[4:16]",
            12 * 4 * (WIDTH * WIDTH + WIDTH),
        ),
        (
            of_a_task,
            "OfTask.of_task.words",
            "self.of_task = nn.ModuleDict({name: nn.Linear(WIDTH, n) for name, n in sizes.items()})",
            "of_task.words",
            4 * (8 * WIDTH * WIDTH + 8 * WIDTH),
        ),
    ],
)
def test_what_the_program_ended_without_is_told(program, module, code, unused, nbytes, tmp_path):
    """While the program runs, its files may still call it."""
    found = findings_of(program, tmp_path / "run.json", 20, is_over=True)[0]
    (only,) = found.remedies
    assert (found.rule, found.bytes) == ("uncalled-module", nbytes)
    assert f"`{module}`, which no step calls" in found.title
    assert (only.fix, only.code, only.saves_bytes) == ("del_ref", code, nbytes)
    assert f"`del model.{unused}`" in only.why
    assert "uncalled-module" not in names(program, tmp_path / "goes-on.json")


@pytest.mark.parametrize("program", [averaged, looks_alike])
def test_weights_that_are_read_without_a_call_are_used(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json", 20, is_over=True)
    assert "uncalled-module" not in [one.rule for one in found]
