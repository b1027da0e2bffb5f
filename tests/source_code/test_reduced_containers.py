"""Containers of which a program reads nothing but reductions."""

from __future__ import annotations

import textwrap

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.reduced_containers import (
    reduction_of_all,
    sum_of_items,
)
from memprof.source_code.reductions import Reduced

OF_LIST = """\
class Store:
    def __init__(self):
        self.maps = []

    def add(self, one):
        self.maps.append(one)

    def read(self):
        {read}
"""
OF_DICT = """\
class Store:
    def __init__(self):
        self.maps = {{}}

    def add(self, place, one):
        self.maps.setdefault(place, []).append(one)

    def read(self):
        for maps in self.maps.values():
            {read}
"""


def reduction(tmp_path, text):
    path = tmp_path / "store.py"
    path.write_text(textwrap.dedent(text))
    program = program_of(str(path))
    line = next(n for n, one in enumerate(program.lines, 1) if "append" in one)
    return reduction_of_all(program.at(line), "self.maps", [program])


@pytest.mark.parametrize(
    ("read", "along"),
    [
        ("return torch.stack(self.maps).mean(dim=0)", Reduced.OVER_PARTS),
        ("return torch.cat(self.maps).argmax(dim=1)", Reduced.EACH_PART),
        ("return torch.stack(self.maps).sum() / len(self.maps)", Reduced.OVER_PARTS),
        ("return torch.stack(self.maps)", None),
        ("return self.maps[-1]", None),
        ("return torch.stack(self.maps).mean(0), self.maps", None),
        ("return list(map(show, self.maps))", None),
    ],
)
def test_a_list(read, along, tmp_path):
    found = reduction(tmp_path, OF_LIST.format(read=read))
    assert (found.along if found is not None else None) is along


OF_TWO = """\
class Errors:
    def update(self, guess, truth):
        self.maps.append(guess.flatten())
        self.truths.append(truth.flatten())

    def compute(self):
        guess, truth = torch.cat(self.maps), torch.cat(self.truths)
        ratio = torch.{function}(guess / truth, truth / guess)
        return (ratio < 1.25).float().mean(), (guess - truth).square().mean().sqrt()
"""


@pytest.mark.parametrize(
    ("function", "along"),
    [("maximum", Reduced.OVER_PARTS), ("hypot", Reduced.OVER_PARTS), ("outer", None)],
)
def test_what_is_computed_of_two_lists_value_by_value(function, along, tmp_path):
    found = reduction(tmp_path, OF_TWO.format(function=function))
    assert (found.along if found is not None else None) is along


IN_LOOP = """\
total = 0
for one in self.maps[1:]:
    {body}
return total
"""


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (IN_LOOP.format(body="total += one"), "total += one"),
        (IN_LOOP.format(body="total = total + one / len(self.maps)"), None),
        (IN_LOOP.format(body="total.add_(one.float())"), "total.add_(one.float())"),
        (IN_LOOP.format(body="total -= one"), ""),
        (IN_LOOP.format(body="total += one * weight"), ""),
        (IN_LOOP.format(body="total += one; show(one)"), ""),
        (
            (
                "mean = {}\nfor key, value in self.maps[0].items():\n    total = value.clone()\n"
                "    for one in self.maps[1:]:\n        total += one[key]\n"
                "    mean[key] = total / len(self.maps)\nreturn mean"
            ),
            "total += one[key]",
        ),
        (
            (
                "for one in self.maps:\n    for key, value in one.items():\n"
                "        total[key] = total[key] + value"
            ),
            "total[key] = total[key] + value",
        ),
        (
            "for one in self.maps:\n    for key in one:\n        total[key] += one[key]",
            "total[key] += one[key]",
        ),
        (
            "return {k: torch.stack([one[k] for one in self.maps]).mean(0) for k in self.maps[0]}",
            "torch.stack([one[k] for one in self.maps]).mean(0)",
        ),
        ("return sum(one['w'] for one in self.maps)", "sum((one['w'] for one in self.maps))"),
        ("return sum(one for one in self.maps if one is not None)", ""),
        ("return max(one for one in self.maps)", ""),
        ("return torch.stack([one[k] for one in self.maps]).std(0)", ""),
        ("return self.maps[0]", ""),
        ("return self.maps[-1] + sum(one for one in self.maps)", ""),
        ("return self.maps[0] + sum(one for one in self.maps)", "sum((one for one in self.maps))"),
        ("return self.maps", ""),
    ],
)
def test_items_that_are_only_added_up(read, text, tmp_path):
    path = tmp_path / "store.py"
    body = textwrap.indent(read, " " * 8).lstrip()
    path.write_text(OF_LIST.replace("{read}", body))
    program = program_of(str(path))
    line = next(n for n, one in enumerate(program.lines, 1) if "append" in one)
    if text is None:
        text = read.splitlines()[2].strip()
    found = sum_of_items(program.at(line), "self.maps", [program])
    assert (found.texts[0] if found is not None else "") == text


@pytest.mark.parametrize(
    ("read", "along"),
    [
        ("total = total + torch.stack(maps).mean(dim=0)", Reduced.OVER_PARTS),
        ("show(maps[0], torch.stack(maps).mean(dim=0))", None),
        ("best = maps", None),
    ],
)
def test_a_dict_of_lists(read, along, tmp_path):
    found = reduction(tmp_path, OF_DICT.format(read=read))
    assert (found.along if found is not None else None) is along


OF_NAMES = """\
def evaluate(model, batches):
    outs, wanted = [], []
    for x, y in batches:
        outs.append(model(x))
        wanted.append(y)
    {read}
"""


@pytest.mark.parametrize(
    ("read", "along"),
    [
        (
            """outs, wanted = torch.cat(outs), torch.cat(wanted)
            errors = weights * (outs - wanted) ** 2
            return errors.mean(dim=(0, 2))""",
            Reduced.OVER_PARTS,
        ),
        (
            """outs = torch.cat(outs)
            errors = (outs - torch.cat(wanted)).abs()
            squares = errors.square()
            return squares.sum(dim=(1, 2))""",
            Reduced.EACH_PART,
        ),
        (
            """outs, wanted = torch.cat(outs), torch.cat(wanted)
            errors = (outs - wanted) ** 2
            return errors.mean(dim=0), errors""",
            None,
        ),
        (
            """outs, wanted = torch.cat(outs), torch.cat(wanted)
            errors = (outs - wanted).median(dim=(0, 1))
            return errors""",
            None,
        ),
        (
            """outs, wanted = torch.cat(outs), torch.cat(wanted)
            errors = wanted - outs
            errors = errors / errors
            return errors[0]""",
            None,
        ),
        (
            """pairs = torch.cat(outs), torch.cat(wanted)
            return pairs""",
            None,
        ),
    ],
)
def test_names_that_are_bound_one_after_the_other(read, along, tmp_path):
    path = tmp_path / "evaluate.py"
    path.write_text(OF_NAMES.format(read=textwrap.dedent(read.replace("\n            ", "\n    "))))
    program = program_of(str(path))
    found = reduction_of_all(program.at(4), "outs", [program])
    assert (found.along if found is not None else None) is along


OF_SLOPES = """\
class Journal:
    def __init__(self, names):
        self.slopes = {{name: [] for name in names}}

    def add(self, model):
        for name, p in model.named_parameters():
            if name in self.slopes:
                self.slopes[name].append(p.grad.view(-1))

    def show(self):
        for name, slopes in self.slopes.items():
            {read}
"""


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        ("print(name, [g.abs().mean().item() for g in slopes])", ("g.abs().mean()",)),
        ("print(name, slopes)", None),
        ("pass\n        top = torch.stack([g.abs().amax(0) for g in self.slopes[name]])", None),
    ],
)
def test_a_dict_of_lists_that_is_asked_for_a_key_is_one(read, texts, tmp_path):
    path = tmp_path / "journal.py"
    path.write_text(OF_SLOPES.format(read=read))
    program = program_of(str(path))
    found = reduction_of_all(program.at(8), "self.slopes[name]", [program])
    assert (found.texts if found is not None else None) == texts


UNDER_KEYS = """\
class Journal:
    def add(self, name, x):
        self.inputs[name].append(x)

    def top(self, name):
        return torch.stack([x.abs().amax(0) for x in self.inputs[name]]).amax(0)
"""


def test_what_is_read_under_a_key_is_reduced_as_well(tmp_path):
    path = tmp_path / "journal.py"
    path.write_text(UNDER_KEYS)
    program = program_of(str(path))
    found = reduction_of_all(program.at(3), "self.inputs[name]", [program])
    assert found.texts == ("x.abs().amax(0)",)
