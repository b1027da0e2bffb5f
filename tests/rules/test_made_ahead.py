"""made-ahead: all items of a list are made before a loop goes through it, once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from tests.rules.recorded import findings_of

FOLDS, ROWS, WIDTH = 6, 2048, 64
NBYTES = ROWS * WIDTH * 4


def make_folds(x):
    folds = []
    for number in range(FOLDS):
        part = x.roll(number, 0)
        folds.append((number, part))
    return folds


def yield_folds(x):
    for number in range(FOLDS):
        part = x.roll(number, 0)
        yield number, part


def folds_of_comprehension(x):
    return [(number, x.roll(number, 0)) for number in range(FOLDS)]


def go_through(net, folds):
    results = []
    for number, (_, part) in enumerate(folds):
        results.append(net(part).mean().item() + number)
    return results


def validating(make):
    def program():
        net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

        @torch.no_grad()
        def step(number):
            folds = make(x)
            return go_through(net, folds)

        return step

    return program


fires = validating(make_folds)
looks_alike = validating(yield_folds)


def gone_through_again():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        folds = make_folds(x)
        total = 0.0
        for _ in range(2):
            for _, part in folds:
                total += net(part).mean().item()
        return total

    return step


def kept_by_the_loop():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        parts = []
        for fold in make_folds(x):
            net(fold[1])
            parts.append(fold)
        return len(parts)

    return step


def asked_for():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        folds = make_folds(x)
        first = folds[0][1]
        for _, part in folds:
            first = torch.maximum(first, part)
        return net(first).mean().item()

    return step


def in_one_function():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        parts = []
        for at in range(FOLDS):
            parts.append(x.roll(at, 0))
        total = 0.0
        for part in parts:
            total += net(part).mean().item()
        return total

    return step


def folds_of_dict(x):
    folds = {}
    for number in range(FOLDS):
        folds[number] = {"train": x.roll(number, 0), "count": number}
    return folds


def of_dict():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        folds = folds_of_dict(x)
        results = {}
        for at, fold in folds.items():
            results[at] = net(fold["train"]).mean().item()
        return results

    return step


def of_loader():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        batches = list(yield_folds(x))
        return go_through(net, batches)

    return step


def of_map():
    """The net learns from the items, and makes none."""
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(number):
        for part in tuple(map(x.roll, range(FOLDS))):
            net(part[:8]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def by_adding():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        parts = list()  # noqa: C408 - as some write
        for at in range(FOLDS):
            parts += [x.roll(at, 0)]
        total = 0.0
        for at, part in enumerate(parts):
            total += net(part).mean().item() + at
        return total

    return step


def read_by_key():
    """An entry is asked for by its name, so all may have to be there."""
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        folds = folds_of_dict(x)
        total = 0.0
        for at in folds:
            total += net(folds[at]["train"]).mean().item()
        return total

    return step


def gone_through_in_epochs():
    net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        batches = list(yield_folds(x))
        return [go_through(net, batches) for _ in range(2)], in_epochs(net, batches)

    return step


def handed_on(go_through_all):
    """The list has no name where it is made, and another function is given it."""

    def program():
        net, x = nn.Linear(WIDTH, 4), torch.randn(ROWS, WIDTH)

        @torch.no_grad()
        def step(number):
            return [go_through_all(net, x)]

        return step

    return program


def by_position(net, x):
    return go_through(net, make_folds(x))


def by_name(net, x):
    return go_through(net, folds=make_folds(x))


def in_epochs(net, folds):
    results = []
    for _ in range(2):
        for _, part in folds:
            results.append(net(part).mean().item())
    return results


def for_epochs(net, x):
    return in_epochs(net, make_folds(x))


def in_batches():
    """What a model returns for each batch, taken apart, in a list that the loop itself asks for."""
    net, parts = nn.Linear(WIDTH, WIDTH), 4

    def predicted(batches):
        results = []
        for batch in batches:
            results.extend(net(batch))
        return results

    @torch.no_grad()
    def step(number):
        batches = [torch.ones(1).expand(parts, ROWS, WIDTH)] * FOLDS
        total = torch.zeros(ROWS, WIDTH)
        for weight, part in zip(range(parts * FOLDS), predicted(batches), strict=True):
            total += part * weight
        return total

    return step


def made_on_the_way():
    """The loop makes models that are needed together, and more on the way to each."""
    x = torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        nets = []
        for _ in range(3):
            net = nn.Linear(WIDTH, 4)
            parts = [x.roll(at, 0) for at in range(FOLDS)]
            net(torch.stack(parts).sum(0))
            nets.append(net)
        total = 0.0
        for net in nets:
            total += net(x).mean().item()
        return total

    return step


def learning_from_itself(optimizer_of):
    """What a policy collects is what it is trained on: each step of the loop changes it."""

    def program():
        net = nn.Linear(WIDTH, WIDTH)
        optimizer = optimizer_of(net.parameters(), 1e-3)

        def collected():
            rollouts = []
            with torch.no_grad():
                for _ in range(FOLDS):
                    rollouts.append(net(torch.randn(ROWS, WIDTH)))
            return rollouts

        def step(number):
            for rollout in collected():
                optimizer.zero_grad()
                (net(rollout[:8]) - rollout[:8]).square().mean().backward()
                optimizer.step()

        return step

    return program


def ahead(program, path):
    return [one for one in findings_of(program, path) if one.rule == "made-ahead"]


def test_items_are_to_be_made_as_the_loop_asks_for_them(tmp_path):
    (found,) = ahead(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert not found.minor
    assert found.bytes == FOLDS * NBYTES
    assert found.title.endswith(f"are {FOLDS} tensors in a list that a loop goes through once")
    assert (first.fix, first.code) == ("yield_items", "folds.append((number, part))")
    findings_of(looks_alike, tmp_path / "changed.json")
    peaks = [
        int(load(tmp_path / name).devices[0].steps.peak_allocated.max())
        for name in ("run.json", "changed.json")
    ]
    saved = peaks[0] - peaks[1]  # while one is made, that before it is there still
    assert first.saves_bytes - NBYTES <= saved <= first.saves_bytes


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (validating(folds_of_comprehension), "return [(number, x.roll(number, 0))"),
        (in_one_function, "parts.append(x.roll(at, 0))"),
        (handed_on(by_position), "folds.append((number, part))"),
        (handed_on(by_name), "folds.append((number, part))"),
        (of_dict, 'folds[number] = {"train": x.roll(number, 0)'),
        (of_loader, "batches = list(yield_folds(x))"),
        (of_map, "for part in tuple(map(x.roll, range(FOLDS))):"),
        (by_adding, "parts += [x.roll(at, 0)]"),
    ],
    ids=[
        *("comprehension", "one function", "handed on", "by name"),
        *("dict", "list of a generator", "tuple of a map", "adding"),
    ],
)
def test_where_it_is_filled_is_told(program, code, tmp_path):
    (found,) = ahead(program, tmp_path / "run.json")
    assert found.remedies[0].code.startswith(code)
    assert found.bytes == FOLDS * NBYTES


def test_what_makes_the_items_is_gone_through_itself(tmp_path):
    (found,) = ahead(of_loader, tmp_path / "run.json")
    assert found.remedies[0].why.endswith("go through `yield_folds(x)` itself.")


def test_a_list_that_the_loop_asks_for_is_filled_by_batches(tmp_path):
    (found,) = ahead(in_batches, tmp_path / "run.json")
    (first,) = found.remedies
    assert found.bytes == FOLDS * 4 * NBYTES
    assert first.code == "results.extend(net(batch))"
    assert first.saves_bytes >= (FOLDS - 2) * 4 * NBYTES


@pytest.mark.parametrize(
    "program",
    [
        *(gone_through_again, kept_by_the_loop, asked_for, made_on_the_way),
        *(handed_on(for_epochs), learning_from_itself(torch.optim.Adam)),
        *(learning_from_itself(torch.optim.SGD), read_by_key, gone_through_in_epochs),
    ],
)
def test_a_list_that_is_needed_is_left_alone(program, tmp_path):
    assert not ahead(program, tmp_path / "run.json")
