"""Matrices of edges that scores of all pairs of nodes are compared with by a loss."""

from __future__ import annotations

import ast
import textwrap

import pytest

from memprof.source_code.edge_labels import edge_labels_of
from memprof.source_code.program import program_of

LABELS = """
def labels_of(edges, n):
    adj = torch.zeros(n, n)
    adj[edges[0], edges[1]] = 1.0
    return adj
"""
DECODE = """
class Model(nn.Module):
    def decode(self, z):
        return torch.sigmoid(z @ z.t())
"""


def losses_in(tmp_path, code):
    path = tmp_path / "links.py"
    path.write_text("import torch\n" + textwrap.dedent(code))
    return [
        (one.labels.name, ast.unparse(one.loss)) for one in edge_labels_of([program_of(str(path))])
    ]


@pytest.mark.parametrize(
    ("code", "loss"),
    [
        (
            LABELS
            + DECODE
            + """
def train(model, z, edges):
    adj = labels_of(edges, 9)
    weight = torch.where(adj > 0, 4.0, 1.0)
    return F.binary_cross_entropy(model.decode(z), adj, weight=weight)
""",
            "F.binary_cross_entropy(model.decode(z), adj, weight=weight)",
        ),
        (
            LABELS
            + """
def train(z, edges):
    criterion = nn.BCEWithLogitsLoss()
    logits = torch.mm(z, z.T)
    return criterion(logits, labels_of(edges, 9))
""",
            "criterion(logits, labels_of(edges, 9))",
        ),
        (
            LABELS
            + """
def train(z, edges):
    logits = z.matmul(torch.transpose(z, 0, 1))
    return F.binary_cross_entropy_with_logits(logits, target=labels_of(edges, 9) + torch.eye(9))
""",
            "F.binary_cross_entropy_with_logits(logits, target=labels_of(edges, 9) + torch.eye(9))",
        ),
        (
            LABELS
            + DECODE
            + """
class Loss:
    def __init__(self, edges):
        self.labels = labels_of(edges, 9)
    def __call__(self, scores):
        return F.binary_cross_entropy(scores, self.labels)
def train(model, loss, z):
    loss(model.decode(z)).backward()
""",
            "F.binary_cross_entropy(scores, self.labels)",
        ),
    ],
)
def test_a_loss_over_all_pairs_is_known_by_its_labels_and_its_scores(code, loss, tmp_path):
    assert losses_in(tmp_path, code) in ([("adj", loss)], [("self.labels", loss)])


@pytest.mark.parametrize(
    "code",
    [
        # scores of users and items, which no product of one tensor with itself makes
        LABELS
        + """
def train(users, items, edges):
    return F.binary_cross_entropy_with_logits(users @ items.t(), labels_of(edges, 9))
""",
        # what is similar to what, with the number of the right one as the label
        """
def train(z, n):
    return F.cross_entropy(z @ z.t(), torch.arange(n))
""",
        # the matrix is multiplied, the loss has other labels
        LABELS
        + """
def train(z, edges, labels):
    z = labels_of(edges, 9) @ z
    return F.binary_cross_entropy_with_logits(z @ z.t(), labels)
""",
        # labels of edges, of which a function is given the scores
        LABELS
        + DECODE
        + """
def loss_of(scores, edges):
    return F.binary_cross_entropy(scores, labels_of(edges, 9))
def train(model, z, edges):
    return loss_of(model(z), edges)
""",
    ],
)
def test_other_losses_are_none(code, tmp_path):
    assert losses_in(tmp_path, code) == []
