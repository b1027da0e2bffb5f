from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.rules.waste_findings import waste_of
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from memprof.views.examination import examine

KIB = 1 << 10
MIB = 1 << 20
STEPS = 12


class Program:
    """Steps of a script whose lines are read; ``at`` is the text of a line that allocates."""

    def __init__(self, folder, text, device="cpu"):
        self.path = folder / "train.py"
        self.path.write_text(text)
        self.lines = text.splitlines()
        self.trace = TraceBuilder(device=device)

    def alloc(self, size, name, at, category=Category.UNKNOWN, function="main", inner=()):
        number = next(n for n, line in enumerate(self.lines, 1) if at in line)
        frame = Frame(function, str(self.path), number)
        self.trace.alloc(size, name, stack=(*inner, frame), category=category)

    def label(self, step, phase=Phase.OTHER, module=""):
        self.trace.label(step=step, phase=phase, module=module)

    def free(self, *names):
        for name in names:
            self.trace.free(name)

    def found(self, pattern):
        out = self.path.with_suffix(".json")
        write_run(out, self.trace.build())
        found = waste_of(examine(load(out)))
        return next((f for f in found if f.rule == pattern), None)


TEACHER = """\
def main():
    student, teacher = build(), build()
    for x in data:
        loss = distance(student(x), teacher(x))
        loss.backward()
"""


def run_backward(program):
    """Steps that give the student a gradient each, and the teacher one that stays."""
    for step in range(STEPS):
        program.label(step, Phase.BACKWARD, "student")
        program.alloc(256 * KIB, f"g.student.{step}", "backward", Category.GRADIENT)
        if step == 0:
            program.label(step, Phase.BACKWARD, "teacher")
            program.alloc(256 * KIB, "g.teacher", "backward", Category.GRADIENT)
        program.label(step)
        program.free(f"g.student.{step}")


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ("optimizer.zero_grad()", True),
        ("optimizer.zero_grad(set_to_none=True)", True),
        ("optimizer.zero_grad(set_to_none=False)", False),
        ("optimizer.zero_grad(keep)", False),
        ("teacher.weight.grad.zero_()", False),
        ("state.zero_()", True),
    ],
)
def test_gradients_that_stay_are_unused_unless_they_are_filled_with_zeros(after, shown, tmp_path):
    program = Program(tmp_path, f"{TEACHER}        {after}\n")
    for name in ("student", "teacher"):
        program.label(0, module=name)
        program.alloc(256 * KIB, f"w.{name}", "build()", Category.PARAMETER)
    run_backward(program)
    assert (program.found("unused-gradients") is not None) is shown


def test_gradients_that_a_function_drops_when_it_returns_were_there_to_the_end(tmp_path):
    program = Program(tmp_path, TEACHER)
    program.label(0)
    for name in ("student", "teacher"):
        program.label(0, module=name)
        program.alloc(256 * KIB, f"w.{name}", "build()", Category.PARAMETER)
    run_backward(program)
    program.label(STEPS)
    program.free("g.teacher", "w.teacher", "w.student")  # the function's names are gone
    unused = program.found("unused-gradients")
    assert (unused.bytes, unused.match.modules) == (256 * KIB, "`teacher`")


@pytest.mark.parametrize(
    ("line", "broadcast"),
    [
        ("    table = a - b", True),
        ("    table = x @ w - y", True),
        ("    table = q @ k.mT / math.sqrt(c // heads)", False),
        ("    table = torch.einsum('nd,md->nm', q, k) * scale", False),
        ("    table = F.mse_loss(a, b)", True),
        ("    table = huber_loss(a, b)", True),
        ("    table = run.saved_loss(a)", False),
        ("    table = torch.sub(a, b)", True),
        ("    distance = nn.SmoothL1Loss()\n    table = distance(a, b)", True),
        ("    criterion = nn.Linear(n, n)\n    table = criterion(a)", False),
        ("    table = criterion(a)", False),
        ("    table = a + b.mT", False),
        ("    table = a[:, None] - b[None]", False),
        ("    b = b.unsqueeze(0)\n    table = a - b", False),
        ("    b = b.flatten()\n    table = a - b", True),
    ],
)
def test_a_scaled_product_of_matrices_is_no_broadcasting(line, broadcast, tmp_path):
    imports = "import torch.nn.functional as F; from torch.nn.functional import huber_loss\n"
    program = Program(tmp_path, f"{imports}def main():\n{line}\n")
    for step in range(STEPS):
        program.label(step)
        program.alloc(1024 * 4, f"a{step}", "def main")
        program.alloc(1024 * 4, f"b{step}", "def main")
        program.alloc(4 * MIB, f"t{step}", "table")
        program.free(f"t{step}", f"a{step}", f"b{step}")
    assert (program.found("broadcast") is not None) is broadcast


ROLLOUT = """\
def main():
    frames.append(render())
    batch = torch.stack(frames)
    train(batch)
"""


@pytest.mark.parametrize("train", [MIB, 8 * MIB])
def test_parts_beside_what_they_were_joined_into_are_found(train, tmp_path):
    program = Program(tmp_path, ROLLOUT)
    for step in range(STEPS):
        program.label(step)
        parts = [f"part{number}.{step}" for number in range(8)]
        for part in parts:
            program.alloc(512 * KIB, part, "frames.append")
        program.alloc(4 * MIB, f"batch{step}", "torch.stack")
        program.alloc(train, f"t{step}", "train(batch)")
        program.free(f"t{step}", f"batch{step}", *parts)
    joined = program.found("joined")
    saving = joined.match.saving
    assert (joined.bytes, joined.site.line, joined.evidence.allocs.size) == (4 * MIB, 3, 8)
    assert saving.bytes == 4 * MIB
    # Where training comes on top, the list need only be emptied once it has been joined.
    assert joined.match.drop is (train > 4 * MIB)


def test_parts_that_are_gone_when_the_peak_comes_are_no_waste(tmp_path):
    program = Program(tmp_path, ROLLOUT)
    for step in range(STEPS):
        program.label(step)
        parts = [f"part{number}.{step}" for number in range(8)]
        for part in parts:
            program.alloc(512 * KIB, part, "frames.append")
        program.alloc(4 * MIB, f"batch{step}", "torch.stack")
        program.free(*parts)
        program.alloc(8 * MIB, f"t{step}", "train(batch)")
        program.free(f"t{step}", f"batch{step}")
    assert program.found("joined") is None


AVERAGE = """\
def average(paths):
    states = [torch.load(path) for path in paths]
    return {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}
"""
SERIALIZATION = Frame("load", "/venv/lib/python3.12/site-packages/torch/serialization.py", 1500)


def test_files_that_are_loaded_together_are_told_where_they_are_loaded(tmp_path):
    program = Program(tmp_path, AVERAGE)
    for step in range(STEPS):
        program.label(step)
        program.alloc(64 * KIB, f"x{step}", "def average")
        program.free(f"x{step}")
    names = []
    for file in range(6):
        for weight, size in (("a", 512), ("b", 64)):
            names.append(f"{weight}{file}")
            program.alloc(size * KIB, names[-1], "torch.load", inner=(SERIALIZATION,))
    program.alloc(3 * MIB, "stacked", "torch.stack")
    program.free("stacked", *names)
    loaded = program.found("loaded")
    assert (loaded.bytes, loaded.site.line) == (6 * 576 * KIB, 2)
    assert loaded.match.passing
    assert program.found("joined") is None  # the same bytes, told once
    assert program.found("reduced-later") is None


def test_samples_that_are_loaded_in_each_step_may_be_meant(tmp_path):
    program = Program(tmp_path, AVERAGE)
    for step in range(STEPS):
        program.label(step)
        program.alloc(512 * KIB, f"x{step}", "torch.load", inner=(SERIALIZATION,))
        program.alloc(512 * KIB, f"y{step}", "def average")
        program.free(f"y{step}", f"x{step}")
    found = program.found("loaded")
    assert found is None or found.match.tentative


def test_the_parts_of_one_size_are_told_from_others_that_the_same_line_made(tmp_path):
    program = Program(tmp_path, AVERAGE)
    for step in range(STEPS):
        program.label(step)
        names = [f"{weight}{file}.{step}" for file in range(6) for weight in "ab"]
        for name in names:
            program.alloc((512 if name[0] == "a" else 64) * KIB, name, "states =")
        program.alloc(3 * MIB, f"stacked{step}", "torch.stack")
        program.free(f"stacked{step}", *names)
    reduced = program.found("reduced-later")
    assert (reduced.bytes, reduced.site.line) == (6 * MIB, 3)  # six parts and what joins them
    assert program.found("joined") is None


OPTIMIZERS = "def main():\n    opt.step()\n"
INIT = Frame("_init_group", "/site-packages/torch/optim/adam.py", 90)


def switched(tmp_path, *, dropped, same=True):
    """Two optimizers' states, of the same parameters or of others, made in steps 0 and 5."""
    program = Program(tmp_path, OPTIMIZERS)
    for step in range(STEPS):
        for layer in range(4):
            own = layer + (0 if same or step < 5 else 4)
            module = f"net.{own}"
            program.label(step, Phase.OPTIMIZER, module)
            if step in (0, 5):
                size = (64 + own) * KIB
                for moment in ("m", "v"):
                    name = f"{moment}{layer}.{step}"
                    program.alloc(size, name, "step", Category.OPTIMIZER_STATE, inner=(INIT,))
                    if step == 5 and dropped:
                        program.free(f"{moment}{layer}.0")
            else:
                program.alloc(16 * KIB, f"t{layer}.{step}", "step", inner=(INIT,))
                program.free(f"t{layer}.{step}")
    return program.found("second-states")


def test_state_of_an_optimizer_that_another_has_followed_is_found(tmp_path):
    found = switched(tmp_path, dropped=False)
    assert found.bytes == 2 * sum((64 + layer) * KIB for layer in range(4))


def test_state_that_went_when_the_optimizer_was_replaced_is_no_waste(tmp_path):
    assert switched(tmp_path, dropped=True) is None


def test_two_optimizers_of_different_parameters_are_no_waste(tmp_path):
    assert switched(tmp_path, dropped=False, same=False) is None


@pytest.mark.parametrize("name", ["double", "float"])
def test_a_model_made_double_takes_twice_what_it_would_in_float(name, tmp_path):
    program = Program(tmp_path, f"def main():\n    model = model.{name}()\n    model(x)\n")
    cast = Frame(f"Module.{name}", "/site-packages/torch/nn/modules/module.py", 1100)
    program.label(0, module="net")
    program.alloc(MIB, "w", f".{name}()", Category.PARAMETER, inner=(cast,))
    for step in range(STEPS):
        program.label(step, Phase.FORWARD, "net")
        program.alloc(MIB, f"a{step}", "model(x)")
        program.free(f"a{step}")
    found = program.found("double-precision")
    assert (found is not None) is (name == "double")
    if found is not None:
        saving = found.match.saving
        assert (saving.before, saving.after) == (2 * MIB, MIB)


MODULE = """\
from torch import nn
class Bias(nn.Module):
    def __init__(self, n):
        super().__init__()
        distance = torch.arange(n)[:, None] - torch.arange(n)
        self.register_buffer("distance", distance)

    def forward(self, t):
        return {read}
"""


@pytest.mark.parametrize(
    ("read", "pattern"),
    [
        ("self.table[t]", "unread-buffer"),
        ("self.distance[:t]", "large-buffer"),
        ("self.distance + t", None),
        ("getattr(self, t)", None),
    ],
)
def test_a_buffer_is_too_large_where_a_slice_or_nothing_of_it_is_read(read, pattern, tmp_path):
    program = Program(tmp_path, MODULE.format(read=read))
    program.label(0, module="net.bias")
    program.alloc(4 * MIB, "table", "torch.arange", Category.BUFFER, function="__init__")
    for step in range(STEPS):
        program.label(step, Phase.FORWARD, "net")
        program.alloc(MIB, f"a{step}", "return")
        program.free(f"a{step}")
    for other in ("unread-buffer", "large-buffer"):
        assert (program.found(other) is not None) is (other == pattern)


PROBE = """\
import torch; from torch.optim import AdamW as Made; from bnb.optim import Adam8bit
class Own(torch.optim.Optimizer): ...
def main():
    for images in data:
        {ask}
        loss = head(backbone(images))
        loss.backward()
        {after}
"""


@pytest.mark.parametrize(
    ("ask", "after", "found"),
    [
        ("images.requires_grad_(True)", "step()", True),
        ("images.requires_grad = True", "step()", True),
        ("images.requires_grad_(False)", "step()", False),
        ("images.requires_grad_(True)", "show(images.grad)", False),
        ("images.requires_grad_(True)", "torch.autograd.grad(loss, images)", False),
        ("images.normal_()", "step()", False),
        ("images.requires_grad_(True)", "Probe(images)", True),
        ("images.requires_grad_(True)", "opt = torch.optim.LBFGS([images])", False),
        ("images.requires_grad_(True)", "opt = Made([images])", False),
        ("images.requires_grad_(True)", "opt = Own([images])", False),
        ("images.requires_grad_(True)", "opt = Adam8bit([images])", False),
        ("images.requires_grad_(True)", "weight = torch.nn.Parameter(images)", False),
        ("images.requires_grad_(True)", "pass  # images.grad", True),
        ("for images in net.parameters(): images.requires_grad_(True)", "show(images)", False),
        ("for images in params: images.requires_grad_(True)", "show(images)", True),
        (
            "images.requires_grad_(True)",
            "other()\ndef other():\n    images = w\n    show(images.grad)",
            True,
        ),
    ],
)
def test_a_frozen_model_keeps_no_graph_for_a_gradient_that_nothing_reads(
    ask, after, found, tmp_path
):
    program = Program(tmp_path, PROBE.format(ask=ask, after=after))
    for module in ("backbone", "head"):
        program.label(0, module=module)
        program.alloc(64 * KIB, f"w.{module}", "def main", Category.PARAMETER)
    for step in range(STEPS):
        for layer in range(4):
            program.label(step, Phase.FORWARD, "backbone")
            program.alloc(MIB, f"a{layer}.{step}", "loss =", Category.ACTIVATION)
        program.label(step, Phase.FORWARD, "head")
        program.alloc(64 * KIB, f"h{step}", "loss =", Category.ACTIVATION)
        program.label(step, Phase.BACKWARD, "head")
        program.alloc(64 * KIB, f"g{step}", "loss.backward()", Category.GRADIENT)
        program.free(*(f"a{layer}.{step}" for layer in range(4)), f"h{step}")
        program.label(step)
        program.free(f"g{step}")
    frozen = program.found("frozen-graph")
    assert (frozen is not None) is found
    if frozen is not None:
        assert frozen.bytes == 4 * MIB
        assert frozen.match.request.line == 5


def in_each_step(program, function, lines):
    """A tensor of 2 MiB by each of the lines, dropped together."""
    for step in range(STEPS):
        program.label(step)
        names = [f"t{number}.{step}" for number in range(len(lines))]
        for name, line in zip(names, lines, strict=True):
            program.alloc(2 * MIB, name, line, function=function)
        program.free(*names)


CHAIN = """\
def smoothed(logits):
    probs = logits.softmax(-1)
    logs = torch.log(probs + eps)
    return (target * logs).sum()
"""


def test_a_chain_of_operations_is_told_at_its_function_with_what_all_of_it_takes(tmp_path):
    program = Program(tmp_path, CHAIN)
    in_each_step(program, "smoothed", ("softmax", "log(", "log(", "return"))
    found = program.found("largest")
    saving = found.match.saving
    assert (found.bytes, found.site.line) == (8 * MIB, 2)
    assert found.title.endswith("are 4 tensors of one size")
    assert (saving.before, saving.after) == (8 * MIB, 0)


SCORES = """\
def scores(queries, docs):
    q = queries.unsqueeze(1).repeat(1, m, 1)
    d = docs.unsqueeze(0).repeat(n, 1, 1)
    return v(torch.tanh(q + d))
"""


def test_what_repeats_smaller_tensors_is_told_with_what_goes_without(tmp_path):
    program = Program(tmp_path, SCORES)
    in_each_step(program, "scores", ("q =", "d =", "return", "return"))
    found = program.found("repeated")
    saving = found.match.saving
    assert (found.bytes, found.site.line) == (8 * MIB, 2)
    assert (saving.before, saving.after) == (8 * MIB, 4 * MIB)


@pytest.mark.parametrize(
    ("text", "upcast"),
    [
        ("def main():\n    att = (q @ k.mT).softmax(-1)\n", False),
        ("def main():\n    att = (q @ k.mT).softmax(-1, dtype=torch.float32)\n", True),
        ("def main():\n    att = half.float()\n", True),
        ("def main():\n    att = softmax(half)  # TODO: try fp16, or autocast\n", False),
        ('def main():\n    att = softmax(half)\n    log("bf16")\n', False),
        ("import torch\ndef main():\n    with torch.autocast('cuda'):\n        att = softmax(x)\n", True),
        ("from torch.amp import autocast as cast\n@cast('cuda')\ndef main():\n    att = softmax(x)\n", True),
        ("import torch\ndef main():\n    with torch.autocast('cuda', enabled=False):\n        att = softmax(x)\n", False),
        ("import torch\ndef f():\n    with torch.autocast('cuda'):\n        g()\ndef main():\n    att = softmax(x)\n", False),
        ("def main(fabric):\n    with fabric.autocast():\n        att = softmax(x)\n", True),
        ("def autocast(x): ...\ndef main():\n    with autocast(1):\n        att = softmax(x)\n", False),
    ],
)  # fmt: skip
def test_a_softmax_twice_as_large_as_another_tensor_widens_none_by_itself(text, upcast, tmp_path):
    program = Program(tmp_path, text)
    for step in range(STEPS):
        program.label(step)
        program.alloc(2 * MIB, f"half{step}", "def main")
        program.alloc(4 * MIB, f"att{step}", "att =")
        program.free(f"att{step}", f"half{step}")
    assert (program.found("upcast") is not None) is upcast


COPY = """\
import copy, torch

def main(model, data):
    for x in data:
        model(x).backward()
        {name} = copy.deepcopy(model.state_dict())
        {use}
"""


@pytest.mark.parametrize("name", ["best", "xs", "self.kept"])
@pytest.mark.parametrize(
    ("use", "rests"),
    [
        ("model.load_state_dict({name})", True),
        ("torch.save({name}, 'file')", True),
        ("if {name} is None: pass", True),
        ("restore(model, {name})\ndef restore(net, state):\n    net.load_state_dict(state)", True),
        (
            "pass\ndef other(results):\n    best = xs = min(results)\n    both = best * 2 + xs\n    return both",
            True,
        ),
        ("pass  # {name} * 2", True),
        ("y = {name}['w'] * 0.9", False),
        ("for v in {name}.values():\n            v.mul_(0.9)", False),
        ("again = {name}\n        evaluate(again)", False),
        ("blend(model, {name})\ndef blend(net, state):\n    return state['w'] + net.w", False),
    ],
)
def test_a_copy_of_a_model_rests_by_what_is_done_to_it_and_not_by_its_name(
    name, use, rests, tmp_path
):
    program = Program(tmp_path, COPY.format(name=name, use=use.format(name=name)))
    for layer in range(4):
        program.label(0, module=f"Net.{layer}")
        program.alloc(256 * KIB + layer * 1024, f"w{layer}", "def main", Category.PARAMETER)
    program.label(0)
    for layer in range(4):
        program.alloc(256 * KIB + layer * 1024, f"copy{layer}", "deepcopy(")
    for step in range(STEPS):
        program.label(step)
        program.alloc(64 * KIB, f"x{step}", "model(x)")
        program.free(f"x{step}")
    copy = program.found("copy-of-model")
    assert (copy is not None) is rests


PARTS = """\
def main():
    for batch in data:
        total = start()
        for part in batch:
            loss = net(part)
            {add}
        {start}.backward()
"""


@pytest.mark.parametrize(
    ("add", "start", "summed"),
    [
        ("total = total + loss", "total", True),
        ("total = loss + total", "total", True),
        ("total -= loss", "total", True),
        ("total += [loss]", "sum(total)", True),
        ("total.append(loss)", "sum(total)", True),
        ("total.push(loss)", "sum(total)", True),
        ("total = total + loss.float()", "total", True),
        ("total = total + float(loss)", "total", False),
        ("total = total + loss.item()", "total", False),
        ("pass  # total = total + loss", "total", False),
    ],
)
def test_a_sum_of_losses_is_found_however_it_is_written(add, start, summed, tmp_path):
    program = Program(tmp_path, PARTS.format(add=add, start=start))
    for step in range(STEPS):
        names = []
        for part in range(3):
            for module in "ab":
                program.label(step, Phase.FORWARD, f"Net.{module}")
                names.append(f"{module}{part}.{step}")
                inner = (Frame("forward", f"/venv/site-packages/{module}.py", 1),)
                program.alloc(MIB, names[-1], "loss =", Category.ACTIVATION, inner=inner)
        program.label(step, Phase.BACKWARD)
        program.free(*names)
    assert (program.found("late-backward") is not None) is summed
