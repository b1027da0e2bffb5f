"""one-hot: a table of zeros and ones picks a value per row, where the indices would do."""

from __future__ import annotations

import ast

import pytest
import torch
import torch.nn.functional as F

from memprof.rules.waste.one_hot import (
    Use,
    multiplying_product,
    picking_statement,
    weighing_statements,
)
from memprof.source_code.program import program_of
from tests.rules.recorded import findings_of, names

ROWS, CLASSES = 256, 1024


def fires():
    scores = torch.randn(ROWS, CLASSES)
    target = torch.arange(ROWS)

    def step(number):
        table = F.one_hot(target, CLASSES)
        (table.float() * scores).sum(-1).mean().item()

    return step


def beside_much_else():
    """The table is a tenth of the peak, and with its copy and the product a fifth."""
    rest, scores = torch.randn(14, 1 << 18), torch.randn(ROWS, CLASSES)
    target = torch.arange(ROWS)

    def step(number):
        table = F.one_hot(target, CLASSES)
        share = (table.float() * scores).sum(0) / rest.numel()
        return share.mean().item()

    return step


def looks_alike():
    """The table itself is what the program goes on with."""
    scores = torch.randn(ROWS, CLASSES)
    target = torch.arange(ROWS)

    def step(number):
        table = F.one_hot(target, CLASSES)
        (table.float() * scores).sum(-1).mean().item()
        table.cumsum(0).max().item()

    return step


def test_the_table_its_copy_and_the_product_go_with_it(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "one-hot"]
    table, copy, product = ROWS * CLASSES * 8, ROWS * CLASSES * 4, ROWS * CLASSES * 4
    assert found.bytes == table + copy + product
    (only,) = found.remedies
    assert (only.fix, only.code) == ("class_indices", "table = F.one_hot(target, CLASSES)")
    sums, mean = ROWS * 4, 512
    assert only.saves_bytes == found.bytes - sums - mean  # they make the peak that is left


def test_a_table_beside_much_else_goes_with_what_is_made_of_it(tmp_path):
    found = findings_of(beside_much_else, tmp_path / "run.json")
    (one,) = (finding for finding in found if finding.rule == "one-hot")
    assert one.bytes == ROWS * CLASSES * (8 + 4 + 4)
    assert 0 <= one.bytes - one.remedies[0].saves_bytes <= 4 * 2 * CLASSES


@pytest.mark.parametrize(
    ("code", "picks"),
    [
        ("loss = -(F.one_hot(t, n) * log_p).sum(-1)", True),
        ("table = F.one_hot(t, n)\nq = torch.sum(q * table, 1)", True),
        ("table = F.one_hot(t, n)\npicked = table * q\nvalue = picked.sum(1)", True),
        ("table = F.one_hot(t, n)\nlogits = net(table.float())", False),
        ("table = F.one_hot(t, n)\nq = (q * table).sum(1)\ncount = table.sum(0)", True),
        ("table = F.one_hot(t, n)\nq = (q * table).sum(1)\nkeep(table)", False),
        ("table = F.one_hot(t, n)\ncount = table.sum(0)", False),
        ("table = encode(t, n)\nq = (q * table).sum(1)", False),
        ("m = F.one_hot(t, n).mT\nm = m.to(q.dtype)\nq = (q * m).sum(1)\nk = m.sum(1)", True),
        ("table = F.one_hot(t, n)\nm = table.float()\nq = (q * m).sum(1)\nkeep(m)", False),
        ("table = F.one_hot(t, n)\nm = table.float()\nq = (q * table).sum(1)\nkeep(m)", False),
        ("m = F.one_hot(t, n).to(q)\nq = torch.einsum('ba,ba->b', q, m)", True),
        ("q = torch.einsum('bta,bta->bt', q, F.one_hot(t, n).to(q))", True),
        ("m = F.one_hot(t, n).to(q)\nq = torch.einsum('ba,ba->a', q, m)", False),
        ("m = F.one_hot(t, n).to(q)\nq = torch.einsum('ba,ba->ba', q, m)", False),
        ("m = F.one_hot(t, n).to(q)\nq = torch.einsum('ba,ba->b', q, m)\nkeep(m)", False),
        ("m = q.new_zeros(9, n)\nm.scatter_(1, t[:, None], 1.0)\nq = (q * m).sum(1)", True),
        ("m = q.new_zeros(9, n)\nm.scatter_(1, t, 1.0)\nq = (q * m).sum(1)", False),
        ("m = torch.eye(n)[t]\nq = (q * m).sum(1)", True),
        ("m = torch.eye(n, device=q.device).index_select(0, t)\nq = (q * m).sum(1)", True),
        ("m = torch.eye(n)[1:]\nq = (q * m).sum(1)", False),
        ("m = torch.eye(n)\nq = (q * m).sum(1)", False),
        ("m = F.one_hot(t, n)\nq = torch.sum(torch.mul(q, m), -1)", True),
        ("m = F.one_hot(t, n)\nq = m.mul(q).sum(1)", True),
        ("m = F.one_hot(t, n)\nq = torch.add(q, m).sum(1)", False),
        ("m = (t[:, None] == torch.arange(n)).float()\nq = (q * m).sum(1)", True),
        ("m = torch.arange(n)[None, :] == t.unsqueeze(1)\nq = (q * m).sum(1)", True),
        ("m = (t[:, None] > torch.arange(n)).float()\nq = (q * m).sum(1)", False),
        ("m = (t[:, None] == s[None]).float()\nq = (q * m).sum(1)", False),
        ("m = torch.zeros_like(q).scatter_(1, t[:, None], 1)\nq = (q * m).sum(1)", True),
        (
            "m = q.new_zeros(9, n)\nm.scatter_(dim=1, index=t[:, None], value=1)\nq = (m * q).sum(1)",
            True,
        ),
        ("m = torch.zeros(9, n)\nm.scatter_(dim=1, index=t, value=1)\nq = (q * m).sum(1)", False),
        ("loss = F.cross_entropy(q, F.one_hot(t, n).float())", True),
        ("m = F.one_hot(t, n).float()\nloss = F.cross_entropy(q, target=m)", True),
        ("m = F.one_hot(t, n).float()\nloss = F.cross_entropy(q, m, weight=w)", False),
        ("m = F.one_hot(t, n).float()\nloss = F.cross_entropy(m, t)", False),
        ("m = F.one_hot(t, n).float()\nloss = F.cross_entropy(q, w * m + v * m[s])", False),
        ("loss = F.cross_entropy(q, mixed(F.one_hot(t, n).float()))", False),
        ("m = F.one_hot(t, n).float()\nloss = F.mse_loss(q, m)", False),
        ("m = F.one_hot(t, n).float()\nloss = rate(q, m)\nrate = nn.CrossEntropyLoss()", True),
        ("m = F.one_hot(t, n).float()\nloss = rate(q, m)\nrate = nn.MSELoss()", False),
        ("m = q.new_zeros(9, n)\nm.scatter_(1, t[:, None], w)\nq = (q * m).sum(1)", False),
    ],
)
def test_only_a_sum_of_a_product_picks(code, picks, place_of_first):
    assert isinstance(picking_statement(place_of_first(code)), ast.stmt) is picks


def picks_by_einsum():
    layer, target = torch.nn.Linear(16, CLASSES), torch.arange(ROWS)

    def step(number):
        scores = layer(torch.randn(ROWS, 16))
        table = F.one_hot(target, CLASSES).to(scores.dtype)
        torch.einsum("ba,ba->b", scores, table).mean().backward()

    return step


def test_an_einsum_that_sums_products_picks_as_well(tmp_path):
    every = findings_of(picks_by_einsum, tmp_path / "run.json")
    (found,) = [one for one in every if not one.minor]
    assert (found.rule, found.match.use) == ("one-hot", Use.PICKS)
    table, copy = ROWS * CLASSES * 8, ROWS * CLASSES * 4
    assert found.bytes == table + copy
    (only,) = found.remedies
    assert only.code == "table = F.one_hot(target, CLASSES).to(scores.dtype)"


def adds_rows_up_by_zeros_and_ones():
    rows, index = torch.randn(ROWS, 8), torch.arange(ROWS) % 16

    def step(number):
        table = torch.zeros(ROWS, CLASSES)
        table.scatter_(1, index[:, None], 1.0)
        table.t().matmul(rows).sum().item()

    return step


def test_zeros_with_a_one_in_each_row_are_a_one_hot_table(tmp_path):
    every = findings_of(adds_rows_up_by_zeros_and_ones, tmp_path / "run.json")
    (found,) = [one for one in every if not one.minor]
    assert (found.rule, found.match.use) == ("one-hot", Use.ADDS)
    assert found.bytes == ROWS * CLASSES * 4
    (only,) = found.remedies
    instead = "rows.new_zeros(CLASSES, rows.size(-1)).index_add(0, index, rows)"
    assert (only.code, only.typed) == ("table = torch.zeros(ROWS, CLASSES)", instead)


def adds_rows_up():
    rows, index = torch.randn(ROWS, 8), torch.arange(ROWS) % 16

    def step(number):
        table = F.one_hot(index, CLASSES).to(rows.dtype)
        (table.t() @ rows).sum().item()

    return step


def test_a_table_that_a_product_adds_rows_up_by_goes_with_its_copy(tmp_path):
    found = findings_of(adds_rows_up, tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "one-hot"]
    assert found.bytes == ROWS * CLASSES * (8 + 4)
    (only,) = found.remedies
    instead = "rows.new_zeros(CLASSES, rows.size(-1)).index_add(0, index, rows)"
    assert (only.fix, only.typed) == ("class_indices", instead)


@pytest.mark.parametrize(
    ("code", "use", "instead"),
    [
        ("y = F.one_hot(t, n).float() @ q", Use.SELECTS, "q[t]"),
        ("y = torch.mm(F.one_hot(t, n).to(q), q)", Use.SELECTS, "q[t]"),
        ("a = F.one_hot(t, n)\ny = a.float().T.mm(q)", Use.ADDS, None),
        ("a = F.one_hot(t, num_classes=n).to(q)\ny = a.transpose(0, 1) @ q", Use.ADDS, None),
        ("a = F.one_hot(t, n).to(q)\ny = a.T.mT @ q", Use.SELECTS, "q[t]"),
        ("y = F.one_hot(t, n).float() @ (q + 1)", Use.SELECTS, "(q + 1)[t]"),
        ("a = F.one_hot(t, n).float()\ny = a.transpose(1, 2) @ q", Use.ADDS, ""),
        ("y = F.one_hot(t, n).mT.float() @ q", Use.ADDS, ""),
        ("y = F.one_hot(t, n).t().float() @ q", Use.ADDS, None),
        ("y = torch.einsum('nc,cd->nd', F.one_hot(t, n).to(q), q)", Use.SELECTS, "q[t]"),
        ("a = F.one_hot(t, n).to(q)\ny = torch.einsum('nd,nc->cd', q, a)", Use.ADDS, None),
        ("a = F.one_hot(t, n).to(q)\ny = torch.einsum('nc,nd->dc', a, q)", Use.ADDS, ""),
        ("a = torch.zeros(m, n)\na.scatter_(1, t[:, None], 1.0)\ny = a.t().mm(q)", Use.ADDS, None),
        ("y = q.new_zeros(m, n).scatter_(1, t.unsqueeze(-1), 1).T @ q", Use.ADDS, None),
        ("a = torch.zeros((n, m))\na.scatter_(0, t[None], 1)\ny = a @ q", Use.ADDS, None),
        ("a = torch.zeros(m, n)\na[torch.arange(m), t] = 1.0\ny = a @ q", Use.SELECTS, "q[t]"),
    ],
)
def test_a_product_takes_rows_or_adds_them_up(code, use, instead, place_of_first):
    product = multiplying_product(place_of_first(code))
    of_rows = "q.new_zeros(n, q.size(-1)).index_add(0, t, q)"
    expected = of_rows if instead is None else instead
    assert (product.use, product.instead) == (use, expected)


@pytest.mark.parametrize(
    "code",
    [
        "a = F.one_hot(t, n)\ny = a.float() @ q\nkeep(a)",
        "a = F.one_hot(t, n)\ny = q @ a.float()",
        "a = F.one_hot(t, n) * 2\ny = a.float() @ q",
        "a = F.one_hot(t, n)\ny = net(a.float()) @ q",
        # several ones in a row, other values, or ones that are written on top
        "a = torch.zeros(m, n)\na.scatter_(1, t, 1.0)\ny = a.t() @ q",
        "a = torch.zeros(m, n)\na.scatter_(1, t[:, None], w)\ny = a.t() @ q",
        "a = torch.zeros(m, n)\na.scatter_(1, t[:, None], 1.0)\na[0] = 1\ny = a.t() @ q",
        "a = torch.zeros(m, n)\na[src, t] = 1.0\ny = a @ q",
    ],
)
def test_another_use_of_a_table_is_no_product_of_it_alone(code, place_of_first):
    assert multiplying_product(place_of_first(code)) is None


@pytest.fixture
def place_of_first(tmp_path):
    def place(code):
        path = tmp_path / "train.py"
        lines = "\n".join(f"    {line}" for line in code.splitlines())
        path.write_text(f"def loss_of(q, t, n, log_p):\n{lines}\n")
        return program_of(str(path)).at(2)

    return place


def takes_weights():
    layer = torch.nn.Linear(3 * CLASSES, 1, bias=False)
    columns = torch.arange(3 * ROWS).reshape(ROWS, 3)

    def step(number):
        tables = [F.one_hot(columns[:, i], CLASSES).float() for i in range(3)]
        layer(torch.cat(tables, dim=1)).sum().backward()

    return step


def test_tables_that_are_joined_for_a_linear_layer_go_with_what_they_are_joined_into(tmp_path):
    found = findings_of(takes_weights, tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "one-hot"]
    copies, joined = 3 * ROWS * CLASSES * 4, 3 * ROWS * CLASSES * 4
    assert found.bytes == copies + joined
    assert found.title.endswith("are a one-hot table that a linear layer takes its weights by")
    assert [one.fix for one in found.remedies] == ["class_indices"]
    assert not found.minor


LAYER = "layer = nn.Linear(n, 4)\n"


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (f"y = layer(F.one_hot(t, n).float())\n{LAYER}", 1),
        (f"a = F.one_hot(t, n)\ny = layer(a.to(q))\n{LAYER}", 2),
        ("a = F.one_hot(t, n)\ny = F.linear(a.float(), q)", 2),
        (f"a = torch.cat([F.one_hot(t, n), F.one_hot(s, m)])\ny = layer(a.float())\n{LAYER}", 2),
        (f"a = [F.one_hot(t, n) for t in s]\nb = torch.cat(a)\ny = layer(b)\n{LAYER}", 3),
        (f"a = torch.cat([F.one_hot(t, n), q])\ny = layer(a.float())\n{LAYER}", 0),
        (f"a = F.one_hot(t, n)\ny = layer(a.float()) + a\n{LAYER}", 0),
        ("a = F.one_hot(t, n)\ny = layer(a.float())\nlayer = nn.Conv1d(n, 4, 1)", 0),
        ("a = F.one_hot(t, n)\ny = net(a.float())", 0),
    ],
)
def test_only_a_linear_layer_that_reads_nothing_else_takes_weights(code, lines, place_of_first):
    assert len(weighing_statements(place_of_first(code))) == lines


class Smoothed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(16, CLASSES)

    def forward(self, x, target):
        logits = self.out(x)
        wanted = F.one_hot(target, CLASSES).float()
        wanted = wanted * 0.9 + 0.1 / CLASSES
        return -(wanted * logits.log_softmax(-1)).sum(-1).mean()


def smooths_labels():
    model, target = Smoothed(), torch.arange(ROWS)

    def step(number):
        model(torch.randn(ROWS, 16), target).backward()
        model.zero_grad()

    return step


class Divergence(torch.nn.Module):
    """As a well-known page on transformers has it: the table is kept, and copied besides."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(16, CLASSES)
        self.criterion = torch.nn.KLDivLoss(reduction="sum")
        self.wanted = None

    def forward(self, x, target):
        log_p = self.out(x).log_softmax(-1)
        wanted = log_p.data.clone()
        wanted.fill_(0.1 / CLASSES)
        wanted.scatter_(1, target.data.unsqueeze(1), 0.9)
        wanted[:, 0] = 0
        self.wanted = wanted
        return self.criterion(log_p, wanted.clone().detach())


def smooths_labels_of_a_divergence():
    model, target = Divergence(), torch.arange(ROWS)

    def step(number):
        model(torch.randn(ROWS, 16), target).backward()
        model.zero_grad()

    return step


def test_a_table_for_a_divergence_is_needed_no_more(tmp_path):
    every = findings_of(smooths_labels_of_a_divergence, tmp_path / "run.json")
    (found,) = [one for one in every if not one.minor]
    assert (found.rule, found.match.use) == ("one-hot", Use.SMOOTHS)
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == ("class_indices", "wanted = log_p.data.clone()")
    assert remedy.saves_bytes >= 2 * ROWS * CLASSES * 4  # the table and its copy


def test_labels_that_are_smoothed_in_a_table_need_none(tmp_path):
    found = [one for one in findings_of(smooths_labels, tmp_path / "run.json") if not one.minor]
    assert [one.rule for one in found] == ["one-hot"]
    assert found[0].match.use is Use.SMOOTHS
    table = ROWS * CLASSES * 4
    assert found[0].bytes == 2 * table  # and the product; the log-probabilities are needed
    (remedy,) = found[0].remedies
    assert remedy.fix == "class_indices"
    assert "label_smoothing" in remedy.why
    assert remedy.code == "wanted = wanted * 0.9 + 0.1 / CLASSES"
    assert table <= remedy.saves_bytes <= 2 * table


class Softened(torch.nn.Module):
    """The table is made by a method, for a cross-entropy in another one."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(16, CLASSES)

    def soften(self, target):
        table = torch.full((target.numel(), CLASSES), 0.1 / CLASSES)
        return table.scatter(1, target[:, None], 0.9)

    def forward(self, x, target):
        return F.cross_entropy(self.out(x), self.soften(target))


def softens_labels():
    model, target = Softened(), torch.arange(ROWS)

    def step(number):
        model(torch.randn(ROWS, 16), target).backward()
        model.zero_grad()

    return step


def test_a_table_that_a_method_returns_for_a_cross_entropy_is_needed_no_more(tmp_path):
    every = findings_of(softens_labels, tmp_path / "run.json")
    found = next(one for one in every if not one.minor)
    assert (found.rule, found.match.use) == ("one-hot", Use.SMOOTHS)
    assert found.bytes == 2 * ROWS * CLASSES * 4  # and what the loss multiplies by it
    (remedy,) = found.remedies
    assert "label_smoothing" in remedy.why
    assert remedy.code == "return table.scatter(1, target[:, None], 0.9)"


class MixedUp(torch.nn.Module):
    """Each row has two labels: no index says which."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(16, CLASSES)

    def forward(self, x, target):
        wanted = torch.full((ROWS, CLASSES), 0.1 / CLASSES).scatter_(1, target[:, None], 0.9)
        mixed = wanted * 0.7 + wanted.flip(0) * 0.3
        return F.cross_entropy(self.out(x), mixed)


def mixes_labels():
    model, target = MixedUp(), torch.arange(ROWS)

    def step(number):
        model(torch.randn(ROWS, 16), target).backward()
        model.zero_grad()

    return step


def test_labels_that_are_mixed_need_their_table(tmp_path):
    assert "one-hot" not in names(mixes_labels, tmp_path / "run.json")


def picks_by_rows_of_an_identity():
    scores, target = torch.randn(ROWS, CLASSES), torch.arange(ROWS)

    def step(number):
        table = torch.eye(CLASSES)[target]
        (table * scores).sum(-1).mean().item()

    return step


def picks_by_a_comparison():
    layer, target = torch.nn.Linear(16, CLASSES), torch.arange(ROWS)

    def step(number):
        scores = layer(torch.randn(ROWS, 16))
        chosen = (target[:, None] == torch.arange(CLASSES)).float()
        torch.sum(torch.mul(scores, chosen), dim=-1).mean().backward()

    return step


def encoded(labels, classes):
    table = torch.zeros(labels.size(0), classes)
    table.scatter_(dim=1, index=labels.unsqueeze(1), value=1)
    return table


def adds_up_by_a_table_of_a_function():
    rows, index = torch.randn(ROWS, 8), torch.arange(ROWS) % 16

    def step(number):
        member = encoded(index, CLASSES)
        torch.matmul(member.t(), rows).sum().item()

    return step


def target_of_a_cross_entropy():
    layer, target = torch.nn.Linear(16, CLASSES), torch.arange(ROWS)

    def step(number):
        scores = layer(torch.randn(ROWS, 16))
        wanted = F.one_hot(target, CLASSES).float()
        loss = F.cross_entropy(scores, wanted)
        loss.backward()

    return step


IDENTITY, TABLE, TRUTHS = CLASSES * CLASSES * 4, ROWS * CLASSES * 4, ROWS * CLASSES


@pytest.mark.parametrize(
    ("program", "code", "nbytes", "typed"),
    [
        (picks_by_rows_of_an_identity, "table = torch.eye(CLASSES)[target]", IDENTITY + TABLE, ""),
        (
            picks_by_a_comparison,
            "chosen = (target[:, None] == torch.arange(CLASSES)).float()",
            TABLE + TABLE,
            "",
        ),
        (
            adds_up_by_a_table_of_a_function,
            "table = torch.zeros(labels.size(0), classes)",
            TABLE,
            "rows.new_zeros(CLASSES, rows.size(-1)).index_add(0, index, rows)",
        ),
        (
            target_of_a_cross_entropy,
            "wanted = F.one_hot(target, CLASSES).float()",
            TABLE,
            "",
        ),
    ],
)
def test_a_table_may_be_made_in_other_ways(program, code, nbytes, typed, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    (remedy,) = found.remedies
    assert (found.rule, remedy.fix, remedy.code) == ("one-hot", "class_indices", code)
    assert (found.bytes, remedy.typed) == (nbytes, typed)
    assert remedy.saves_bytes > 0


def kept_by_its_caller():
    """The function's table is the caller's to go on with."""
    rows, index = torch.randn(ROWS, 8), torch.arange(ROWS) % 16

    def step(number):
        member = encoded(index, CLASSES)
        torch.matmul(member.t(), rows).sum().item()
        member.cumsum(0).max().item()

    return step


def test_a_table_that_a_function_returns_may_be_needed(tmp_path):
    assert "one-hot" not in names(kept_by_its_caller, tmp_path / "run.json")
