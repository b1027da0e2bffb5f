"""edge-messages: a graph layer makes a message for each edge, where a sparse product would do."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.rules.recorded import findings_of, peak_of

NODES, EDGES, CHANNELS = 64, 4096, 64
LIBRARY = Path(__file__).with_name("site-packages") / "torch_geometric/nn/conv"


def layers(name="layers"):
    """The library's layers, as if that were installed."""
    spec = importlib.util.spec_from_file_location(name, LIBRARY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stepping(layer, edges):
    @torch.no_grad()
    def step(number):
        x = torch.rand(NODES, CHANNELS)
        return layer(x, edges).sum().item()

    return step


def fires():
    return stepping(layers().SumConv(), torch.randint(NODES, (2, EDGES)))


def looks_alike():
    """This layer looks at both ends of each edge."""
    return stepping(layers().DifferenceConv(), torch.randint(NODES, (2, EDGES)))


def sparse():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that sparse matrices are in beta
        adjacency = torch.eye(NODES).to_sparse_csr()
    return stepping(layers().SumConv(), adjacency)


def messages(program, path):
    return [one for one in findings_of(program, path) if one.rule == "edge-messages"]


def test_the_layer_and_what_its_messages_take_are_named(tmp_path):
    (found,) = messages(fires, tmp_path / "r.json")
    (first,) = found.remedies
    assert found.bytes == EDGES * CHANNELS * 4
    assert found.title.endswith("are messages of `SumConv`, one for each edge")
    assert (first.fix, first.code) == ("sparse_adjacency", "return layer(x, edges).sum().item()")
    assert first.saves_bytes == found.bytes - 512  # the peak is then where all are summed up
    assert not found.minor


def evaluated_with_gradients():
    torch.manual_seed(0)
    nodes, layer = 512, layers().SumConv()
    edges, x = torch.randint(nodes, (2, EDGES)), torch.rand(nodes, CHANNELS)
    blocks = (m for _ in range(6) for m in (torch.nn.Linear(CHANNELS, CHANNELS), torch.nn.Tanh()))
    net = torch.nn.Sequential(*blocks)

    def step(number):
        return layer(net(x), edges).sum().item()

    return step


def test_what_is_there_for_nothing_comes_before_operators_that_take_less(tmp_path):
    first, second, *_ = findings_of(evaluated_with_gradients, tmp_path / "r.json")
    assert (first.rule, first.remedies[0].fix) == ("evaluation-graph", "no_grad")
    assert second.rule == "edge-messages"
    assert first.remedies[0].saves_bytes < second.remedies[0].saves_bytes


@pytest.mark.parametrize("program", [looks_alike, sparse])
def test_a_layer_that_needs_its_messages_or_makes_none_is_left_alone(program, tmp_path):
    assert not messages(program, tmp_path / "r.json")


MessagePassing = layers("message_passing").MessagePassing
NARROW = 8


class Narrowing(MessagePassing):
    def __init__(self, channels=NARROW):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, channels)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        return self.propagate(edges, x=x, weight=weight)

    def message(self, x_j, weight):
        return weight * self.lin(x_j)


class OfSeveralLayers(Narrowing):
    """Each of the layers takes a row by itself."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Sequential(torch.nn.Linear(CHANNELS, NARROW), torch.nn.ReLU())

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        return self.propagate(edges, x=x, weight=weight)

    def message(self, x_j, weight):
        return weight * self.lin(x_j)


class OfAllRows(Narrowing):
    """What one of the layers makes of a row depends on how often the others are there."""

    def __init__(self):
        super().__init__()
        norm = torch.nn.BatchNorm1d(NARROW)
        self.lin = torch.nn.Sequential(torch.nn.Linear(CHANNELS, NARROW), norm)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        return self.propagate(edges, x=x, weight=weight)

    def message(self, x_j, weight):
        return weight * self.lin(x_j)


class OfWeightedRows(Narrowing):
    """The layer is given something of the edge, too."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        return self.propagate(edges, x=x, weight=weight)

    def message(self, x_j, weight):
        return self.lin(weight * x_j)


class OfBoth(Narrowing):
    """The features are read at another place besides."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        return self.propagate(edges, x=x, weight=1.0)

    def message(self, x_j, weight):
        return self.lin(x_j) * x_j.mean(-1, keepdim=True)


def narrows():
    return stepping(Narrowing(), torch.randint(NODES, (2, EDGES)))


def widens():
    return stepping(Narrowing(2 * CHANNELS), torch.randint(NODES, (2, EDGES)))


def keeps_width():
    return stepping(Narrowing(CHANNELS), torch.randint(NODES, (2, EDGES)))


def of_several_layers():
    return stepping(OfSeveralLayers(), torch.randint(NODES, (2, EDGES)))


def of_all_rows():
    return stepping(OfAllRows(), torch.randint(NODES, (2, EDGES)))


def weights_first():
    return stepping(OfWeightedRows(), torch.randint(NODES, (2, EDGES)))


def reads_twice():
    return stepping(OfBoth(), torch.randint(NODES, (2, EDGES)))


def test_a_linear_layer_on_gathered_features_goes_before_them(tmp_path):
    (found,) = messages(narrows, tmp_path / "r.json")
    (first,) = found.remedies
    assert found.bytes == EDGES * CHANNELS * 4
    assert found.site.code == "return self.propagate(edges, x=x, weight=weight)"
    assert found.title.endswith("gathered for each edge, which `self.lin` is given")
    assert (first.fix, first.code) == ("transform_nodes", "return weight * self.lin(x_j)")
    assert first.saves_bytes > found.bytes // 2


def test_one_that_makes_as_much_for_each_edge_goes_before_them_too(tmp_path):
    (found,) = messages(keeps_width, tmp_path / "r.json")
    assert found.remedies[0].fix == "transform_nodes"
    assert found.remedies[0].saves_bytes >= EDGES * CHANNELS * 4


def test_several_layers_that_take_each_row_by_itself_go_before_them_together(tmp_path):
    (found,) = messages(of_several_layers, tmp_path / "r.json")
    (first,) = found.remedies
    assert found.bytes == EDGES * CHANNELS * 4
    assert found.title.endswith("gathered for each edge, which `self.lin` is given")
    assert (first.fix, first.code) == ("transform_nodes", "return weight * self.lin(x_j)")


@pytest.mark.parametrize("program", [widens, weights_first, reads_twice, of_all_rows])
def test_features_that_are_needed_for_each_edge_are_left_alone(program, tmp_path):
    assert not messages(program, tmp_path / "r.json")


class Activated(Narrowing):
    """The layer's result goes through a function that takes each value by itself."""

    def __init__(self, channels):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, channels)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        return self.propagate(edges, x=x, weight=weight)

    def message(self, x_j, weight):
        return weight * F.relu(self.lin(x_j))


class OfNodes(Narrowing):
    """The same before rows are gathered."""

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        return self.propagate(edges, x=F.relu(self.lin(x)), weight=weight)

    def message(self, x_j, weight):
        return weight * x_j


def learning(layer):
    edges = torch.randint(NODES, (2, EDGES))

    def step(_):
        layer(torch.rand(NODES, CHANNELS), edges).square().mean().backward()
        layer.zero_grad()

    return step


def test_a_function_of_the_layers_result_goes_before_them_with_it(tmp_path):
    (found,) = messages(lambda: learning(Activated(CHANNELS)), tmp_path / "r.json")
    (first,) = found.remedies
    assert found.site.code == "return self.propagate(edges, x=x, weight=weight)"
    assert first.code == "return weight * F.relu(self.lin(x_j))"
    findings_of(lambda: learning(OfNodes(CHANNELS)), tmp_path / "nodes.json")
    saved = peak_of(tmp_path / "r.json") - peak_of(tmp_path / "nodes.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.1)


class Summing(MessagePassing):
    """Features are gathered and added up as they are; then they are made narrower."""

    def __init__(self, channels=NARROW):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, channels, bias=False)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), 1)
        degree = torch.ones(NODES, 1)
        sums = self.propagate(edges, x=x, weight=weight)
        return self.lin(sums * degree)

    def message(self, x_j, weight):
        return weight * x_j


class OfMaxima(MessagePassing):
    """The largest of all is another than the largest of what a layer makes of each."""

    def __init__(self):
        super().__init__(aggr="max")
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        sums = self.propagate(edges, x=x)
        return self.lin(sums)

    def message(self, x_j):
        return x_j * 1.0


class Squaring(MessagePassing):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        sums = self.propagate(edges, x=x)
        return self.lin(sums)

    def message(self, x_j):
        return x_j.square()


class OfEachChannel(MessagePassing):
    """A weight for each channel of each edge."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1), CHANNELS)
        sums = self.propagate(edges, x=x, weight=weight)
        return self.lin(sums)

    def message(self, x_j, weight):
        return weight * x_j


class Filtering(MessagePassing):
    """The message computes a weight for each channel of each edge."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)
        self.filter = torch.nn.Linear(4, CHANNELS)

    def forward(self, x, edges):
        sums = self.propagate(edges, x=x, kinds=torch.rand(edges.size(1), 4))
        return self.lin(sums)

    def message(self, x_j, kinds):
        return x_j * self.filter(kinds)


class Normalizing(MessagePassing):
    """What is gathered is divided by its own length: no linear layer can come before that."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        sums = self.propagate(edges, x=x)
        return self.lin(sums)

    def message(self, x_j):
        return x_j / x_j.norm(dim=-1, keepdim=True)


class FilteringByHand(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)
        self.filter = torch.nn.Linear(4, CHANNELS)

    def forward(self, x, edges):
        kinds = torch.rand(edges.size(1), 4)
        rows = x[edges[0]] * self.filter(kinds)
        sums = torch.zeros(len(x), CHANNELS)
        sums.index_add_(0, edges[1], rows)
        return self.lin(sums)


class ByHand(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        weight = torch.rand(edges.size(1))
        rows = x[edges[0]] * weight[:, None]
        sums = torch.zeros(len(x), CHANNELS)
        sums.index_add_(0, edges[1], rows)
        return self.lin(sums)


def added_up(features, edges):
    sources, targets = edges
    rows = torch.index_select(features, 0, sources)
    return torch.zeros_like(features).scatter_add(0, targets[:, None].expand_as(rows), rows)


class ByFunction(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        return self.lin(added_up(x, edges))


def added_up_of_both(features, edges):
    """The rows are squared, too."""
    rows = features[edges[0]]
    sums = torch.zeros_like(features).index_add(0, edges[1], rows)
    return sums + rows.square().mean()


class OfBothSums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        return self.lin(added_up_of_both(x, edges))


def added_up_twice(features, edges):
    return torch.zeros_like(features).index_add(0, edges[1], features[edges[0]])


class OfTwoHops(torch.nn.Module):
    """The sums are added up again, and what is given to the layer is not linear in them."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(CHANNELS, NARROW)

    def forward(self, x, edges):
        hidden = torch.relu(added_up_twice(x, edges))
        return self.lin(added_up_twice(hidden, edges))


def graph_layer(layer):
    return lambda: stepping(layer(), torch.randint(NODES, (2, EDGES)))


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        (Summing, "sums = self.propagate(edges, x=x, weight=weight)"),
        (ByHand, "rows = x[edges[0]] * weight[:, None]"),
        (ByFunction, "rows = torch.index_select(features, 0, sources)"),
    ],
)
def test_what_is_made_narrower_once_it_is_added_up_is_so_before(layer, code, tmp_path):
    (found,) = messages(graph_layer(layer), tmp_path / "r.json")
    (first,) = found.remedies
    assert (first.fix, first.code, found.minor) == ("transform_nodes", code, False)
    assert f"1/{CHANNELS // NARROW} as wide" in first.why
    assert ("bias" in first.why) is (layer is not Summing)
    assert ("`degree` has one value for a row" in first.why) is (layer is Summing)
    assert found.bytes >= EDGES * CHANNELS * 4


@pytest.mark.parametrize(
    "layer",
    [
        OfMaxima,
        Squaring,
        OfEachChannel,
        Filtering,
        Normalizing,
        FilteringByHand,
        OfBothSums,
        OfTwoHops,
        lambda: Summing(CHANNELS),
    ],
)
def test_sums_that_no_linear_layer_could_come_before_are_left_alone(layer, tmp_path):
    assert not messages(graph_layer(layer), tmp_path / "r.json")
