"""ranked-by-sorting: whole rows are sorted to know the rank of one value in each."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of, names

USERS, ITEMS = 64, 2048
TABLE = USERS * ITEMS


def fires():
    """The rank of each user's held-out item, by the order of the order."""

    def step(number):
        scores, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS, 1))
        ranks = scores.argsort(dim=1, descending=True).argsort(dim=1)
        return ranks.gather(1, target).sum().item()

    return step


def by_functions():
    """The same of distances, in two statements and by indices."""

    def step(number):
        far, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS,))
        order = torch.argsort(far, dim=1)
        ranks = torch.argsort(order, dim=1)
        return ranks[torch.arange(USERS), target].sum().item()

    return step


def by_comparing():
    """Where in the order an item stands: the metric of a knowledge graph."""

    def step(number):
        scores, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS,))
        _, order = scores.sort(dim=1, descending=True)
        total = 0
        for row in range(USERS):
            total += (order[row] == target[row]).nonzero().item()
        return total

    return step


def by_position():
    """The method is told by position that the largest comes first."""

    def step(number):
        scores, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS, 1))
        ranks = scores.argsort(1, True).argsort(1)
        return ranks.gather(1, target).sum().item()

    return step


def by_choice():
    """Which comes first is chosen as the program runs."""
    largest_first = bool(torch.ones(1))

    def step(number):
        scores, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS, 1))
        ranks = torch.argsort(scores, 1, descending=largest_first).argsort(1)
        return ranks.gather(1, target).sum().item()

    return step


def first_few():
    """Whether an item is among the first ten: no rank is asked for."""

    def step(number):
        scores, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS, 1))
        order = scores.argsort(dim=1, descending=True)
        return (order[:, :10] == target).any(1).sum().item()

    return step


def looks_alike():
    """All ranks are used: a correlation of ranks."""

    def step(number):
        scores, others = torch.rand(USERS, ITEMS), torch.rand(USERS, ITEMS)
        ranks = scores.argsort(dim=1).argsort(dim=1)
        return (ranks * others).sum().item()

    return step


def order_is_used():
    """The items themselves are looked up by their order as well."""

    def step(number):
        scores, names = torch.rand(USERS, ITEMS), torch.rand(ITEMS)
        order = scores.argsort(dim=1, descending=True)
        return (order == 3).nonzero().sum().item() + names[order].sum().item()

    return step


def test_the_rank_is_to_be_counted(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("ranked-by-sorting", "count_larger")
    assert first.code == "ranks = scores.argsort(dim=1, descending=True).argsort(dim=1)"
    assert first.typed == "(scores > scores.gather(1, target)).sum(1, keepdim=True)"
    # the order, and of it the sorted values and the order
    assert found.bytes == 3 * 8 * TABLE
    # the scores stay, and three small tensors
    assert first.peak_after == 4 * TABLE + 3 * 512


def test_what_is_typed_gives_the_same_ranks():
    scores, target = torch.rand(USERS, ITEMS), torch.randint(ITEMS, (USERS, 1))
    ranks = scores.argsort(dim=1, descending=True).argsort(dim=1).gather(1, target)
    typed = "(scores > scores.gather(1, target)).sum(1, keepdim=True)"
    assert torch.equal(eval(typed, {"scores": scores, "target": target}), ranks)


@pytest.mark.parametrize(
    ("program", "sign", "typed"),
    [
        (by_functions, "smaller", ""),
        (by_comparing, "larger", ""),
        (by_position, "larger", "(scores > scores.gather(1, target)).sum(1, keepdim=True)"),
        (by_choice, "larger (or smaller)", ""),
    ],
)
def test_other_spellings(program, sign, typed, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].typed) == ("ranked-by-sorting", typed)
    assert f"how many of the row are {sign}" in found.remedies[0].why


@pytest.mark.parametrize("program", [looks_alike, order_is_used, first_few])
def test_an_order_that_is_used_is_needed(program, tmp_path):
    assert "ranked-by-sorting" not in names(program, tmp_path / "run.json")
