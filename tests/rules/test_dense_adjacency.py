"""dense-adjacency: a matrix of edges is dense, though only its products are needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame
from tests.rules.recorded import findings_of, names

NODES, EDGES, CHANNELS = 512, 2048, 16
MIB = 1 << 20


def edges_of_graph(count=EDGES):
    return torch.randint(NODES, (2, count))


def normalized(edges):
    adj = torch.zeros(NODES, NODES)
    adj[edges[0], edges[1]] = 1.0
    adj = adj + torch.eye(NODES)
    scale = adj.sum(1).pow(-0.5)
    return scale[:, None] * adj * scale[None, :]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x, adj):
        return torch.relu(torch.matmul(adj, self.linear(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x, neighbours):
        query = self.linear(x)
        scores = (query @ query.t()).masked_fill(neighbours == 0, -1e9)
        return scores.softmax(-1) @ x


class Diffusion(nn.Module):
    def __init__(self, edges):
        super().__init__()
        links = torch.zeros(NODES, NODES)
        links[edges[0], edges[1]] = 1.0
        self.register_buffer("support", links / links.sum(1, keepdim=True).clamp(min=1))
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        return self.linear(self.support @ x)


def fires(count=EDGES):
    model, x = Layer(), torch.rand(NODES, CHANNELS)
    edges = edges_of_graph(count)
    adj = normalized(edges)

    def step(number):
        model(x, adj).square().mean().backward()
        model.zero_grad()
        return edges[0, 0]

    return step


def as_buffer():
    diffusion, x = Diffusion(edges_of_graph()), torch.rand(NODES, CHANNELS)

    def step(number):
        diffusion(x).square().mean().backward()
        diffusion.zero_grad()

    return step


class Stored(nn.Module):
    """Its edges are a buffer, and are not said to be few."""

    def __init__(self, edges):
        super().__init__()
        self.register_buffer("edges", edges)
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        links = torch.zeros(NODES, NODES)
        links[self.edges[0], self.edges[1]] = 1.0
        return self.linear(links @ x)


def stored(count=EDGES):
    module, x = Stored(edges_of_graph(count)), torch.rand(NODES, CHANNELS)

    def step(number):
        module(x).square().mean().backward()
        module.zero_grad()

    return step


def of_most_pairs_in_a_buffer():
    return stored(NODES * NODES // 2)


def looks_alike():
    """Which pairs are no edges is read, too: attention over neighbours, masked."""
    attention, x, edges = Attention(), torch.rand(NODES, CHANNELS), edges_of_graph()
    neighbours = torch.zeros(NODES, NODES)
    neighbours[edges[0], edges[1]] = 1.0

    def step(number):
        attention(x, neighbours).square().mean().backward()
        attention.zero_grad()

    return step


class Bipartite(nn.Module):
    """Users come first, and items behind them; a loop fills the matrix pair by pair."""

    def __init__(self, pairs, users=NODES // 2):
        super().__init__()
        matrix = torch.zeros(NODES, NODES)
        for user, item in pairs.tolist():
            matrix[user, users + item] = 1.0
            matrix[users + item, user] = 1.0
        matrix.div_(matrix.sum(1, keepdim=True).clamp(min=1))
        self.register_buffer("graph", matrix)
        self.embedding = nn.Parameter(torch.rand(NODES, CHANNELS))

    def forward(self):
        return self.graph.matmul(self.embedding)


def of_users_and_items():
    model = Bipartite(torch.randint(NODES // 2, (EDGES, 2)))

    def step(number):
        model().square().mean().backward()
        model.zero_grad()

    return step


def by_columns():
    model, x = Layer(), torch.rand(NODES, CHANNELS)
    edges = torch.randint(NODES, (EDGES, 2))
    adj = torch.zeros(NODES, NODES)
    adj[edges[:, 0], edges[:, 1]] = 1.0

    def step(number):
        model(x, adj).square().mean().backward()
        model.zero_grad()
        return edges[0, 0]

    return step


def distances(count=NODES):
    """Every place behind the diagonal is filled, and the diagonal is not."""
    matrix = torch.zeros(count, count)
    for row in range(count - 1):
        others = torch.arange(count - 1 - row)
        matrix[row, row + 1 + others] = 1.0 / (1 + others)
    return matrix


def of_distances():
    model, x, matrix = Layer(), torch.rand(NODES, CHANNELS), distances()

    def step(number):
        model(x, matrix).square().mean().backward()
        model.zero_grad()

    return step


def of_most_pairs():
    """As many indices as the matrix has entries: they take more than it."""
    return fires(NODES * NODES // 2)


def small():
    features, step = torch.rand(8192, 4096), fires()
    return lambda number: (step(number), features[0])


def test_the_edges_alone_are_advised_with_what_they_save(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if not one.minor]
    (first,) = found.remedies
    assert (found.rule, first.fix) == ("dense-adjacency", "sparse_matrix")
    assert found.site.code == "return scale[:, None] * adj * scale[None, :]"
    assert "`adj`, zero but for its edges" in found.title
    assert first.saves_bytes >= NODES * NODES * 4


def test_a_buffer_of_a_module_is_one_as_well(tmp_path):
    found = findings_of(as_buffer, tmp_path / "run.json")[0]
    assert (found.rule, found.site.code.split("(")[0]) == (
        "dense-adjacency",
        "self.register_buffer",
    )


def test_few_edges_in_a_buffer_are_told_from_many(tmp_path):
    assert "dense-adjacency" in names(stored, tmp_path / "run.json")


@pytest.mark.parametrize(("program", "name"), [(of_users_and_items, "matrix"), (by_columns, "adj")])
def test_indices_may_be_columns_or_lie_behind_others(program, name, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, found.minor, first.fix) == ("dense-adjacency", False, "sparse_matrix")
    assert found.title.endswith(
        f"are the matrix `{name}`, zero but for its edges, and only multiplied"
    )
    assert found.bytes == NODES * NODES * 4


@pytest.mark.parametrize("program", [of_most_pairs, of_most_pairs_in_a_buffer, of_distances, small])
def test_nothing_is_said_of_what_sparse_would_not_be_smaller_or_matters_little(program, tmp_path):
    assert "dense-adjacency" not in names(program, tmp_path / "run.json")


BATCH = """from torch_geometric.loader import DataLoader
from torch_geometric.utils import to_dense_adj
def loss_of(z, data):
    adj = to_dense_adj(data.edge_index)[0]
    logits = z @ z.t()
    return F.binary_cross_entropy_with_logits(logits, adj)
def train(model, graphs):
    for data in DataLoader(graphs, batch_size=64):
        loss_of(model(data), data).backward()
"""


def test_the_matrix_of_a_batch_is_to_be_one_for_each_graph(tmp_path):
    source = tmp_path / "graphs.py"
    source.write_text(BATCH)
    inside = Frame("to_dense_adj", "/x/site-packages/torch_geometric/utils/_to_dense_adj.py", 90)
    lines = [Frame("loss_of", str(source), 4), Frame("loss_of", str(source), 5)]
    train = Frame("train", str(source), 9)
    trace = TraceBuilder(device="cpu")
    for step in range(16):
        trace.label(step=step)
        trace.alloc(16 * MIB, "adj", stack=(inside, lines[0], train))
        trace.alloc(16 * MIB, "logits", stack=(lines[1], train))
        trace.free("logits").free("adj")
    found = findings(load(write_run(tmp_path / "run.json", trace.build())))
    (one,) = [each for each in found if not each.minor]
    assert (one.rule, one.site.line, one.bytes) == ("dense-adjacency", 4, 32 * MIB)
    assert [each.fix for each in one.remedies] == ["adjacency_per_graph"]
