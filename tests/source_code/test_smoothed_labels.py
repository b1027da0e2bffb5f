"""Labels that a function smooths by a table: which statements make it, and which reads it."""

from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.smoothed_labels import smoothed_labels

TABLE = "w = F.one_hot(t, n).float()\nw = w * (1 - e) + e / n\n"
FILLED = "w = torch.full_like(x, e / n)\nw.scatter_(1, t[:, None], 1 - e)\n"
AT_ONCE = "w = torch.full((m, n), e / n).scatter_(1, t[:, None], 1 - e)\n"
WRITTEN = (
    "w = x.data.clone()\nw.fill_(e / n)\nw.scatter_(1, t[:, None], 1 - e)\n"
    "w[:, 0] = 0\nw.index_fill_(0, pad, 0.0)\n"
)
SUM = "return -(w * x.log_softmax(-1)).sum(-1)"


REST = """
divergence = nn.KLDivLoss(reduction="sum")
criterion = nn.MSELoss()
entropy = nn.CrossEntropyLoss()


def show(s):
    return s.read
"""


@pytest.mark.parametrize(
    ("code", "making", "reading"),
    [
        (TABLE + SUM, [2, 3], 4),
        (FILLED + SUM, [2, 3], 4),
        (AT_ONCE + "p = F.log_softmax(x, -1)\n" + "return torch.sum(-w * p, dim=-1)", [2], 4),
        (TABLE + "loss = (-x.log_softmax(-1) * w).sum(-1)\nreturn loss.mean()", [2, 3], 4),
        (TABLE + SUM + " + w.mean()", [2, 3], 4),
        ("y = F.one_hot(t, n)\nw = y * (1 - e) + (1 - y) * e\n" + SUM, [2, 3], 4),
        # a copy that is filled, and corrected for padding
        (WRITTEN + SUM, [2, 3, 4, 5, 6], 7),
        (WRITTEN + "return F.kl_div(x, w)", [2, 3, 4, 5, 6], 7),
        (WRITTEN + "w[0] = other\n" + SUM, [], 0),
        ("w = x.data.clone()\nw.scatter_(1, t[:, None], 1 - e)\n" + SUM, [], 0),
        # a divergence takes log-probabilities
        (TABLE + "return F.kl_div(x, w.clone().detach(), reduction='sum')", [2, 3], 4),
        (TABLE + "w = w.detach().clone()\nreturn F.kl_div(x, target=w)", [2, 3, 4], 5),
        (TABLE + "return nn.KLDivLoss()(x, Variable(w, requires_grad=False))", [2, 3], 4),
        (TABLE + "return divergence(x, w)", [2, 3], 4),
        (TABLE + "s.w = w\nreturn divergence(x, s.w.clone())", [2, 3, 4], 5),
        (TABLE + "return F.kl_div(w, x)", [], 0),
        (TABLE + "return F.kl_div(x, w * y)", [], 0),
        (TABLE + "return F.kl_div(x, w.log(), log_target=True)", [], 0),
        (TABLE + "return criterion(x, w)", [], 0),
        (TABLE + "return nn.KLDivLoss(log_target=True)(x, w)", [], 0),
        (TABLE + "s.read = w\nreturn divergence(x, w)", [], 0),
        # a cross-entropy takes logits
        (TABLE + "return F.cross_entropy(x, w)", [2, 3], 4),
        (FILLED + "return entropy(x, w)", [2, 3], 4),
        # two labels that are mixed, or one with its rows in another order
        (TABLE + "w = w * a + w[order] * (1 - a)\nreturn F.cross_entropy(x, w)", [], 0),
        (TABLE + "w = w * a + w.flip(0) * (1 - a)\nreturn F.cross_entropy(x, w)", [], 0),
        ("w = F.one_hot(t, n) * a + F.one_hot(s, n) * (1 - a)\nreturn entropy(x, w)", [], 0),
        ("y = F.one_hot(t, n)\nz = F.one_hot(s, n)\nw = y * a + z * e\nentropy(x, w)", [], 0),
        # zeros and ones that pick a value are another matter
        ("w = F.one_hot(t, n).float()\n" + SUM, [], 0),
        # it is read at a second place, or not by a sum with log-probabilities
        (TABLE + "keep(w)\n" + SUM, [], 0),
        (TABLE + "return (w * x).sum(-1)", [], 0),
        (TABLE + "return (w * x.log_softmax(-1)).max()", [], 0),
        # a table that is multiplied with another tensor of the same function
        ("w = F.one_hot(t, n)\nw = w * w\n" + SUM, [], 0),
        ("w = torch.rand(m, n)\nw = w * (1 - e) + e / n\n" + SUM, [], 0),
    ],
)
def test_a_table_and_the_sum_with_log_probabilities(code, making, reading, tmp_path):
    path = tmp_path / "train.py"
    body = "".join(f"    {line}\n" for line in code.splitlines())
    path.write_text(f"def loss_of(x, t, n, m, e):\n{body}{REST}")
    labels = smoothed_labels(program_of(str(path)).at(2))
    lines = [one.lineno for one in labels.making] if labels is not None else []
    assert (lines, labels.reading.lineno if labels is not None else 0) == (making, reading)


RETURNED = """
def soft(t, n, e):
    w = torch.full((t.numel(), n), e)
    return w.scatter(1, t[:, None], 1 - e)
"""


@pytest.mark.parametrize(
    ("code", "reading", "computes"),
    [
        ("def loss(x, t):\n    return F.cross_entropy(x, soft(t, 9, 0.1))", 6, True),
        ("def loss(x, t):\n    w = soft(t, 9, 0.1)\n    return F.kl_div(x, w)", 7, False),
        (
            "def loss(x, t):\n    w = soft(t, 9, 0.1)\n    keep(w)\n    return F.kl_div(x, w)",
            0,
            None,
        ),
        ("def loss(x, t):\n    return F.mse_loss(x, soft(t, 9, 0.1))", 0, None),
        # of two tables of different labels neither has one class for each row
        ("def mixed(x, t, s):\n    return entropy(x, soft(t, 9, 0.1) + soft(s, 9, 0.1))", 0, None),
    ],
)
def test_a_table_that_a_function_returns_is_read_where_it_is_called(
    code, reading, computes, tmp_path
):
    path = tmp_path / "train.py"
    path.write_text(f"{RETURNED}{code}\n")
    labels = smoothed_labels(program_of(str(path)).at(3))
    if not reading:
        assert labels is None
        return
    assert (labels.reading.lineno, labels.computes_logarithms) == (reading, computes)
    assert {3, 4} <= {one.lineno for one in labels.making}
