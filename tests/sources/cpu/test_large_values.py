"""What large tensors are full of, as samples of their values tell."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import memprof
from memprof.loading import load
from memprof.records import LargeValues
from memprof.sources.cpu import large_values
from tests.sources.recording import CpuRecording

STEPS = 16
ROWS, WIDTH = 256, 512


def values_of(make, tmp_path, step=lambda kept, number: None):
    """The columns of what is known of what ``make`` returns, after steps that may write to it."""
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        kept = make()
        for number in range(STEPS):
            step(kept, number)
            tracker.step()
    (record,) = load(tmp_path / "run.json").large_values
    largest = kept[0] if isinstance(kept, list) else kept
    at = record.size.index(largest.numel() * largest.element_size())
    names = [name for name in record.__struct_fields__ if name != "device"]
    return {name: getattr(record, name)[at] for name in names}


def test_a_tail_that_nothing_fills(tmp_path):
    def make():
        cache = torch.zeros(4, 2048, 32)
        cache[:, :60] = torch.randn(4, 60, 32)
        return cache

    values = values_of(make, tmp_path)
    assert values["shape"] == [4, 2048, 32]
    assert (values["dim"], values["used"], values["mean_used"]) == (1, 60, 60.0)
    assert values["settled"] == values["count"] == 1
    assert values["filled"] == pytest.approx(60 / 2048, abs=0.02)


def test_what_is_computed_of_a_sparse_tensor(tmp_path):
    """That has no storage, which is to keep nobody from looking at the result."""
    at = torch.arange(64).repeat(2, 1)
    some = torch.sparse_coo_tensor(at, torch.ones(64), (1024, 1024), check_invariants=True)
    ones = torch.ones(1024, WIDTH)
    values = values_of(lambda: torch.sparse.mm(some, ones), tmp_path)
    assert (values["dim"], values["used"]) == (0, 64)


def test_what_each_step_fills_a_part_of_is_not_settled(tmp_path):
    def fill(memory, number):
        memory[number * 32 : (number + 1) * 32] = torch.randn(32, WIDTH)

    values = values_of(lambda: torch.zeros(2048, WIDTH), tmp_path, fill)
    assert values["settled"] == 0
    assert (values["dim"], values["used"]) == (0, STEPS * 32)


@pytest.mark.parametrize(("steps_of_filling", "settled"), [(11, 1), (STEPS, 0)])
def test_what_few_values_are_written_into_is_settled_when_that_ends(
    steps_of_filling, settled, tmp_path
):
    """A table that takes more than half of the program to fill, with a value in a hundred."""
    rows, width = 1024, 1700

    def fill(table, number):
        if 0 < number <= steps_of_filling:  # until the first mark, passes of a loop may be steps
            first, last = (at * rows // steps_of_filling for at in (number - 1, number))
            for row in range(first, last):
                table[row, row % 100 :: 100] = torch.rand(width // 100)

    values = values_of(lambda: torch.zeros(rows, width), tmp_path, fill)
    assert values["settled"] == settled
    assert values["dim"] == -1


def test_rows_that_are_padded(tmp_path):
    def make():
        lengths = [400 if number == 7 else 20 for number in range(ROWS)]
        rows = [torch.randn(length) for length in lengths]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    values = values_of(make, tmp_path)
    assert (values["dim"], values["used"] > 380) == (1, True)
    assert values["mean_used"] < 40


def test_rows_of_one_value_each(tmp_path):
    def make():
        return F.one_hot(torch.arange(2048) % WIDTH, WIDTH).float()

    values = values_of(make, tmp_path)
    assert (values["ones"], values["dim"]) == (1, -1)
    assert values["filled"] == pytest.approx(1 / WIDTH, abs=0.002)


def test_pairs_that_are_few(tmp_path):
    def make():
        pairs = torch.zeros(1024, 1024)
        index = torch.randint(1024, (2, 4096), generator=torch.Generator().manual_seed(0))
        pairs[index[0], index[1]] = torch.rand(4096)
        return pairs

    values = values_of(make, tmp_path)
    assert (values["ones"], values["dim"], values["distinct"]) == (0, -1, 0)
    assert values["filled"] == pytest.approx(4096 / 1024**2, abs=0.002)


def test_a_mask_that_is_there_for_each_head(tmp_path):
    def make():
        return torch.randn(1, 1, ROWS, WIDTH).repeat(1, 8, 1, 1)

    assert values_of(make, tmp_path)["repeats"] == 8


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (lambda: torch.randn(4, 2, ROWS, WIDTH).repeat_interleave(6, 1), 6),
        (lambda: torch.randn(4, 2, ROWS, WIDTH).repeat(1, 6, 1, 1), 6),
        (lambda: torch.arange(ROWS * WIDTH).view(ROWS, WIDTH) // 2, 2),
    ],
)
def test_what_several_heads_share(make, times, tmp_path):
    """Next to one another or laid out again, though no dimension is of one value alone."""
    assert values_of(make, tmp_path)["repeats"] == times


def test_tensors_of_the_same_values(tmp_path):
    def make():
        return [torch.ones(WIDTH, WIDTH).tril() for _ in range(6)]

    values = values_of(make, tmp_path)
    assert values["same"] == values["count"] == 6


def test_few_different_values_tell_bytes(tmp_path):
    def make():
        return torch.randint(200, (ROWS, 3, 32, 32)) / 255

    values = values_of(make, tmp_path)
    assert 150 < values["distinct"] <= 200


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_types_of_any_width_are_read(dtype, tmp_path):
    def make():
        return torch.eye(1024).to(dtype)

    values = values_of(make, tmp_path)
    assert (values["ones"], values["size"]) == (1, 1024**2 * dtype.itemsize)


def test_of_what_is_like_noise_nothing_is_written(tmp_path):
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        kept = torch.randn(ROWS, WIDTH)
        for _ in range(STEPS):
            tracker.step()
    assert load(tmp_path / "run.json").large_values == ()
    assert kept.shape == (ROWS, WIDTH)


def test_what_gave_its_memory_up_is_not_read(tmp_path):
    """As a sharded parameter's storage does, which gets other memory later."""

    def step(kept, number):
        kept.untyped_storage().resize_(0)
        kept.untyped_storage().resize_(ROWS * WIDTH * 4)

    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        kept = torch.zeros(ROWS, WIDTH)
        kept[0] = 1
        for number in range(STEPS):
            step(kept, number)
            tracker.step()
    run = load(tmp_path / "run.json")
    assert not any("raised" in note.message for note in run.notes)


def test_the_programs_random_numbers_stay_what_they_are(tmp_path):
    def draw():
        torch.manual_seed(0)
        kept = torch.zeros(ROWS, WIDTH)
        return torch.rand(4), kept

    alone, _ = draw()
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        watched, _kept = draw()
        tracker.step()
    assert torch.equal(alone, watched)


def steps_in_window(recording, number):
    for _ in range(number):
        recording.loop_watch.step_done()
        recording.source.counters()


def large_values_of(recording):
    return [one for one in recording.source.observations() if isinstance(one, LargeValues)]


def test_what_an_earlier_window_made_is_looked_at_in_the_next_one():
    """A data set is made in the first window, and what it is is known in those that follow."""
    recording, generator = CpuRecording(), torch.Generator().manual_seed(0)
    recording.source.begin_window()
    rows = torch.zeros(1024, 1700)
    steps_in_window(recording, 2)
    recording.source.end_window()
    (record,) = large_values_of(recording)
    assert (record.filled, record.dim) == ([0.0], [-1])  # nobody has begun to fill it
    for number, length in enumerate(torch.randint(40, 80, (1024,), generator=generator).tolist()):
        rows[number, :length] = 1.0 + torch.rand(length, generator=generator)
    rows[77] = 1.0
    recording.source.begin_window()
    steps_in_window(recording, 20)
    recording.source.end_window()
    (record,) = large_values_of(recording)
    recording.close()
    assert (record.size, record.shape, record.dim) == ([1024 * 1700 * 4], [[1024, 1700]], [1])
    assert 1600 < record.used[0] <= 1700
    assert 40 <= record.mean_used[0] <= 200
    assert record.settled == [1]


def test_what_lies_in_a_file_is_not_read(tmp_path):
    """A data set may be larger than memory, and each place of it a page from a disk."""
    torch.save({"rows": torch.zeros(ROWS, WIDTH)}, tmp_path / "rows.pt")
    (tmp_path / "rows.bin").write_bytes(bytes(ROWS * WIDTH * 4))
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        loaded = torch.load(tmp_path / "rows.pt", mmap=True)["rows"]
        mapped = torch.from_file(str(tmp_path / "rows.bin"), size=ROWS * WIDTH)
        for _ in range(STEPS):
            tracker.step()
    assert load(tmp_path / "run.json").large_values == ()
    assert not loaded.any()
    assert not mapped.any()


class Clock:
    """Each time that it is asked it is a second later."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        self.now_s += 1.0
        return self.now_s


def test_looks_take_no_more_than_their_share_of_the_time(monkeypatch, tmp_path):
    """Here every look is over by its limit before it has read anything."""
    monkeypatch.setattr(large_values, "time", Clock())
    monkeypatch.setattr(large_values, "FREE_S", 0.1)
    monkeypatch.setattr(large_values, "LONGEST_S", 0.02)
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as tracker:
        kept = [torch.zeros(ROWS, WIDTH) for _ in range(4)]
        for _ in range(STEPS):
            tracker.step()
    assert load(tmp_path / "run.json").large_values == ()
    assert len(kept) == 4
