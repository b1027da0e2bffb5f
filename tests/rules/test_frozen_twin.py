"""frozen-twin: a frozen model stands beside the same frozen model with adapters."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame
from tests.rules.recorded import findings_of

WIDTH, HEIGHT = 512, 128


def made():
    return nn.Sequential(nn.Linear(WIDTH, HEIGHT), nn.Tanh(), nn.Linear(HEIGHT, WIDTH))


class PeftModel(nn.Module):
    """A frozen model with a small part beside it that is trained, as PEFT has them."""

    def __init__(self, base, *, frozen=True):
        super().__init__()
        self.base, self.adapter = base.requires_grad_(not frozen), nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.base(x) + self.adapter(x).sum(-1, keepdim=True)


def trained(policy, reference):
    trainable = [one for one in policy.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trainable, 0.01)

    def step(number):
        x = torch.randn(8, WIDTH)
        with torch.no_grad():
            expected = reference(x)
        (policy(x) - expected).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    base = made()
    reference = copy.deepcopy(base).eval().requires_grad_(False)
    return trained(PeftModel(base), reference)


def looks_alike():
    """The base is trained, too: the reference is what it was."""
    base = made()
    reference = copy.deepcopy(base).eval().requires_grad_(False)
    return trained(PeftModel(base, frozen=False), reference)


def loaded_twice():
    """The same call makes both."""
    base = made()
    reference = made()
    return trained(PeftModel(base), reference.requires_grad_(False))


def of_another():
    """A teacher of the same sizes, which another call makes."""
    base = made()
    teacher = nn.Sequential(nn.Linear(WIDTH, HEIGHT), nn.ReLU(), nn.Linear(HEIGHT, WIDTH))
    return trained(PeftModel(base), teacher.requires_grad_(False))


class Preferences:
    """The same function makes both, one of which is adapted at once."""

    def __init__(self):
        self.reference = made().eval()
        self.reference.requires_grad_(False)
        self.policy = PeftModel(made())


def made_within_other_calls():
    of_both = Preferences()
    return trained(of_both.policy, of_both.reference)


def made_of(activation):
    return nn.Sequential(nn.Linear(WIDTH, HEIGHT), activation(), nn.Linear(HEIGHT, WIDTH))


def made_for_other_arguments():
    """A teacher of the same sizes, with another activation."""
    teacher = made_of(nn.ReLU).eval().requires_grad_(False)
    policy = PeftModel(made_of(nn.Tanh))
    return trained(policy, teacher)


def test_the_copy_is_what_could_go(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    weights = (2 * WIDTH * HEIGHT + WIDTH + HEIGHT) * 4
    assert (found.rule, found.minor, found.bytes) == ("frozen-twin", False, weights)
    assert found.site.code == "reference = copy.deepcopy(base).eval().requires_grad_(False)"
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.saves_bytes) == ("disable_adapter", weights)


def test_a_model_that_the_same_call_makes_is_the_same(tmp_path):
    rules = {one.rule for one in findings_of(loaded_twice, tmp_path / "run.json")}
    assert "frozen-twin" in rules


def test_a_model_of_the_same_sizes_may_be_another(tmp_path):
    rules = {one.rule for one in findings_of(of_another, tmp_path / "run.json")}
    assert "frozen-twin" not in rules


def test_the_call_that_makes_both_may_stand_within_others(tmp_path):
    found = findings_of(made_within_other_calls, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].fix) == ("frozen-twin", "disable_adapter")
    assert found.bytes == (2 * WIDTH * HEIGHT + WIDTH + HEIGHT) * 4
    assert found.remedies[0].code == "self.reference = made().eval()"


def test_a_call_with_other_arguments_makes_another(tmp_path):
    rules = {one.rule for one in findings_of(made_for_other_arguments, tmp_path / "run.json")}
    assert "frozen-twin" not in rules


class Tuning:
    """It copies the base that it is handed, whose maker is called elsewhere."""

    def __init__(self, base):
        self.reference = copy.deepcopy(base).requires_grad_(False)
        self.policy = PeftModel(base)


def copied_in_a_class():
    base = made()
    tuning = Tuning(base)
    return trained(tuning.policy, tuning.reference)


def test_the_line_that_copies_is_named(tmp_path):
    (found, *_) = findings_of(copied_in_a_class, tmp_path / "run.json")
    code = "self.reference = copy.deepcopy(base).requires_grad_(False)"
    assert (found.rule, found.remedies[0].code) == ("frozen-twin", code)


class Adapted(nn.Module):
    """Adapters of the program's own around a layer that it is given."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 2), nn.Linear(2, layer.out_features)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def with_adapters(model):
    for at in (0, 2):
        model[at] = Adapted(model[at])
    return model


def by_hand():
    base = made()
    policy = with_adapters(copy.deepcopy(base))
    return trained(policy, base.requires_grad_(False))


def another_by_hand():
    """The reference is no copy, but a teacher of the same sizes."""
    policy = with_adapters(made())
    return trained(policy, made_of(nn.ReLU).requires_grad_(False))


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Linear(width, HEIGHT), nn.Linear(HEIGHT, width)

    def forward(self, x):
        return self.up(self.down(x).tanh())


def reference_of(model, *, is_copy):
    reference = Model(WIDTH)
    if is_copy:
        reference.load_state_dict(model.state_dict())
    return reference.requires_grad_(False)


def loads_the_other():
    base = Model(WIDTH)
    reference = reference_of(base, is_copy=True)
    return trained(PeftModel(base), reference)


@pytest.mark.parametrize(
    ("program", "code", "way"),
    [
        (by_hand, "policy = with_adapters(copy.deepcopy(base))", "a switch of `Adapted` by which"),
        (loads_the_other, "reference = Model(WIDTH)", "`with model.disable_adapter():` instead."),
    ],
)
def test_adapters_may_be_the_program_s_own_and_a_model_load_the_other(program, code, way, tmp_path):
    (found, *_) = findings_of(program, tmp_path / "run.json")
    weights = (2 * WIDTH * HEIGHT + WIDTH + HEIGHT) * 4
    assert (found.rule, found.minor, found.bytes) == ("frozen-twin", False, weights)
    (remedy,) = found.remedies
    assert (remedy.code, remedy.saves_bytes) == (code, weights)
    assert way in remedy.why


def test_a_teacher_beside_adapters_of_the_program_s_own_is_another_model(tmp_path):
    rules = {one.rule for one in findings_of(another_by_hand, tmp_path / "run.json")}
    assert "frozen-twin" not in rules


LOADED = """
reference = AutoModel.from_pretrained(path)
policy = AutoModel.from_pretrained(OTHER)
policy = get_peft_model(policy, config)
"""


@pytest.mark.parametrize("other", ["path", "'teacher'"])
def test_a_library_s_threads_may_load_both(other, tmp_path):
    """Then no line of the program is known: by the source both are of one name."""
    script = tmp_path / "job.py"
    script.write_text(LOADED.replace("OTHER", other))
    os.utime(script, (1, 1))  # before the recording, whose time is made up
    trace = TraceBuilder(device="cpu")
    threads = (Frame("read_values", "/x/site-packages/library/loading.py", 3),)
    for root in ("Model", "PeftModel.base"):
        for name, size in (("up", 1 << 20), ("down", 1 << 19)):
            trace.label(module=f"{root}.{name}")
            trace.alloc(size, f"{root}.{name}", stack=threads, category=Category.PARAMETER)
    trace.label(step=0).alloc(512, "loss", stack=(Frame("<module>", str(script), 4),))
    every = findings(load(write_run(tmp_path / "run.json", trace.build())))
    codes = [one.remedies[0].code for one in every if one.rule == "frozen-twin"]
    line = "reference = AutoModel.from_pretrained(path)"
    assert codes == ([line] if other == "path" else [])
