"""joined: parts are still there beside the tensor that was joined from them."""

from __future__ import annotations

import pytest
import torch

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of

PARTS, WIDTH = 8, 1 << 14


def fires():
    """A rollout, whose frames stay in their list while the batch is worked on."""

    def step(number):
        frames = [torch.full((WIDTH,), float(part)) for part in range(PARTS)]
        batch = torch.stack(frames)
        torch.exp(batch).mul_(batch).add_(torch.sin(batch)).sum().item()

    return step


def looks_alike():
    """As many tensors beside their batch, which are its views and no parts of it."""

    def step(number):
        batch = torch.stack([torch.full((WIDTH,), float(part)) for part in range(PARTS)])
        frames = list(batch.unbind())
        torch.exp(batch).mul_(batch).add_(torch.sin(batch)).sum().item()
        assert len(frames) == PARTS

    return step


def test_it_is_enough_to_drop_what_is_joined_where_the_peak_comes_later(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "joined"]
    assert found.bytes == found.match.saving.bytes == PARTS * WIDTH * 4
    assert found.match.drop
    assert found.site.code == "batch = torch.stack(frames)"
    assert found.remedies[0].fix == "clear_container"


def record_prepared_data(path, count, others):
    """A training on data that was joined of so many parts, before so many other allocations."""
    model = torch.nn.Linear(384, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with memprof.track(path, sources=("cpu",), allowance_s=600, max_events=12_000):
        parts = [torch.full((384,), float(part)) for part in range(count)]
        data = torch.stack(parts)
        for _ in range(others):
            torch.ones(1)
        for number in range(8):
            optimizer.zero_grad()
            model(data[number * 8 : number * 8 + 8]).square().mean().backward()
            optimizer.step()
    assert len(parts) == count


@pytest.mark.usefixtures("with_native")
def test_what_was_joined_before_the_window_and_stays_is_to_be_filled_in_place(tmp_path):
    """Data is prepared, which takes all events there are for that, before the training begins.

    When that window ends depends on the time, but it is after some 5,000 of these 20,000 events. On
    a busy machine the thread that ends it may come after all of them: then it is given more.
    """
    path, count = tmp_path / "run.json", 2_000
    for others in (8_000, 40_000, 200_000, 1_000_000):
        record_prepared_data(path, count, others)
        run = load(path)
        if len(run.device("cpu").windows) >= 2:
            break
    assert len(run.device("cpu").windows) >= 2
    (joined,) = [one for one in findings(run) if one.rule == "joined"]
    assert joined.bytes == count * 384 * 4
    assert not joined.is_tentative
    assert [remedy.fix for remedy in joined.remedies][:2] == ["preallocate", "clear_container"]
    assert joined.remedies[0].saves_bytes == joined.bytes


def data_joined_first(then_read: bool = False):
    """Data is made in parts and joined; the training needs less at once than that."""

    def collect():
        parts = [torch.full((WIDTH,), float(part)) for part in range(8 * PARTS)]
        data = torch.cat(parts)
        if then_read:
            for part in parts:
                part.mul_(2).add(1).exp()
        return data

    data, model = collect(), torch.nn.Linear(128, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(16):
        optimizer.zero_grad()
        model(data[number * 128 : number * 128 + 128].reshape(1, 128)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("then_read", [False, True])
def test_a_join_before_the_steps_that_takes_most_of_all_is_to_be_filled_in_place(
    tmp_path, then_read
):
    with memprof.track(tmp_path / "run.json", sources=("cpu",), allowance_s=600):
        data_joined_first(then_read)
    joined = [one for one in findings(load(tmp_path / "run.json")) if one.rule == "joined"]
    if then_read:  # the parts are needed beside it
        assert joined == []
        return
    (found,) = joined
    assert not found.minor
    assert found.remedies[0].fix == "preallocate"
    whole, of_a_step = 8 * PARTS * WIDTH * 4, 4608
    assert found.remedies[0].peak_before == 2 * whole
    assert found.remedies[0].peak_after == whole + of_a_step


def of_names():
    """A skip connection: no list has what is joined, and the peak comes later."""

    @torch.no_grad()
    def step(number):
        first, second, third = (torch.randn(WIDTH) for _ in range(3))
        joined = torch.cat([first, second, third])
        torch.exp(joined).mul_(joined).add_(torch.sin(joined)).sum().item()

    return step


def test_parts_that_have_names_are_no_headline(tmp_path):
    joined = [one for one in findings_of(of_names, tmp_path / "run.json") if one.rule == "joined"]
    assert [(one.is_tentative, one.minor) for one in joined] == [(True, True)]
