"""optimizer-temporaries: what asks for several tensors at once is an entry of a group.

The file makes no optimizer that is asked so, as each of a program's would count.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def of_groups():
    model = nn.Sequential(*(nn.Linear(192, 192, bias=False) for _ in range(8)))
    optimizer = torch.optim.NAdam(model.parameters(), 1e-3)
    for group in optimizer.param_groups:
        group["foreach"] = True

    def step(number):
        loss = model(torch.randn(8, 192)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_the_entry_is_to_be_changed(tmp_path):
    found = next(
        one
        for one in findings_of(of_groups, tmp_path / "run.json")
        if one.rule == "optimizer-temporaries"
    )
    (only,) = found.remedies
    assert (only.fix, only.code) == ("foreach_false", 'group["foreach"] = True')
    assert '+        group["foreach"] = False' in only.patch
