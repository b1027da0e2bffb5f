"""copied-windows: overlapping windows of a sequence are copied where a view would show them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import EMPTY
from tests.rules.recorded import findings_of, names

VALUES, SIZE, HOP = 65536, 256, 32
STARTS = range(0, VALUES - SIZE + 1, HOP)


def trained_on(windows):
    model = nn.Linear(SIZE, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number):
        batch = windows[torch.randint(0, len(windows), (16,))]
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    signal = torch.rand(VALUES)
    return trained_on(torch.stack([signal[start : start + SIZE] for start in STARTS]))


def by_a_list():
    signal, parts = torch.rand(VALUES), []
    for end in range(SIZE, VALUES // 8):
        parts.append(signal[end - SIZE : end].clone())
    windows = torch.stack(parts)
    del parts[:]
    return trained_on(windows)


def of_an_array():
    series = np.random.default_rng(0).random(VALUES // 8, dtype=np.float32)
    windows = [torch.from_numpy(series[i : i + SIZE]) for i in range(len(series) - SIZE)]
    return trained_on(torch.stack(windows))


def one_by_one():
    """A sample is a pair of tensors of its own, which the data set keeps."""
    signal, samples = torch.rand(VALUES), []
    for start in range(0, VALUES - SIZE, HOP):
        samples.append((signal[start : start + SIZE].clone(), signal[start + SIZE].clone()))
    return trained_on_pairs(samples)


def side_by_side():
    """They do not overlap."""
    signal, samples = torch.rand(VALUES), []
    for start in range(0, VALUES - SIZE, SIZE):
        samples.append((signal[start : start + SIZE].clone(), signal[start + SIZE].clone()))
    return trained_on_pairs(samples)


def trained_on_pairs(samples):
    model = nn.Linear(SIZE, 1)

    def step(number):
        batch = torch.stack([samples[at][0] for at in torch.randint(len(samples), (16,)).tolist()])
        model(batch).square().mean().backward()
        model.zero_grad()

    return step


def by_narrow():
    """The starts have a name, and `narrow` takes each window."""
    signal, starts = torch.rand(VALUES // 4), range(0, VALUES // 4 - SIZE + 1, 8)
    return trained_on(torch.cat([signal.narrow(0, at, SIZE).unsqueeze(0) for at in starts]))


def by_positions():
    """A table of positions takes the windows out of an array, all at once."""
    series = np.random.default_rng(0).random(VALUES // 8, dtype=np.float32)
    count = (len(series) - SIZE) // 4
    index = np.arange(SIZE)[None, :] + 4 * np.arange(count)[:, None]
    return trained_on(torch.from_numpy(series[index]))


def blocks_by_positions():
    """Each begins where the one before it ends."""
    series = torch.rand(VALUES * 8)
    starts = SIZE * torch.arange(len(series) // SIZE)
    return trained_on(series[starts.unsqueeze(1) + torch.arange(SIZE)])


def inputs_and_targets():
    """A function makes both, for training and for tests; the end has a name."""
    signal = torch.rand(VALUES // 4)

    def windows_of(part, size, ahead):
        xs, ys = [], []
        for start in range(len(part) - size - ahead + 1):
            middle = start + size
            xs.append(part[start:middle])
            ys.append(part[middle : middle + ahead])
        return torch.stack(xs), torch.stack(ys)

    train, _ = windows_of(signal[: VALUES // 5], SIZE, 16)
    test, _ = windows_of(signal[VALUES // 5 :], SIZE, 16)
    step = trained_on(train)
    return lambda number: (step(number), test[0])


def of_pairs():
    signal, pairs = torch.rand(VALUES), []
    for number in range((VALUES - SIZE) // HOP):
        start = number * 32
        pairs.append((signal[start : start + 256], signal[start + 256]))
    xs, _ = zip(*pairs, strict=True)
    return trained_on(torch.stack(xs))


def of_pairs_beside_a_large_tensor():
    """By syntax alone: what else is there may hold each value once."""
    signal, pairs, start = torch.rand(VALUES), [], 0
    other = torch.rand(VALUES * SIZE // HOP)
    while start + SIZE <= len(signal):
        pairs.append((signal[start : start + SIZE].clone(), other[start]))
        start += 32
    step = trained_on(torch.stack([window for window, _ in pairs]))
    return lambda number: (step(number), other[0])


def shown_and_copied():
    signal, parts = torch.rand(VALUES), []
    for channel in (signal, -signal):
        shown = channel.unfold(0, SIZE, HOP)
        parts.extend(shown)
    return trained_on(torch.stack(parts))


def copied_in_full():
    signal = torch.rand(VALUES)
    return trained_on(signal.unfold(0, SIZE, HOP).contiguous())


def looks_alike():
    """Side by side: they hold each value once, as the signal does."""
    signal = torch.rand(VALUES)
    starts = range(0, VALUES, SIZE)
    return trained_on(torch.stack([signal[start : start + SIZE] for start in starts]))


def side_by_side_of_an_array():
    """How large the array is, nobody saw."""
    series = np.random.default_rng(0).random(VALUES, dtype=np.float32)
    starts = range(0, VALUES, SIZE)
    return trained_on(torch.stack([torch.from_numpy(series[i : i + SIZE]) for i in starts]))


def side_by_side_by_number():
    """Which is no window at every value."""
    series, size = np.random.default_rng(0).random(VALUES, dtype=np.float32), SIZE
    numbers = range(len(series) // size)
    parts = [torch.from_numpy(series[i * size : i * size + size]) for i in numbers]
    return trained_on(torch.stack(parts))


def moving_spectrum():
    """Each window gives values of its own."""
    signal = torch.rand(VALUES // 8)
    spectra = [torch.fft.fft(signal[i : i + SIZE]).abs() for i in range(len(signal) - SIZE)]
    return trained_on(torch.stack(spectra))


def shown():
    return trained_on(torch.rand(VALUES).unfold(0, SIZE, HOP))


def shown_side_by_side():
    return trained_on(torch.rand(VALUES).unfold(0, SIZE, SIZE).clone())


def computed_with():
    """A step needs the copy for its product alone."""
    model, signal = nn.Linear(SIZE, 1), torch.rand(VALUES)

    def step(number):
        windows = signal.unfold(0, SIZE, HOP).contiguous()
        model(windows).square().mean().backward()
        model.zero_grad()

    return step


def batches():
    """Of a long sequence a batch of windows is copied in each step."""
    series, model = torch.rand(VALUES), nn.Linear(SIZE, 1)

    def step(number):
        starts = torch.randint(0, VALUES - SIZE, (16,)).tolist()
        batch = torch.stack([series[start : start + SIZE] for start in starts])
        model(batch).square().mean().backward()
        model.zero_grad()

    return step


def test_a_view_is_named_with_what_it_saves(tmp_path):
    (found,) = [f for f in findings_of(fires, tmp_path / "run.json") if not f.minor]
    (first,) = found.remedies
    assert found.bytes == len(STARTS) * SIZE * 4
    assert (first.fix, first.code.split("(")[0]) == ("unfold", "return trained_on")
    assert first.why.startswith("`signal.unfold(0, size, step)` shows the same windows")
    # the signal itself is there to the end
    assert found.bytes - VALUES * 4 - 4096 <= first.saves_bytes <= found.bytes


@pytest.mark.parametrize(
    "program",
    [
        *(by_a_list, of_an_array, by_narrow, by_positions, inputs_and_targets, of_pairs),
        of_pairs_beside_a_large_tensor,
    ],
)
def test_windows_that_are_longer_than_their_stride_overlap_whatever_they_are_of(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.minor) == ("copied-windows", False)


@pytest.mark.parametrize(
    ("program", "sequence"), [(shown_and_copied, "channel"), (copied_in_full, "signal")]
)
def test_a_view_of_windows_that_is_copied_to_stay_is_to_be_kept_as_it_is(
    program, sequence, tmp_path
):
    (found,) = [one for one in findings_of(program, tmp_path / "run.json") if not one.minor]
    assert found.rule == "copied-windows"
    (remedy,) = found.remedies
    assert remedy.why.startswith(f"`{sequence}.unfold(…)` takes no memory until it is copied")
    assert remedy.saves_bytes >= found.bytes / 2


@pytest.mark.parametrize(
    "program",
    [
        *(side_by_side_of_an_array, side_by_side_by_number, moving_spectrum, blocks_by_positions),
        *(shown, batches, shown_side_by_side, computed_with),
    ],
)
def test_nothing_is_said_of_windows_side_by_side_nor_of_a_batch(program, tmp_path):
    assert "copied-windows" not in names(program, tmp_path / "run.json")


class Scaler:
    def __init__(self, signal):
        self.mean, self.std = signal.mean(), signal.std()

    def transform(self, values):
        return (values - self.mean) / self.std


class Windows:
    def __init__(self, signal):
        self.shown = signal.unfold(0, SIZE, HOP)
        self.windows = Scaler(signal).transform(self.shown)


def scaled_by_an_object():
    """What is scaled is a view, which no statement shows where it is scaled."""
    return trained_on(Windows(torch.rand(VALUES)).windows)


def scaled_before():
    signal = torch.rand(VALUES)
    return trained_on(Scaler(signal).transform(signal).unfold(0, SIZE, HOP))


def test_what_an_object_computes_of_a_view_is_told_where_it_is_kept(tmp_path):
    found = findings_of(scaled_by_an_object, tmp_path / "run.json")[0]
    assert (found.rule, found.minor) == ("copied-windows", False)
    assert found.site.code == "self.windows = Scaler(signal).transform(self.shown)"
    (remedy,) = found.remedies
    assert remedy.fix == "unfold"
    assert remedy.saves_bytes >= 1.7 * found.bytes  # with what is there on the way
    assert "copied-windows" not in names(scaled_before, tmp_path / "other.json")


def test_what_a_function_makes_of_two_parts_is_one_finding(tmp_path):
    found = findings_of(inputs_and_targets, tmp_path / "run.json")
    (one,) = [each for each in found if each.rule == "copied-windows"]
    starts = [VALUES // 5, VALUES // 4 - VALUES // 5]
    assert one.bytes == sum(n - SIZE - 16 + 1 for n in starts) * SIZE * 4


BETWEEN = """import torch
class Series:
    def __init__(self, series, history):
        inputs = []
        for start in range(len(series) - history):
            inputs.append(series[start : start + history])
        self.inputs = torch.stack(inputs)
"""
MIB = 1 << 20


def between_windows(tmp_path, sizes, line=7):
    """A recording that begins after the data was made, and a search that found who holds it."""
    source = tmp_path / "forecast.py"
    source.write_text(BETWEEN)
    trace = TraceBuilder(device="cpu").label()
    for number, size in enumerate(sizes):
        trace.existing(size, f"data{number}")
    for step in range(16):
        trace.label(step=step).alloc(MIB, "batch").free("batch")
    link = Link(LinkKind.ATTRIBUTE, "inputs", "Series", filename=str(source), line=line)
    code = BETWEEN.splitlines()[line - 1].strip()
    holder = Holder(LinkKind.ATTRIBUTE, str(source), line, code, [link])
    search = Finding(
        "holders", device="cpu", step=15, stack=EMPTY, bytes=sizes[0], count=1, holders=[holder],
        details={"reason": "resident", "births": 0},
    )  # fmt: skip
    return findings(load(write_run(tmp_path / "run.json", trace.build(), more=(search,))))


def test_windows_that_no_window_saw_made_are_told_by_the_line_that_binds_them(tmp_path):
    (found,) = [one for one in between_windows(tmp_path, [64 * MIB, MIB]) if not one.minor]
    assert (found.rule, found.bytes, found.site.line) == ("copied-windows", 64 * MIB, 7)


@pytest.mark.parametrize(
    ("sizes", "line"),
    [pytest.param([64 * MIB] * 2, 7, id="two of a size"), pytest.param([64 * MIB], 4, id="a list")],
)
def test_a_line_that_may_have_made_another_tensor_is_not_named(tmp_path, sizes, line):
    found = between_windows(tmp_path, sizes, line)
    assert [one.site.line for one in found] == [0] * len(found)


class Scaled:
    """The windows of the view are scaled, not the sequence before."""

    def __init__(self, series):
        windows = series.unfold(0, SIZE, HOP)
        self.windows = (windows - series.mean()) / series.std()


def scaled():
    return trained_on(Scaled(torch.rand(VALUES)).windows)


def test_a_view_of_which_all_is_computed_is_a_copy_too(tmp_path):
    (found,) = [one for one in findings_of(scaled, tmp_path / "run.json") if not one.minor]
    (first,) = found.remedies
    assert (found.rule, found.bytes) == ("copied-windows", len(STARTS) * SIZE * 4)
    assert first.code == "self.windows = (windows - series.mean()) / series.std()"
    assert "compute that of `series` before, or of each batch" in first.why


def by_a_name():
    """Each window and each target has a name before it goes into its list."""
    signal, xs, ys = torch.rand(VALUES // 8), [], []
    for i in range(len(signal) - SIZE - 1):
        x = signal[i : (i + SIZE)]
        y = signal[i + SIZE]
        xs.append(x)
        ys.append(y)
    step = trained_on(torch.stack(xs))
    return lambda number: (step(number), ys[0])


def split_sequence(sequence, size):
    parts, targets = [], []
    for i in range(len(sequence)):
        end = i + size
        if end > len(sequence) - 1:
            break
        part, target = sequence[i:end], sequence[end]
        parts.append(part)
        targets.append(target)
    return np.array(parts), np.array(targets)


def joined_by_numpy():
    """A function of arrays, as it is in most tutorials; its result is made a tensor elsewhere."""
    series = np.random.default_rng(0).random(VALUES // 8, dtype=np.float32)
    parts, _ = split_sequence(series, SIZE)
    parts = torch.tensor(parts, dtype=torch.float32)
    return trained_on(parts)


class OfArrays:
    def __init__(self, parts):
        self.parts = torch.FloatTensor(parts)


def given_to_a_data_set():
    series = np.random.default_rng(0).random(VALUES // 8, dtype=np.float32)
    return trained_on(OfArrays(split_sequence(series, SIZE)[0]).parts)


def sliding(sequence, size):
    for start in range(len(sequence) - size):
        yield sequence[start : start + size], sequence[start + size]


def by_a_generator():
    signal, parts, targets = torch.rand(VALUES // 8), [], []
    for part, target in sliding(signal, SIZE):
        parts.append(part)
        targets.append(target)
    step = trained_on(torch.stack(parts))
    return lambda number: (step(number), targets[0])


def blocks(sequence, size):
    for start in range(0, len(sequence), size):
        yield sequence[start : start + size]


def blocks_by_a_generator():
    """Each begins where the one before it ends."""
    return trained_on(torch.stack(list(blocks(torch.rand(VALUES * 4), SIZE))))


def means_joined_by_numpy():
    """Of each window one value is left, repeated."""
    series = np.random.default_rng(0).random(VALUES // 8, dtype=np.float32)
    means = []
    for i in range(len(series) - SIZE):
        mean = np.full(SIZE, series[i : i + SIZE].mean(), dtype=np.float32)
        means.append(mean)
    return trained_on(torch.tensor(np.array(means)))


@pytest.mark.parametrize(
    ("program", "size", "sequence"),
    [
        (by_a_name, VALUES // 8 - SIZE - 1, "signal"),
        (by_a_generator, VALUES // 8 - SIZE, "sequence"),
        (joined_by_numpy, VALUES // 8 - SIZE, "torch.as_tensor(sequence)"),
        (given_to_a_data_set, VALUES // 8 - SIZE, "torch.as_tensor(sequence)"),
    ],
)
def test_a_window_may_have_a_name_and_a_function_of_arrays_may_join_them(
    program, size, sequence, tmp_path
):
    found = findings_of(program, tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, found.minor, first.fix) == ("copied-windows", False, "unfold")
    assert found.bytes == size * SIZE * 4
    assert first.why.startswith(f"`{sequence}.unfold(0, size, step)` shows the same windows")


@pytest.mark.parametrize("program", [means_joined_by_numpy, blocks_by_a_generator])
def test_what_is_computed_of_a_window_and_blocks_side_by_side_are_none(program, tmp_path):
    assert "copied-windows" not in names(program, tmp_path / "run.json")


def test_windows_that_are_kept_one_by_one_are_copies_too(tmp_path):
    found, *_ = findings_of(one_by_one, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, found.minor, first.fix) == ("copied-windows", False, "unfold")
    assert found.bytes == len(range(0, VALUES - SIZE, HOP)) * (SIZE * 4 + 512)  # a block at least
    assert first.code.startswith("samples.append((signal[start : start + SIZE].clone()")
    assert "keep where each begins" in first.why


def test_windows_that_are_kept_side_by_side_are_not(tmp_path):
    assert "copied-windows" not in names(side_by_side, tmp_path / "run.json")
