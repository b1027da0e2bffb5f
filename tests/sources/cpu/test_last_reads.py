"""When operators read large tensors last."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import memprof
from memprof.loading import load
from memprof.views.examination import examine

ROWS, COLUMNS = 256, 256
NBYTES = ROWS * COLUMNS * 4
"""The least that is followed."""
HALF = ROWS // 2


@pytest.fixture(params=["operators", "allocator"], autouse=True)
def recorder(request):
    """Each test runs with the dispatch mode, and with the native part."""
    if request.param == "allocator":
        request.getfixturevalue("with_native")
    there = torch.empty(NBYTES, dtype=torch.uint8)  # from the beginning, so that reads are observed
    yield request.param
    del there


def made(rows=ROWS):
    return torch.ones(rows, COLUMNS)


def allocate(number):
    """An allocation by which a place in the recording is told: so many rows of one byte."""
    return torch.empty(number, dtype=torch.uint8)


def rows_of(window, function):
    """The lifetimes in a window that a function made."""
    made_here = np.flatnonzero(window.lives.alloc >= 0).tolist()
    return [row for row in made_here if window.stack(row)[0].name == function]


def reads_of(program, tmp_path):
    """Bytes of the last `allocate` before the last read, and before the end, of each of `made`."""
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        program()
    (device,) = examine(load(tmp_path / "run.json")).devices
    window = device.windows[0]
    lives = window.lives
    rows, marks = rows_of(window, "made"), rows_of(window, "allocate")

    def mark_before(event):
        sizes = [int(lives.requested[row]) for row in marks if lives.alloc[row] < event]
        return sizes[-1] if sizes else 0

    return [(mark_before(window.unread_from[row]), mark_before(lives.free[row])) for row in rows]


def read_once():
    x = made()
    first = allocate(1)
    total = x.sum()
    second = allocate(2)
    del x
    return first, total, second


def read_by_view():
    x = made()
    first = allocate(1)
    total = x[:2].t().sum()
    second = allocate(2)
    del x
    return first, total, second


def read_in_a_list():
    x = made()
    first = allocate(1)
    joined = torch.cat([x, x])
    second = allocate(2)
    del x
    return first, joined, second


def read_by_keyword():
    x = made()
    first = allocate(1)
    loss = F.mse_loss(torch.zeros(ROWS, COLUMNS), target=x)
    second = allocate(2)
    del x
    return first, loss, second


def written_in_place():
    x = made()
    first = allocate(1)
    x.zero_()
    second = allocate(2)
    del x
    return first, second


def never_read():
    first = allocate(1)
    x = made()
    second = allocate(2)
    del x
    return first, second


def read_in_backward():
    weight = torch.ones(COLUMNS, COLUMNS, requires_grad=True)
    x = made()
    out = x @ weight
    first = allocate(1)
    out.sum().backward()
    second = allocate(2)
    del x, out
    third = allocate(3)
    return first, second, third


@pytest.mark.parametrize(
    ("program", "read", "end"),
    [
        (read_once, 1, 2),
        (read_by_view, 1, 2),
        (read_in_a_list, 1, 2),
        (read_by_keyword, 1, 2),
        (written_in_place, 1, 2),
        (never_read, 1, 2),
        (read_in_backward, 1, 2),
    ],
)
def test_the_last_operator_that_is_given_a_tensor_reads_it_last(program, read, end, tmp_path):
    assert reads_of(program, tmp_path) == [(read, end)]


def test_what_goes_before_anything_else_is_allocated_is_not_written(tmp_path):
    def program():
        for _ in range(3):
            made().sum()

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        program()
    (device,) = load(tmp_path / "run.json").devices
    assert len(device.windows[0].last_reads.made) == 0


def test_a_small_tensor_is_not_followed(tmp_path):
    def program():
        x = made(HALF)
        first = allocate(1)
        del x
        return first

    assert reads_of(program, tmp_path) == [(1, 1)]  # its end, as of what is not known


def test_what_is_made_small_beside_much_else_is_not_followed(tmp_path):
    def program():
        most = torch.empty(NBYTES * 512, dtype=torch.uint8)
        x = made()
        first = allocate(1)
        del x
        return most, first

    assert reads_of(program, tmp_path) == [(1, 1)]


def test_reads_of_steps_before_count(tmp_path):
    """What one drain has written is read after it."""
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        x = made()
        tracker.step()
        first = allocate(1)
        tracker.step()
        total = x.sum()
        second = allocate(2)
        tracker.step()
        third = allocate(3)
        tracker.step()
        del x
    assert first is not None
    assert second is not None
    assert third is not None
    assert total == NBYTES / 4
    (device,) = examine(load(tmp_path / "run.json")).devices
    window = device.windows[0]
    (row,) = rows_of(window, "made")
    after = window.unread_from[row]
    marks = [
        int(window.lives.requested[one])
        for one in np.flatnonzero((window.lives.alloc >= 0) & (window.lives.alloc < after)).tolist()
        if window.stack(one)[0].name == "allocate"
    ]
    assert marks == [1]


def test_nothing_is_said_of_what_was_there_as_a_sparse_tensor_was_read(tmp_path, recorder):
    """A dispatch mode is not told whose parts it shares; the operators on these are observed."""

    def program():
        x = made()
        at = torch.zeros(1, ROWS, dtype=torch.long)
        some = torch.sparse_coo_tensor(at, x, (1, COLUMNS), check_invariants=True)
        first = allocate(1)
        total = torch.sparse.sum(some)
        second = allocate(2)
        del x, some
        later = made()
        third = allocate(3)
        del later
        return first, total, second, third

    read = 1 if recorder == "allocator" else 2
    assert reads_of(program, tmp_path) == [(read, 2), (2, 3)]


def test_nothing_is_written_once_code_is_compiled(tmp_path, monkeypatch):
    for source in ("cpu.dispatch_source", "native_reads"):
        monkeypatch.setattr(f"memprof.sources.{source}.is_used", lambda: True)
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        read_once()
    (device,) = load(tmp_path / "run.json").devices
    assert len(device.windows[0].last_reads.made) == 0


@pytest.mark.parametrize(
    ("read", "part"),
    [
        (lambda x: x[torch.arange(ROWS // 8)], 1 / 8),
        (lambda x: x[: ROWS // 4].sum(), 1 / 4),
        (lambda x: x.view(-1), 0),
        (lambda x: x.to(torch.float32).reshape(-1)[0], 0),  # no operator is given its values
        (lambda x: (x[: ROWS // 4].sum(), x[torch.arange(ROWS // 8)]), 3 / 8),
        (lambda x: x[: ROWS // 4].zero_(), 1 / 4),
        (lambda x: x[: ROWS // 4].add_(1), 1 / 4),
        (lambda x: x.mul_(2).add_(1)[: ROWS // 4].sum(), 1 / 4),  # it is being computed
        (lambda x: x.index_fill_(0, torch.zeros(1, dtype=torch.long), 0.0), 1),
        (lambda x: F.linear(torch.ones(2, COLUMNS), x), 1),  # by the operator that it calls
        (lambda x: F.embedding(torch.zeros(ROWS // 4, dtype=torch.long), x), 1 / 4),
    ],
)
def test_an_operator_that_picks_reads_what_it_returns(read, part, tmp_path):
    def program():
        x = made()
        first = allocate(1)
        result = read(x)
        second = allocate(2)
        del x
        return first, result, second

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        program()
    (device,) = examine(load(tmp_path / "run.json")).devices
    window = device.windows[0]
    (row,) = rows_of(window, "made")
    assert window.part_read[row] == pytest.approx(part, abs=1e-4)


def test_memory_that_no_operator_had_is_no_tensor(tmp_path, recorder):
    """An operator's own buffers are read where nobody sees it."""
    if recorder == "operators":
        pytest.skip("it is told of what operators return alone")

    def program():
        kept = torch.UntypedStorage(4 * NBYTES)
        first = allocate(1)
        del kept
        return first

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        program()
    (device,) = load(tmp_path / "run.json").devices
    assert len(device.windows[0].last_reads.made) == 0


def test_what_another_thread_reads_counts(tmp_path, recorder):
    if recorder == "operators":
        pytest.skip("threads that were there before are not watched")

    def program():
        x = made()
        first = allocate(1)
        with ThreadPoolExecutor(1) as pool:
            total = pool.submit(x.sum).result()
        second = allocate(2)
        del x
        return first, total, second

    assert reads_of(program, tmp_path) == [(1, 2)]


def test_a_forked_child_goes_on_where_blocks_are_followed(tmp_path, recorder):
    if recorder == "operators":
        pytest.skip("nothing of the native part is there")
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        x = made()
        child = os.fork()
        if not child:
            is_right = float(made()[0].sum() + x[0].sum()) == 2 * COLUMNS  # by one thread
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_outlives_the_window_is_known_to_be_unread_where_the_program_ends_with_it(
    recorder, tmp_path
):
    if recorder != "operators":
        pytest.skip("the native part tells of what has gone")
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        kept = made()
        first = allocate(1)
        total = kept.sum()
        second = allocate(2)
    (device,) = examine(load(tmp_path / "run.json")).devices
    window = device.windows[0]
    (row,) = rows_of(window, "made")
    assert window.unread_from[row] == window.lives.free[row] == window.events
    assert window.part_read[row] == 1

    last = replace(window, reaches_end=True)
    marks = window.lives.alloc[rows_of(window, "allocate")]
    assert marks[0] < last.unread_from[row] <= marks[1]
    assert last.part_read[row] == 1
    del kept, first, total, second
