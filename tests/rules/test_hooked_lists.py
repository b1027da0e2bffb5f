"""hooked-outputs of programs of their own: the only hook of each fills a list, or a wrapper's dict."""

from __future__ import annotations

import runpy

import pytest

import memprof
from memprof.rules.ranked_findings import findings

ROWS, WIDTH, LAYERS, STEPS = 512, 128, 8, 8
RESULT = ROWS * WIDTH * 4
HEAD = """
import torch
from torch import nn
import memprof

def stack():
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
"""
TAIL = """
student = nn.Linear(128, 128)
for number in range(8):
    x = torch.randn(512, 128)
    made = student(x)
    sum((made - one).square().mean() for one in tap(x)).backward()
    student.zero_grad()
    memprof.step()
"""
OF_LIST = """
class Outputs:
    def __init__(self):
        self.outputs = []

    def __call__(self, module, inputs, output):
        self.outputs.append(output)

model, saved = stack(), Outputs()
handles = [one.register_forward_hook(saved) for one in model.modules()]

@torch.no_grad()
def tap(x):
    saved.outputs = []
    model(x)
    return saved.outputs[2], saved.outputs[-3]
"""
OF_LAMBDA = """
model, kept = stack(), []
for layer in model.children():
    layer.register_forward_hook(lambda module, inputs, output: kept.append(output))

@torch.no_grad()
def tap(x):
    kept.clear()
    model(x)
    return kept[2], kept[5]
"""
OF_WRAPPER = """
class Wrapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.frozen, self.features = model, {}
        for name, module in model.named_modules():
            module.register_forward_hook(self.saving(name))

    def saving(self, name):
        def save(_, __, output):
            self.features[name] = output

        return save

    @torch.no_grad()
    def forward(self, x):
        self.features.clear()
        self.frozen(x)
        return self.features["2"], self.features["5"]

tap = Wrapped(stack())
"""


def hooked(text, folder):
    program = folder / "hooked.py"
    program.write_text(f"{HEAD}{text}{TAIL}")
    with memprof.track(folder / "r.json", sources=["cpu"], allowance_s=60):
        runpy.run_path(str(program), run_name="__main__")
    return [
        one for one in findings(memprof.load(folder / "r.json")) if one.rule == "hooked-outputs"
    ]


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        (
            OF_LIST,
            "handles = [one.register_forward_hook(saved) for one in model.modules()]",
            "`self.outputs[-3]`, `self.outputs[2]`",
        ),
        (
            OF_LAMBDA,
            "layer.register_forward_hook(lambda module, inputs, output: kept.append(output))",
            "`kept[2]`, `kept[5]`",
        ),
        (OF_WRAPPER, "module.register_forward_hook(self.saving(name))", "`2`, `5`"),
    ],
    ids=["list of an object", "list by a lambda", "dict of a wrapper"],
)
def test_the_hook_is_to_be_on_what_is_read_alone(text, code, names, tmp_path):
    (found,) = hooked(text, tmp_path)
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, (LAYERS - 2) * RESULT)
    assert (first.fix, first.code) == ("drop_outputs", code)
    assert f"({names}) alone" in first.why


@pytest.mark.parametrize(
    ("instead", "of"),
    [
        ("return saved.outputs", "return saved.outputs[2], saved.outputs[-3]"),
        (
            "return [saved.outputs[at] for at in range(9)]",
            "return saved.outputs[2], saved.outputs[-3]",
        ),
        ("model.modules() if isinstance(one, nn.Linear)]", "model.modules()]"),
    ],
    ids=["all", "each by its place", "chosen modules"],
)
def test_a_list_of_what_is_read_is_left_alone(instead, of, tmp_path):
    assert not hooked(OF_LIST.replace(of, instead), tmp_path)
