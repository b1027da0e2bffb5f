"""gathered-rows: rows are gathered, each many times, for a linear layer that takes them one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memprof.loading import load
from tests.rules.recorded import findings_of

NODES, EDGES, CHANNELS = 256, 8192, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, CHANNELS)

    def messages(self, x, src, dst):
        return self.lin(x[src])

    def forward(self, x, edges):
        src, dst = edges
        made = self.messages(x, src, dst)
        return x + torch.zeros_like(x).index_add(0, dst, made)


class FirstMapped(Layer):
    def messages(self, x, src, dst):
        return self.lin(x)[src]


class ByVariable(Layer):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, CHANNELS)

    def messages(self, x, src, dst):
        ends = x.index_select(0, src)
        return self.lin(ends)


class OfBothEnds(Layer):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2 * CHANNELS, CHANNELS)

    def messages(self, x, src, dst):
        return self.lin(torch.cat([x[src], x[dst]], dim=-1))


class Attentive(Layer):
    """What one end has is read again, and is needed for each edge."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2 * CHANNELS, 1)

    def messages(self, x, src, dst):
        ends = x[src]
        return self.lin(torch.cat([ends, x[dst]], dim=-1)).sigmoid() * ends


class Scored(Layer):
    """Attention by a vector of weights: each end has its own part of the score."""

    def __init__(self):
        super().__init__()
        self.att = nn.Parameter(torch.randn(2 * CHANNELS, 1) * 0.1)

    def messages(self, x, src, dst):
        pair = torch.cat([x[src], x[dst]], dim=-1)
        return x[src] * torch.sigmoid(pair @ self.att)


class ScoredByCall(Layer):
    def __init__(self):
        super().__init__()
        self.att = nn.Parameter(torch.randn(2 * CHANNELS, 1) * 0.1)

    def messages(self, x, src, dst):
        return x[src] * torch.sigmoid(torch.matmul(torch.cat([x[src], x[dst]], -1), self.att))


class ScoredWithBias(Layer):
    def __init__(self):
        super().__init__()
        self.att = nn.Parameter(torch.randn(1, 2 * CHANNELS) * 0.1)
        self.bias = nn.Parameter(torch.zeros(1))

    def messages(self, x, src, dst):
        pair = torch.cat([x[src], x[dst]], dim=-1)
        return x[src] * torch.sigmoid(F.linear(pair, self.att, self.bias))


class ScoredByMethod(Layer):
    def __init__(self):
        super().__init__()
        self.att = nn.Parameter(torch.randn(2 * CHANNELS, 1) * 0.1)

    def messages(self, x, src, dst):
        pair = torch.cat([x[src], x[dst]], dim=-1)
        return x[src] * torch.sigmoid(pair.matmul(self.att))


class ScoredInPairs(Layer):
    """A method gathers both ends at once."""

    def __init__(self):
        super().__init__()
        self.att = nn.Parameter(torch.randn(2 * CHANNELS) * 0.1)

    def ends(self, x, edges):
        return x[edges].permute(1, 0, 2).flatten(1)

    def messages(self, x, src, dst):
        pairs = self.ends(x, torch.stack([src, dst]))
        return x[src] * torch.sigmoid(torch.einsum("ed,d->e", pairs, self.att))[:, None]


class ScoredByEachOther(Layer):
    """The pairs are multiplied by what is computed of them."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, 2 * CHANNELS)

    def both(self, x, edges):
        return x[edges].permute(1, 0, 2).flatten(1)

    def messages(self, x, src, dst):
        pairs = self.both(x, torch.stack([src, dst]))
        weights = self.lin(x.mean(0))
        return x[src] * torch.sigmoid(torch.einsum("ed,d->e", pairs, weights))[:, None]


class ByKeywords(Layer):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, CHANNELS)

    def messages(self, x, src, dst):
        return self.lin(torch.index_select(x, dim=0, index=src))


class OfSeveralLayers(Layer):
    """The linear layer is the first of several."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(2 * CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS)
        self.mlp = nn.Sequential(nn.Linear(2 * CHANNELS, CHANNELS), *layers[1:])

    def messages(self, x, src, dst):
        pairs = torch.cat([x[src], x[dst]], dim=1)
        return self.mlp(pairs)


class BoundAgain(Layer):
    """What is made of the rows takes their name; the layer is turned weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, CHANNELS) * 0.1)

    def messages(self, x, src, dst):
        ends = x.index_select(dim=0, index=src)
        ends = torch.mm(ends, self.weight.t())
        return ends * 0.5


class OfRelations(Layer):
    """A method is given the weights, of several."""

    def __init__(self):
        super().__init__()
        kinds = ("near", "far")
        made = {one: nn.Parameter(torch.randn(CHANNELS, CHANNELS) * 0.1) for one in kinds}
        self.weights = nn.ParameterDict(made)

    def of_relation(self, x, src, weight):
        ends = x[src]
        return torch.einsum("ed,dh->eh", ends, weight)

    def messages(self, x, src, dst):
        half = len(src) // 2
        made = [
            self.of_relation(x, part, self.weights[one])
            for one, part in zip(("near", "far"), (src[:half], src[half:]), strict=True)
        ]
        return torch.cat(made)


class OfOnesOwn(OfBothEnds):
    """Its base class makes the layer."""

    def messages(self, x, src, dst):
        return self.lin(torch.cat([x[src], x[dst]], dim=-1)).tanh()


class OfKeysAndValues(Layer):
    """Two layers are given the same rows."""

    def __init__(self):
        super().__init__()
        self.key, self.value = (nn.Linear(CHANNELS, CHANNELS) for _ in range(2))

    def messages(self, x, src, dst):
        ends = x[src]
        keys, values = self.key(ends), self.value(ends)
        return keys.sigmoid() * values


class OfListedLayers(Layer):
    """A loop goes through a layer for each relation."""

    def __init__(self):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(CHANNELS, CHANNELS, bias=False) for _ in range(2)])

    def messages(self, x, src, dst):
        made = []
        for lin, part in zip(self.lins, src.chunk(2), strict=True):
            made.append(lin(x[part]))
        return torch.cat(made)


class OfListedNorms(OfListedLayers):
    """What a loop goes through takes all rows together."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(CHANNELS), nn.BatchNorm1d(CHANNELS)])

    def messages(self, x, src, dst):
        made = []
        for norm, part in zip(self.norms, src.chunk(2), strict=True):
            made.append(norm(x[part]))
        return torch.cat(made)


class WeighedByEachOther(OfRelations):
    """What the method is given is no parameter, once."""

    def of_one(self, x, src, weights):
        ends = x[src]
        return torch.einsum("ed,dh->eh", ends, weights)

    def messages(self, x, src, dst):
        weights = x.T @ x / len(x)
        return self.of_one(x, src, weights) + self.of_one(x, dst, self.weights["far"])


class ReadBefore(BoundAgain):
    """The rows are read besides, before their name is taken."""

    def messages(self, x, src, dst):
        ends = x.index_select(dim=0, index=src)
        norm = ends.norm(dim=-1, keepdim=True)
        ends = torch.mm(ends, self.weight.t())
        return ends / norm


class ScoredFirst(Scored):
    def messages(self, x, src, dst):
        of_src, of_dst = x @ self.att[:CHANNELS], x @ self.att[CHANNELS:]
        return x[src] * torch.sigmoid(of_src[src] + of_dst[dst])


class Compared(Scored):
    """Multiplied by what is no weight: of another row each time."""

    def messages(self, x, src, dst):
        pair = torch.cat([x[src], x[dst]], dim=-1)
        return x[src] * torch.sigmoid((pair @ pair[:1].T) * self.att.sum())


class ReadTwice(Layer):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, CHANNELS)

    def messages(self, x, src, dst):
        ends = x[src]
        return self.lin(ends) * ends.mean(-1, keepdim=True)


class Selected(Layer):
    """Some of the rows, each once."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, CHANNELS)

    def messages(self, x, src, dst):
        some = torch.arange(len(x) // 2)
        return torch.cat([self.lin(x[some])] * (2 * len(src) // len(x)))


class OfAllRows(Layer):
    def __init__(self):
        super().__init__()
        self.lin = nn.BatchNorm1d(CHANNELS)  # which takes all rows together

    def messages(self, x, src, dst):
        return self.lin(x[src])


def training(kind):
    def program():
        torch.manual_seed(0)
        layers = nn.ModuleList(kind() for _ in range(3))
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        x, edges = torch.randn(NODES, CHANNELS), torch.randint(NODES, (2, EDGES))

        def step(number):
            hidden = x
            for layer in layers:
                hidden = layer(hidden, edges)
            hidden.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


fires = training(Layer)
looks_alike = training(FirstMapped)


def gathered(program, path):
    return [one for one in findings_of(program, path) if one.rule == "gathered-rows"]


def peak(path):
    (device,) = load(path).devices
    return int(device.steps.peak_allocated.max())


def test_the_layer_is_called_on_the_rows_before_they_are_gathered(tmp_path):
    (found,) = gathered(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert found.bytes == 3 * EDGES * CHANNELS * 4
    assert found.title.endswith(
        "are rows of `x`, gathered some 32 times each, which `self.lin` takes one by one"
    )
    assert (first.fix, first.code) == ("transform_nodes", "return self.lin(x[src])")
    findings_of(looks_alike, tmp_path / "changed.json")
    promised, changed = first.peak_before - first.saves_bytes, peak(tmp_path / "changed.json")
    assert abs(promised - changed) <= 0.1 * first.saves_bytes


def test_what_a_variable_hands_on_is_told_at_the_call(tmp_path):
    (found,) = gathered(training(ByVariable), tmp_path / "run.json")
    assert found.site.code == "ends = x.index_select(0, src)"
    assert found.remedies[0].code == "return self.lin(ends)"


def test_both_ends_of_each_edge_are_given_weights_of_their_own(tmp_path):
    (found,) = gathered(training(OfBothEnds), tmp_path / "run.json")
    assert found.bytes == 3 * EDGES * 2 * CHANNELS * 4
    assert found.match.times == EDGES / NODES
    assert "a linear layer of its own" in found.remedies[0].why


def test_what_is_read_again_beside_what_is_joined_of_it_stays(tmp_path):
    (found,) = gathered(training(Attentive), tmp_path / "run.json")
    assert found.bytes == 3 * EDGES * 2 * CHANNELS * 4
    assert found.site.code.startswith("return self.lin(torch.cat([ends, x[dst]], dim=-1))")
    assert found.remedies[0].saves_bytes == found.bytes


def test_a_product_with_weights_is_of_each_end(tmp_path):
    (found,) = gathered(training(Scored), tmp_path / "run.json")
    (first,) = found.remedies
    assert found.bytes == 3 * EDGES * 2 * CHANNELS * 4
    assert found.title.endswith("which are multiplied by `self.att` one by one")
    assert first.code == "return x[src] * torch.sigmoid(pair @ self.att)"
    findings_of(training(ScoredFirst), tmp_path / "changed.json")
    promised, changed = first.peak_before - first.saves_bytes, peak(tmp_path / "changed.json")
    assert abs(promised - changed) <= 0.1 * first.saves_bytes


def test_arguments_may_have_their_names(tmp_path):
    (found,) = gathered(training(ByKeywords), tmp_path / "run.json")
    assert found.bytes == 3 * EDGES * CHANNELS * 4
    assert found.site.code == "return self.lin(torch.index_select(x, dim=0, index=src))"


def test_a_method_may_gather_both_ends_in_one_row(tmp_path):
    (found,) = gathered(training(ScoredInPairs), tmp_path / "run.json")
    assert found.bytes == 3 * EDGES * 2 * CHANNELS * 4
    assert found.site.code == "return x[edges].permute(1, 0, 2).flatten(1)"
    assert found.match.times == EDGES / NODES
    assert "multiply `x` with its own part of that" in found.remedies[0].why


@pytest.mark.parametrize("kind", [ScoredByCall, ScoredByMethod, ScoredWithBias])
def test_a_product_may_be_a_call(kind, tmp_path):
    (found,) = gathered(training(kind), tmp_path / "run.json")
    assert found.title.endswith("which are multiplied by `self.att` one by one")


@pytest.mark.parametrize(
    ("kind", "nbytes", "by", "code"),
    [
        (OfSeveralLayers, 6 * EDGES * CHANNELS * 4, "self.mlp[0]", "return self.mlp(pairs)"),
        (
            BoundAgain,
            3 * EDGES * CHANNELS * 4,
            "self.weight.t()",
            "ends = torch.mm(ends, self.weight.t())",
        ),
        (
            OfRelations,
            3 * EDGES * CHANNELS * 4,
            "weight",
            'return torch.einsum("ed,dh->eh", ends, weight)',
        ),
        (
            OfKeysAndValues,
            3 * EDGES * CHANNELS * 4,
            "self.key",
            "keys, values = self.key(ends), self.value(ends)",
        ),
        (OfListedLayers, 3 * EDGES * CHANNELS * 4, "lin", "made.append(lin(x[part]))"),
        (
            OfOnesOwn,
            6 * EDGES * CHANNELS * 4,
            "self.lin",
            "return self.lin(torch.cat([x[src], x[dst]], dim=-1)).tanh()",
        ),
    ],
)
def test_the_layer_may_be_made_or_written_otherwise(kind, nbytes, by, code, tmp_path):
    (found,) = gathered(training(kind), tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.bytes, found.match.linear.layer) == (nbytes, by)
    assert (first.fix, first.code) == ("transform_nodes", code)
    assert first.saves_bytes >= 0.9 * nbytes


@pytest.mark.parametrize(
    "kind",
    [
        *(FirstMapped, ScoredFirst, ScoredByEachOther, Compared, ReadTwice, Selected, OfAllRows),
        *(WeighedByEachOther, ReadBefore, OfListedNorms),
    ],
)
def test_what_needs_its_rows_is_left_alone(kind, tmp_path):
    assert not gathered(training(kind), tmp_path / "run.json")
