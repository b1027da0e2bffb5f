"""Matrices that are filled by pairs of indices, and are only factors of products from there on."""

from __future__ import annotations

import textwrap

import pytest

from memprof.source_code import factors
from memprof.source_code.factors import factors_of, is_called_of_batch
from memprof.source_code.program import assigned, program_of

FILL = """
def graph(edges, n):
    adj = torch.zeros(n, n)
    adj[edges[0], edges[1]] = 1.0
    return adj
"""
LAYER = """
class Layer(nn.Module):
    def forward(self, x, adj):
        return torch.matmul(adj, self.linear(x))
class Net(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
    def forward(self, x, adj):
        for i, layer in enumerate(self.layers):
            x = layer(x, adj)
        return x
"""


def program(tmp_path, code):
    path = tmp_path / "graphs.py"
    path.write_text("import torch\n" + textwrap.dedent(code))
    return program_of(str(path))


@pytest.mark.parametrize(
    "code",
    [
        FILL + "def run(x, edges):\n    return graph(edges, 9) @ x\n",
        FILL + "def run(x, edges):\n    return torch.mm(graph(edges, 9), x)\n",
        # scaled by degrees, with a loop at each node
        FILL
        + """
def run(x, edges):
    adj = graph(edges, 9) + torch.eye(9)
    degree = adj.sum(1)
    scale = torch.diag(degree.pow(-0.5))
    adj = scale @ adj @ scale
    print(adj.shape)
    return adj.t() @ x
""",
        FILL
        + """
def run(x, edges):
    adj = torch.maximum(graph(edges, 9), graph(edges, 9).T)
    adj /= adj.sum(1, keepdim=True).clamp(min=1)
    return torch.bmm(adj.unsqueeze(0).expand(4, -1, -1), x)
""",
        # by modules, in attributes and buffers
        FILL
        + LAYER
        + "def run(x, edges):\n    net = Net().to('cpu')\n    net(x, adj=graph(edges, 9).cuda())\n",
        FILL
        + """
class Net(nn.Module):
    def __init__(self, edges):
        adj = graph(edges, 9)
        self.register_buffer("support", adj / adj.sum(1)[:, None])
    def forward(self, x):
        return self.support @ x
""",
        """
import numpy as np
def run(x, edges):
    adj = np.zeros((9, 9), dtype=np.float32)
    for source, target in edges:
        adj[source, target] = 1.0
    return torch.from_numpy(adj) @ x
""",
        "def run(x, edges):\n    return torch.sparse_coo_tensor(edges, x[0]).to_dense() @ x\n",
        "def run(x, edges):\n    adj = to_dense_adj(edges)[0]\n    return adj @ x\n",
    ],
)
def test_a_matrix_of_edges_that_is_multiplied_and_no_more_is_a_factor(code, tmp_path):
    assert len(list(factors_of([program(tmp_path, code)]))) == 1


@pytest.mark.parametrize(
    "use",
    [
        "x",  # it is not multiplied at all
        "(x @ x.t()).masked_fill(adj == 0, -1e9).softmax(-1) @ x + adj @ x",
        "(adj.softmax(-1)) @ x",
        "(1 - adj) @ x",
        "(adj + 0.1) @ x",
        "(adj + x @ x.t()) @ x",
        "adj @ adj @ x",
        "adj[rows] @ x",
        "nn.Parameter(adj) @ x",
        "adj @ x + solve(adj)",
        "F.binary_cross_entropy(x @ x.t(), adj) + (adj @ x).sum()",
        "[row @ x for row in adj]",
        "torch.where(adj > 0, x, 0) + adj @ x",
    ],
)
def test_a_matrix_of_which_the_zeros_are_read_too_is_none(use, tmp_path):
    code = FILL + f"def run(x, edges, rows):\n    adj = graph(edges, 9)\n    return {use}\n"
    assert list(factors_of([program(tmp_path, code)])) == []


@pytest.mark.parametrize(
    "fill",
    [
        "for i in range(n):\n        for j in range(n):\n            adj[i, j] = kernel(i, j)",
        "rows = edges[:, None]\n    adj[rows, edges] = 1.0",
        "adj[edges] = 1.0",
        "adj[:, edges[0]] = 1.0",
        "adj[0, 1] = 1.0",
        "adj = adj.normal_()",
        "for i, j in itertools.product(x, x):\n        adj[i, j] = kernel(i, j)",
        "pairs = list(combinations(x, 2))\n    for i, j in pairs:\n        adj[i, j] = near(i, j)",
        "for i in x:\n        for j in x:\n            adj[i, j] = kernel(i, j)",
        "for a in x:\n        for b in x[1:]:\n            adj[a.at, b.at] = kernel(a, b)",
        "i = 0\n    while i < n:\n        j = at[i]\n        adj[i, j] = 1.0\n        i += 1",
        "half = torch.tril_indices(n, n)\n    adj[half[0], half[1]] = x",
    ],
)
def test_a_matrix_that_may_be_filled_in_full_is_none(fill, tmp_path):
    code = f"def run(x, edges, n):\n    adj = torch.zeros(n, n)\n    {fill}\n    return adj @ x\n"
    assert list(factors_of([program(tmp_path, code)])) == []


def test_one_with_an_edge_for_each_neighbour_of_each_node_is(tmp_path):
    code = """
def run(x, graph, n):
    adj = torch.zeros(n, n)
    for node in graph:
        for other in graph[node]:
            adj[node, other] = 1.0
    return adj @ x
"""
    assert len(list(factors_of([program(tmp_path, code)]))) == 1


@pytest.mark.parametrize("values", ["self.values", "self.values.exp()"])
def test_one_that_is_filled_with_parameters_is_none(values, tmp_path):
    code = f"""
class Net(nn.Module):
    def __init__(self, rows, columns):
        self.values = nn.Parameter(torch.zeros(9))
        self.rows, self.columns = rows, columns
    def forward(self, x):
        lower = torch.zeros(9, 9)
        lower[self.rows, self.columns] = {values}
        return x @ lower
"""
    assert list(factors_of([program(tmp_path, code)])) == []


@pytest.mark.parametrize("made", ["torch.rand(n, n)", "torch.zeros(n, n)"])
def test_many_lines_that_fill_one_matrix_are_read_in_time_that_grows_with_them(
    made, tmp_path, monkeypatch
):
    count, reads = 200, []

    def counted(node):
        reads.append(node)
        return assigned(node)

    monkeypatch.setattr(factors, "assigned", counted)
    lines = "".join(f"    adj[i{at}, n] = 1.0\n" for at in range(count))
    code = f"def run(n):\n    adj = {made}\n    for n in range(9):\n        pass\n{lines}"
    assert list(factors_of([program(tmp_path, code)])) == []
    assert len(reads) < 40 * count


BATCHES = """
from torch_geometric.loader import DataLoader
from torch_geometric.utils import to_dense_adj
class Net(nn.Module):
    def loss(self, data):
        return to_dense_adj(data.edge_index{more}).sum()
def train(net, loader):
    for number, data in enumerate(loader):
        net.loss(data).backward()
def main(graphs):
    train(Net(), {batches})
"""


@pytest.mark.parametrize(
    ("more", "batches", "expected"),
    [
        ("", "DataLoader(graphs, batch_size=64)", True),
        (", max_num_nodes=90", "DataLoader(graphs, batch_size=64)", True),
        (", batch=None", "DataLoader(graphs, batch_size=64)", True),
        (", data.batch", "DataLoader(graphs, batch_size=64)", False),
        (", batch=data.batch", "DataLoader(graphs, batch_size=64)", False),
        ("", "graphs", False),
    ],
)
def test_a_matrix_of_a_whole_batch_is_made_of_what_a_loader_gives(
    more, batches, expected, tmp_path
):
    one = program(tmp_path, BATCHES.format(more=more, batches=batches))
    (line,) = (at for at, text in enumerate(one.lines, 1) if "return to_dense_adj" in text)
    assert is_called_of_batch(one.at(line), [one]) is expected
