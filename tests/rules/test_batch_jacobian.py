"""batch-jacobian: a Jacobian of all samples by all samples, of which the diagonal is read."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import jacrev, vmap

from tests.rules.recorded import findings_of

SAMPLES, VALUES = 64, 8


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Sequential(nn.Linear(VALUES, 16), nn.Tanh(), nn.Linear(16, VALUES))

    def log_det(self, x):
        jac = torch.autograd.functional.jacobian(self.g, x, create_graph=True, vectorize=True)
        own = jac.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        return torch.linalg.slogdet(torch.eye(VALUES) + own)[1]


class OfEach(Residual):
    def log_det(self, x):
        own = vmap(jacrev(self.g))(x)
        return torch.linalg.slogdet(torch.eye(VALUES) + own)[1]


def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(number):
        optimizer.zero_grad()
        model.log_det(torch.randn(SAMPLES, VALUES)).mean().backward()
        optimizer.step()

    return step


def fires():
    return trained(Residual())


def looks_alike():
    return trained(OfEach())


def test_what_is_made_for_pairs_of_samples_is_not_needed(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("batch-jacobian", False)
    jacobian = SAMPLES * VALUES * SAMPLES * VALUES * 4
    assert found.bytes >= jacobian
    assert found.title.endswith("and only `jac.diagonal(dim1=0, dim2=2)` is read")
    (remedy,) = found.remedies
    assert remedy.fix == "per_sample_jacobian"
    assert remedy.code.startswith("jac = torch.autograd.functional.jacobian(self.g, x,")
    assert remedy.saves_bytes >= jacobian
