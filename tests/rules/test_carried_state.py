"""carried-state: a state is made from that of the step before, with the graphs of all steps."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Growth, Kind
from memprof.rules.ranked_findings import findings
from tests.rules.bench import Bench
from tests.rules.recorded import findings_of


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def fires():
    cell, memory = nn.GRUCell(64, 64), SimpleNamespace()
    memory.state = torch.zeros(16, 64)

    def step(number):
        memory.state = cell(torch.randn(16, 64), memory.state)

    return step


def looks_alike():
    """The state is cut off between two steps, and each is kept as a list of predictions."""
    cell, memory = nn.GRUCell(64, 64), SimpleNamespace()
    memory.hidden, predictions = torch.zeros(16, 64), []

    def step(number):
        memory.hidden = cell(torch.randn(16, 64), memory.hidden.detach())
        memory.hidden.square().mean().backward()
        predictions.append(memory.hidden.detach())

    return step


def test_the_state_is_handed_on_without_its_graph(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "carried-state"
    assert first.fix == "detach"
    assert "memory.state.detach())" in first.patch


class Forecaster(nn.Module):
    """Keeps its state itself; what trains it goes back through several steps."""

    def __init__(self):
        super().__init__()
        self.cell, self.carried = nn.GRUCell(64, 64), None

    def forward(self, x):
        if self.carried is None:
            self.carried = torch.zeros(16, 64)
        self.carried = self.cell(x, self.carried)
        return self.carried


def trained_and_watched():
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(number):
        if number < 4:
            model.carried = None
            losses = [model(torch.randn(16, 64)).square().mean() for _ in range(4)]
            optimizer.zero_grad()
            sum(losses).backward()
            optimizer.step()
        else:
            model(torch.randn(16, 64))

    return step


def test_a_forward_that_others_learn_by_is_not_to_be_cut(tmp_path):
    found, *_ = findings_of(trained_and_watched, tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("carried-state", "no_grad")
    assert first.code == "model(torch.randn(16, 64))"


SOURCE = """
import queue

frames = queue.Queue()

def make(script):
    state = start()
    for tokens in script:
        latent, state = decode(tokens, state)
        frames.put(latent)

def play():
    while True:
        latent = frames.get()
        show(latent)
"""


def test_the_only_state_of_a_loop_is_named_where_a_queue_hands_its_graph_on(bench):
    bench.write(SOURCE)
    links = [
        ("local", "latent", -1),
        Link(LinkKind.AUTOGRAD_NODE, nodes=(("TanhBackward0", 64),)),
        ("saved_tensor", "mat1", -1),
    ]
    held = bench.holder("frames.get()", *links)
    first = bench.advise("frames.get()", held, kind=Kind.HOST_GROWTH)[0]
    assert (first.fix, first.line) == ("detach", bench.line("latent, state = decode"))
    bench.write(SOURCE + "    for x in more:\n        h = step(x, h)\n")
    advised = bench.advise("frames.get()", held, kind=Kind.HOST_GROWTH)
    assert all(one.fix != "detach" for one in advised)


def remembers():
    """A bank of the newest features, which are put in with their graphs: no bytes, but nodes."""
    encoder = nn.Linear(64, 64)
    bank = torch.zeros(0, 64)

    def step(number):
        nonlocal bank
        features = encoder(torch.randn(32, 64))
        (features @ bank.detach().T).sum().backward()
        bank = torch.cat([bank, features])[-64:]

    return step


def test_a_bank_of_bounded_size_is_to_keep_no_graph(tmp_path):
    first = findings_of(remembers, tmp_path / "run.json", steps=200)[0]
    assert first.kind is Kind.HOST_GROWTH
    assert (first.remedies[0].rule, first.remedies[0].fix) == ("carried-state", "detach")
    assert "`bank` is made from the `bank` of the step before" in first.remedies[0].why


LOCAL = """
def attack(x, y):
    x = x.clone().requires_grad_(True)
    loss = error(model(x), y)
    return (x.detach() + loss.sign()).clamp(0, 1)

def decode(x, h):
    h = cell(x, h)
    return {"state": h}
"""


@pytest.mark.parametrize(("code", "fixes"), [("x.clone()", []), ("cell(x, h)", ["detach"])])
def test_a_local_variable_is_carried_on_only_by_what_the_function_returns(bench, code, fixes):
    bench.write(LOCAL)
    held = bench.holder(code, Link(LinkKind.AUTOGRAD_NODE, nodes=(("AddBackward0", 9),)))
    advice = bench.advise(code, held)
    assert [one.fix for one in advice if one.rule == "carried-state"] == fixes


IN_A_LOOP = """
def run(steps):
    state = start()
    for step in range(steps):
        {reset}
        action, new = policy.act(observation, {read})
        replay.append((observation, action, state))
        state = tuple(part * mask for part in {handed})
        observation = environment.step(action)
"""


@pytest.mark.parametrize(
    ("reset", "read", "handed", "fixes"),
    [
        ("pass", "state", "new", ["detach"]),
        ("pass", "state.detach()", "new", []),
        ("pass", "state", "new.detach()", []),
        ("pass", "observation", "new", []),
        ("state = start()", "state", "new", []),
    ],
)
@pytest.mark.parametrize("limit", [128, -1])
def test_a_state_that_two_statements_make_is_carried_on(bench, reset, read, handed, fixes, limit):
    """Where the container has no bound, it may be what keeps the graphs."""
    bench.write(IN_A_LOOP.format(reset=reset, read=read, handed=handed))
    links = [
        ("local", "replay", -1),
        Link(LinkKind.ITEM, "3", "deque", length=128, limit=limit),
        ("item", "2", 3),
        ("item", "0", 2),
        Link(LinkKind.AUTOGRAD_NODE, nodes=(("MulBackward0", 9),)),
    ]
    held = bench.holder("replay.append", *links)
    advice = bench.advise("state = tuple", held)
    carried = [one for one in advice if one.rule == "carried-state"]
    assert [one.fix for one in carried] == (fixes if limit > 0 else [])
    assert {one.line for one in carried} <= {bench.line("state = tuple")}
    assert list(advice[: len(carried)]) == carried


ROLLOUT = """
class Collector:
    def collect(self):
        start = self.state
        for step in range(length):
            logits, (h, c) = self.policy(self.obs, {read})
            keep = 1 - self.done
            self.state = (h * keep, c * keep)
        return Segment(start)

def train():
    for _ in range(iterations):
        recent.append(collector.collect())
"""


@pytest.mark.parametrize(("read", "fixes"), [("self.state", ["detach"]), ("self.start", [])])
def test_a_state_that_a_later_statement_of_the_loop_makes_is_carried_on(bench, read, fixes):
    """What is kept was made by the statement that reads it."""
    bench.write(ROLLOUT.format(read=read))
    links = [
        ("local", "recent", -1),
        Link(LinkKind.ITEM, "2", "deque", length=4, limit=4),
        ("attribute", "start", -1),
        Link(LinkKind.AUTOGRAD_NODE, nodes=(("MulBackward0", 9),)),
    ]
    held = bench.holder("recent.append", *links)
    advice = bench.advise("logits, (h, c)", held)
    carried = [one for one in advice if one.rule == "carried-state"]
    assert [one.fix for one in carried] == fixes
    assert {one.line for one in carried} <= {bench.line("self.state = (h * keep")}


class Bank(nn.Module):
    """A memory bank that is made longer in each forward pass, by parts without a graph."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 64)
        self.bank = torch.zeros(16, 64)

    def forward(self, x):
        codes = self.encoder(x)
        similar = codes @ self.bank[-16:].T
        self.bank = torch.cat([self.bank, codes.detach()])
        return similar.logsumexp(1).mean()


def longer():
    bank = Bank()

    def step(number):
        bank(torch.randn(16, 64)).backward()
        bank.zero_grad()

    return step


def test_what_is_made_longer_by_detached_parts_carries_no_graph(tmp_path):
    (found,) = (one for one in findings_of(longer, tmp_path / "run.json") if one.kind is Kind.LEAK)
    assert (found.rule, found.remedies[0].fix) == ("grown-by-concatenation", "right_size")
    assert found.remedies[0].code == "self.bank = torch.cat([self.bank, codes.detach()])"
    assert found.remedies[0].typed == f"{found.remedies[0].code}[-16:]"


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.pow(2).mean(0)
        return x * self.scale, self.scale.log().sum()


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Norm() for _ in range(4))

    def log_prob(self, x):
        total = 0.0
        for layer in self.layers:
            x, logdet = layer(x)
            total = total + logdet
        return total - x.pow(2).mean()


def normalizes():
    flow = Flow()
    optimizer = torch.optim.Adam(flow.parameters(), 0.01)

    def train(steps):
        for _ in range(steps):
            loss = -flow.log_prob(torch.randn(256, 64))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            memprof.step()

    return train


def test_a_loop_through_layers_within_a_step_carries_nothing_to_the_next(tmp_path):
    """What does is the mean, which each step makes of the last one's with its graph."""
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=60):
        normalizes()(16)
    first = findings(memprof.load(tmp_path / "run.json"))[0].remedies[0]
    assert (first.rule, first.fix) == ("assigned-history", "detach")
    assert first.code == "self.mean = 0.9 * self.mean + 0.1 * x.pow(2).mean(0)"


def acting():
    """What is observed has no graph; a memory that is not yet full keeps what was done with it."""
    actor, memory = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), deque(maxlen=99)

    class World:
        def move(self, action):
            return torch.randn(16, 64) + action.detach()

    world = World()

    def run(steps):
        seen = torch.zeros(16, 64)
        for _ in range(steps):
            action = actor(seen)
            following = world.move(action)
            memory.append((seen, action, following))
            seen = following
            memprof.step()

    return run


def test_a_memory_that_fills_up_keeps_its_own_graphs(tmp_path):
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=600):
        acting()(40)
    (found, *_) = findings(load(tmp_path / "run.json"))
    assert found.rule != "carried-state"
    assert found.remedies[0].code == "memory.append((seen, action, following))"


STREAM = """
class Cell(Module):
    def forward(self, x, h=None):
        h = tanh(self.mix(cat([x, h], -1)))
        return {"y": self.out(h), "h": h}

def stream(cell, xs):
    kwargs = {}
    for x in xs:
        res = cell(x, **kwargs)
        KWARGS
"""


@pytest.mark.parametrize(
    ("kwargs", "length", "code"),
    [
        ('kwargs = {"h": res["h"]}', 2, 'kwargs = {"h": res["h"]}'),
        ('kwargs = {"h": res["h"]}', 50, ""),  # it may be results by name, each with its graph
    ],
)
def test_a_state_in_a_dict_is_carried_on_by_who_calls_the_model(bench, kwargs, length, code):
    bench.write(STREAM.replace("KWARGS", kwargs))
    links = [
        Link(LinkKind.LOCAL, "res", "stream"),
        Link(LinkKind.ITEM, "'h'", "dict", length=length, is_record=True),
        Link(LinkKind.AUTOGRAD_NODE, nodes=(("TanhBackward0", 64),)),
        Link(LinkKind.SAVED_TENSOR, "result", "TanhBackward0"),
    ]
    held = bench.holder("res = cell(x, **kwargs)", *links)
    growth = Growth(times=60, kept_itself=0.0)
    advice = bench.advise("h = tanh", held, growth=growth)
    carried = [bench.lines[one.line - 1].strip() for one in advice if one.rule == "carried-state"]
    assert carried == ([code] if code else [])
