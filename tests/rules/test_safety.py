"""Changes that would break the program are advised in words, and not as a patch."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from memprof.loading import load
from memprof.records import Holder
from memprof.reference_chain import Link
from memprof.rules.finding import Evidence, Kind, RuleFinding
from memprof.rules.remedies import with_remedies
from memprof.rules.rule import Match
from memprof.rules.waste.evaluation_graph import UnusedGraph
from memprof.rules.waste.unused_gradients import UnreadGradients
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame, Phase
from memprof.views.examination import examine
from memprof.views.window import site_at

GRAPH = (Link("autograd_node", nodes=(("AddBackward0", 1),)), Link("saved_tensor", "self"))

EVIDENCE = {"evaluation-graph": UnusedGraph, "unused-gradients": UnreadGradients}


@pytest.fixture
def advised(tmp_path):
    """The remedies for growth held at a line, with tensors of some size made at lines."""

    times = itertools.count()

    def advised(text, line, *links, made=(), freed_in=Phase.OTHER, rule="", site=0):
        path = tmp_path / "train.py"
        path.write_text(text)
        written = next(times)  # before the recording, whose time is made up
        os.utime(path, (written, written))
        lines = text.splitlines()
        trace = TraceBuilder(device="cpu")
        for step in range(4):
            for number, size in made:
                trace.label(step=step, phase=Phase.FORWARD)
                frame = Frame("step", str(path), number)
                trace.alloc(size, f"{number}.{step}", stack=(frame,))
                trace.label(step=step, phase=freed_in)
                trace.free(f"{number}.{step}")
        write_run(tmp_path / "run.json", trace.build())
        holder = Holder(links[0].kind, str(path), line, lines[line - 1], [*links])
        frame = Frame("step", str(path), site or line)
        found = RuleFinding(
            kind=Kind.WASTE if rule else Kind.LEAK,
            device="cpu",
            site=site_at(frame),
            title="",
            bytes=1 << 20,
            bytes_per_step=1 << 18,
            stack=(frame,),
            holders=() if rule else (holder,),
            evidence=Evidence(0),
            rule=rule,
            match=EVIDENCE.get(rule, Match)(0, np.zeros(0, int), 1 << 20) if rule else None,
        )
        judged = with_remedies(found, examine(load(tmp_path / "run.json")))
        return {remedy.fix: remedy for remedy in judged.remedies}

    return advised


SUM = """\
def step(s, net, x):
    loss = net(x)
    s.total = s.total + loss
"""


def test_a_sum_of_tensors_of_many_numbers_is_told_to_be_detached_and_not_to_be_a_number(advised):
    links = Link("attribute", "total"), *GRAPH
    whole = advised(SUM, 3, *links, made=[(2, 4096), (3, 4096)])
    assert "item" not in whole
    assert "+    s.total = s.total + loss.detach()" in whole["detach"].patch
    assert (
        "+    s.total = s.total + loss.item()"
        in advised(SUM, 3, *links, made=[(3, 4)])["item"].patch
    )


def test_a_sum_that_a_backward_pass_starts_from_is_not_cut_off(advised):
    text = SUM + "    s.total.backward(retain_graph=True)\n"
    remedies = advised(text, 3, Link("attribute", "total"), *GRAPH, made=[(3, 4)])
    assert remedies["detach"].patch == ""
    assert "item" not in remedies


KEPT = """\
def step(net, x, kept):
    out = net(x)
    kept.append(out)
"""


SHOWN = "def report(s):\n    print({})\n"


@pytest.mark.parametrize(("use", "offered"), [("s.total / 3", True), ("s.total.item()", False)])
def test_a_sum_that_is_used_as_a_tensor_is_told_to_be_detached_and_not_to_be_a_number(
    advised, use, offered
):
    links = Link("attribute", "total"), *GRAPH
    remedies = advised(SUM + SHOWN.format(use), 3, *links, made=[(3, 4)])
    assert ("item" in remedies) is offered
    assert "+    s.total = s.total + loss.detach()" in remedies["detach"].patch
    # nothing computes a gradient here: that comes before what is said of the sum
    assert list(remedies)[:2] == ["no_grad", "item" if offered else "detach"]


@pytest.mark.parametrize(("nbytes", "offered"), [(4, True), (8, False)])
def test_two_floats_are_not_taken_for_one_double(advised, nbytes, offered):
    links = Link("attribute", "total"), *GRAPH
    remedies = advised(SUM, 3, *links, made=[(3, nbytes)])
    assert bool(remedies["item"].patch) is offered


def test_outputs_of_many_numbers_are_not_told_to_be_one(advised):
    links = Link("item", "3", length=9), *GRAPH
    remedies = advised(KEPT, 3, *links, made=[(2, 4096)])
    assert "+    kept.append(out.detach())" in remedies["detach"].patch
    assert "item" not in remedies


def test_what_is_learned_from_later_is_not_detached_on_its_way_into_the_container(advised):
    text = KEPT + "    torch.stack(kept).sum().backward()\n"
    links = Link("item", "3", length=9), *GRAPH
    assert advised(text, 3, *links, made=[(2, 4096)])["detach"].patch == ""


def test_a_tensor_inside_an_object_that_is_kept_is_not_detached_as_a_tensor(advised):
    links = Link("item", "3", length=9), Link("attribute", "logits"), *GRAPH
    assert advised(KEPT, 3, *links, made=[(2, 4096)])["detach"].patch == ""


SCORE = """\
import torch
def score(net, x):
    return net(x).mean()
"""


@pytest.mark.parametrize("phase", [Phase.OTHER, Phase.BACKWARD])
def test_a_function_that_training_calls_too_is_not_put_under_no_grad(advised, phase):
    remedies = advised(
        SCORE, 3, GRAPH[0], made=[(3, 4096)], freed_in=phase, rule="evaluation-graph"
    )
    assert bool(remedies["no_grad"].patch) == (phase is Phase.OTHER)


RESULT = SCORE + "def train(net, x):\n    {}\n"


@pytest.mark.parametrize(
    ("use", "offered"),
    [
        ("print(float(score(net, x)))", True),
        ("score(net, x).backward()", False),
        ("loss = score(net, x) + 1; torch.autograd.grad(loss, x)", False),
    ],
)
def test_a_function_whose_result_is_learned_from_is_not_put_under_no_grad(advised, use, offered):
    remedies = advised(RESULT.format(use), 3, GRAPH[0], made=[(3, 4096)], rule="evaluation-graph")
    assert bool(remedies["no_grad"].patch) is offered


def test_an_object_that_holds_the_tensor_is_not_detached(advised):
    text = "class Net:\n    def step(self, x):\n        self.out = self.net(x)\n"
    for between, offered in (((), True), ((Link("attribute", "logits"),), False)):
        remedies = advised(text, 3, Link("attribute", "out"), *between, *GRAPH)
        assert bool(remedies["detach"].patch) is offered


TEACHER = """\
import torch
def train(net, teacher, data, critic):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(9):
        x = torch.randn(8, 8, device="cpu").float()
        wanted = teacher(x)
        loss = (net(x) - wanted).square().mean()
        loss.backward()
"""


LOADED = TEACHER.replace(
    "    for _ in range(9)", "    loader = DataLoader(data)\n    for x in loader"
)
LOADED = LOADED.replace('x = torch.randn(8, 8, device="cpu").float()', "pass")
CUT_OFF = TEACHER.replace('torch.randn(8, 8, device="cpu").float()', "net(data).detach()")


@pytest.mark.parametrize("text", [TEACHER, LOADED, CUT_OFF])
def test_what_is_made_of_a_batch_by_a_model_that_is_not_trained_needs_no_graph(advised, text):
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "wanted =" in one)
    remedies = advised(text, line, GRAPH[0], rule="unused-gradients")
    assert next(iter(remedies)) == "no_grad"
    lines = ["+        with torch.no_grad():", "+            wanted = teacher(x)"]
    assert "\n".join(lines) in remedies["no_grad"].patch


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = torch.randn(", "x = net("),
        ("x = torch.randn(", "x = critic("),
        (".float()", ".requires_grad_()"),
        ('device="cpu"', "requires_grad=True"),
        ("        wanted", "        x = torch.nn.Parameter(x)\n        wanted"),
        ("        wanted", "        x.requires_grad = True\n        wanted"),
        ("        loss.back", "        x = x - x.grad\n        loss.back"),
        ("teacher(x)", "teacher(x + 1)"),
        ("teacher(x)", "teacher(data)"),
        ("net(x) - wanted", "wanted - 1"),
        ("net.parameters()", "[data]"),
        ("import torch", "import torch\ndef teacher(x):\n    return x"),
    ],
)
def test_what_may_take_a_gradient_is_not_cut_off_from_it(advised, old, new):
    assert old in TEACHER
    text = TEACHER.replace(old, new, 1)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "wanted =" in one)
    remedies = advised(text, line, GRAPH[0], rule="unused-gradients")
    assert list(remedies)[:2] == ["freeze_params", "detach"]
    assert remedies["detach"].patch == ""
