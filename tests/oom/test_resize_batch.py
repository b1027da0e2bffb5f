"""What follows the batch: measured between steps, assumed where there is one, against real runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memprof.allocator import play, workload_of
from memprof.loading import load
from memprof.oom.half_precision import halving, weight_copies
from memprof.oom.post_mortem import post_mortems
from memprof.oom.resize_batch import batch_slope, resized
from memprof.oom.stale_blocks import Moment
from memprof.records import Finding
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Action, Category, Frame, Phase, Trace
from memprof.views.owners import owners
from memprof.views.timeline import timeline
from memprof.views.window import Window

MIB = 1 << 20
LINE = (Frame("forward", "/home/me/train.py", 7),)


def last_moment(trace: Trace) -> Moment:
    line = timeline(trace)
    seen = Window(trace, line, owners(trace, line.lives))
    return Moment.at(seen, len(trace.events) - 1)


def to_the_last_forward(trace: Trace) -> Trace:
    """A recording that ends with the last allocation of the last forward pass."""
    phases = np.array([int(label.phase) for label in trace.tables.labels])
    forward = phases[trace.events.label] == Phase.FORWARD
    last = int(np.flatnonzero(forward & (trace.events.action == Action.ALLOC))[-1])
    return replace(trace, events=trace.events.take(slice(0, last + 1)), end=None)


def step(builder: TraceBuilder, number: int, batch: int, *, keep: bool = False) -> None:
    """90 MiB of activations a sample, 10 MiB of input, and 20 MiB that do not follow the batch."""
    builder.label(step=number, phase=Phase.OTHER)
    builder.alloc(batch * 10 * MIB, f"x{number}", category=Category.INPUT)
    builder.label(step=number, phase=Phase.FORWARD, module="Net.fc")
    builder.alloc(20 * MIB, f"mask{number}", stack=LINE, category=Category.TEMPORARY)
    for layer in range(3):
        name = f"a{number}.{layer}"
        builder.alloc(batch * 30 * MIB, name, stack=LINE, category=Category.ACTIVATION)
    if not keep:
        for name in ("x", "mask", "a"):
            names = [f"{name}{number}"] if name != "a" else [f"a{number}.{i}" for i in range(3)]
            for one in names:
                builder.free(one)


def failed(folder, builder, size, free):
    builder.empty_cache().oom(size, device_free=free)
    (found,) = post_mortems(load(write_run(folder / "run.json", builder.build())))
    return found


def test_two_batches_tell_what_follows_them_and_the_largest_that_fits(tmp_path):
    builder = TraceBuilder().existing(500 * MIB, "w", category=Category.PARAMETER)
    step(builder, 0, 2)
    step(builder, 1, 4, keep=True)
    found = failed(tmp_path, builder, 120 * MIB, 20 * MIB)
    (batch,) = (r for r in found.rescues.tried if r.kind == "batch")
    # 400 MiB and the 120 MiB asked follow the batch, 520 MiB do not; there is room for 940 MiB.
    # By bytes alone 80 % would fit; but a piece of the first step's cache stays half used.
    assert batch.fits
    assert batch.change == (
        "a batch of at most 75 % of this one "
        "(4 MiB for each per cent of it, as step 0 showed with a batch of 50 %)"
    )
    assert not batch.assumes
    assert batch.peak_reserved <= batch.limit


def test_steps_of_a_smaller_batch_are_left_as_they_were():
    builder = TraceBuilder()
    step(builder, 0, 2)
    step(builder, 1, 4, keep=True)
    trace = builder.oom(120 * MIB).build()
    slope = batch_slope(last_moment(trace))
    assert slope is not None
    factors = slope.factors(0.5)
    assert slope.ratio == 0.5
    assert set(factors[slope.batch == 0.5].tolist()) == {1.0}
    assert factors[-1] == 0.5
    masks = trace.events.size == 20 * MIB
    assert set(factors[masks].tolist()) == {1.0}


def test_failed_tries_of_one_step_are_told_apart():
    builder = TraceBuilder().label(step=0, phase=Phase.FORWARD, module="Net.fc")
    for attempt, size in enumerate((8, 4)):
        for i in range(4):
            builder.alloc(size * MIB, f"{attempt}.{i}", stack=LINE, category=Category.ACTIVATION)
        builder.oom(size * MIB)
        for i in range(4):
            builder.free(f"{attempt}.{i}") if not attempt else None
    trace = builder.build()
    slope = batch_slope(last_moment(trace))
    assert slope is not None
    assert slope.ratio == 2.0
    assert slope.live == 16 * MIB


def two_attempts(first, second, *, inputs=((), ())):
    """The slope between two steps that made activations of these sizes, in MiB, and inputs."""
    builder = TraceBuilder()
    for number, (sizes, given) in enumerate(zip((first, second), inputs, strict=True)):
        builder.label(step=number, phase=Phase.FORWARD, module="Net.fc")
        names = [f"{number}.{i}" for i in range(len(sizes) + len(given))]
        for name, size in zip(names, (*sizes, *given), strict=True):
            category = Category.ACTIVATION if names.index(name) < len(sizes) else Category.INPUT
            builder.alloc(int(size * MIB), name, stack=LINE, category=category)
        if not number:
            for name in names:
                builder.free(name)
    slope = batch_slope(last_moment(builder.oom(MIB).build()))
    assert slope is not None
    return slope


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([3.99] * 4, [4] * 4),  # 99.8 %: a step of the same batch but for a few bytes
        ([4] * 9 + [3, 5, 2], [4] * 12),  # three of twelve, one way and the other
        ([4] * 9 + [2, 2, 2], [4] * 12),  # a part of the model that follows something else
        ([2, 5, 3, 9, 1, 8], [4] * 6),  # all of them, at random
        ([1, 2, 3, 3.5], [4] * 4),  # all smaller, but not by any one batch
    ],
)
def test_what_differs_little_or_at_random_is_no_other_batch(first, second):
    slope = two_attempts(first, second)
    assert (slope.ratio, slope.measured) == (1.0, None)
    assert set(slope.batch.tolist()) == {1.0}
    assert set(slope.share[slope.share > 0].tolist()) == {1.0}


def test_inputs_that_stay_as_they_are_say_that_the_batch_did():
    # Such as the boxes that a detector found: they differ with what is in the pictures.
    slope = two_attempts([2] * 6, [4] * 6, inputs=([8], [8]))
    assert slope.measured is None
    slope = two_attempts([2] * 6, [4] * 6, inputs=([4, 0.5], [8, 0.5]))
    assert (slope.ratio, slope.measured) == (0.5, (0, 1))


def test_attention_s_squares_follow_the_length_of_a_sequence():
    slope = two_attempts([2, 2, 2, 1, 1], [4] * 5)
    assert (slope.ratio, slope.measured) == (0.5, (0, 1))


def test_a_request_of_no_bytes_beside_others_is_no_ratio():
    slope = two_attempts([0] * 4, [4] * 4)
    assert np.isfinite(slope.batch).all()
    assert (slope.batch > 0).all()


def test_a_batch_of_next_to_nothing_is_told_as_that(tmp_path):
    builder = TraceBuilder()
    for number, size in enumerate((512, 64 * MIB)):
        builder.label(step=number, phase=Phase.FORWARD, module="Net.fc")
        for i in range(4):
            builder.alloc(size, f"{number}.{i}", stack=LINE, category=Category.ACTIVATION)
        for i in range(4 * (1 - number)):
            builder.free(f"{number}.{i}")
    found = failed(tmp_path, builder, 64 * MIB, 0)
    (batch,) = (r for r in found.rescues.tried if r.kind == "batch")
    assert batch.change.endswith("as step 0 showed with a batch of less than 0.1 %)")


def test_one_batch_alone_is_said_to_be_an_assumption(tmp_path):
    builder = TraceBuilder()
    step(builder, 0, 4, keep=True)
    found = failed(tmp_path, builder, 120 * MIB, 20 * MIB)
    (batch,) = (r for r in found.rescues.tried if r.kind == "batch")
    assert batch.fits
    assert "one batch size only" in batch.assumes


def test_what_has_the_size_of_a_weight_does_not_follow_the_batch():
    builder = TraceBuilder().existing(6 * MIB, "w", category=Category.PARAMETER)
    builder.label(step=0, phase=Phase.BACKWARD, module="Net.fc")
    builder.alloc(6 * MIB, "its gradient", stack=LINE)
    builder.alloc(3 * MIB, "its copy in bfloat16", stack=LINE)
    trace = builder.oom(6 * MIB).build()
    assert batch_slope(last_moment(trace)) is None


def test_the_optimizer_and_the_model_never_follow_the_batch():
    builder = TraceBuilder().label(step=0, phase=Phase.OPTIMIZER)
    builder.alloc(6 * MIB, "m", category=Category.OPTIMIZER_STATE).alloc(2 * MIB, "temporary")
    assert batch_slope(last_moment(builder.oom(6 * MIB).build())) is None


def test_sizes_are_rounded_up_to_whole_bytes():
    trace = TraceBuilder().label(step=0, phase=Phase.FORWARD).alloc(1001, "a").oom(512).build()
    workload = resized(workload_of(trace), np.full(len(trace.events), 0.5))
    assert workload.events.size.tolist()[-2:] == [501, 256]


def test_softmax_and_layer_norm_stay_float32_and_inputs_as_they_are():
    builder = TraceBuilder().existing(6 * MIB, "w", category=Category.PARAMETER)
    builder.label(step=0, phase=Phase.FORWARD).alloc(MIB, "x", category=Category.INPUT)
    norm = Frame("layer_norm", "/site-packages/torch/nn/functional.py", 9)
    builder.alloc(4 * MIB, "norm", stack=(norm, *LINE), category=Category.ACTIVATION)
    builder.alloc(4 * MIB, "h", stack=LINE, category=Category.ACTIVATION)
    trace = builder.oom(4 * MIB).build()
    moment = last_moment(trace)
    sizes = trace.events.size[halving(moment) & (trace.events.action == Action.ALLOC)]
    assert sizes.tolist() == [4 * MIB]
    assert trace.stack(int(trace.events.stack[np.flatnonzero(halving(moment))[0]])) == LINE
    assert weight_copies(moment) == 3 * MIB


MODULE = "/site-packages/torch/nn/modules/module.py"
SHORT = [
    Frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "", 0),
    Frame("__exit__", "/site-packages/torch/amp/autocast_mode.py", 390),
    Frame("decorate_autocast", "/site-packages/torch/amp/grad_scaler.py", 16),
    Frame("half", MODULE, 900),
    Frame("bfloat16", MODULE.replace("/", "\\"), 920),
    Frame("step", "/site-packages/deepspeed/runtime/fp16/fused_optimizer.py", 30),
]


@pytest.mark.parametrize("frame", SHORT, ids=lambda frame: frame.name[:20])
def test_a_job_whose_stacks_show_a_short_format_is_not_told_to_use_one(tmp_path, frame):
    builder = TraceBuilder().label(step=0, phase=Phase.FORWARD, module="Net.fc")
    builder.alloc(120 * MIB, "a", stack=(frame, *LINE), category=Category.ACTIVATION)
    found = failed(tmp_path, builder, 120 * MIB, 0)
    assert [r.kind for r in found.rescues.tried if r.kind in ("bf16", "batch")] == ["batch"]


def test_a_user_s_own_function_named_half_says_nothing_of_the_format(tmp_path):
    builder = TraceBuilder().label(step=0, phase=Phase.FORWARD, module="Net.fc")
    stack = (Frame("half", "/home/me/train.py", 3), *LINE)
    builder.alloc(120 * MIB, "a", stack=stack, category=Category.ACTIVATION)
    found = failed(tmp_path, builder, 120 * MIB, 0)
    (bf16,) = (r for r in found.rescues.tried if r.kind == "bf16")
    assert bf16.fits
    assert bf16.assumes.startswith("the activations are float32")


def test_float32_that_the_job_recorded_is_not_assumed(tmp_path):
    told = {"autocast": "", "live": {"dtype": {"parameter": {"float32": 8}}}}
    builder = TraceBuilder().label(step=0, phase=Phase.FORWARD, module="Net.fc")
    builder.alloc(120 * MIB, "a", stack=LINE, category=Category.ACTIVATION).oom(120 * MIB)
    trace = builder.build()
    at_us = int(trace.events.time_us[-1])
    for dtype, kinds in (("float32", ["bf16"]), ("bfloat16", [])):
        told["live"] = {"dtype": {"parameter": {dtype: 8}}}
        finding = Finding("oom", "cuda:0", 0, at_us, bytes=120 * MIB, details=told)
        path = write_run(tmp_path / f"{dtype}.json", trace, more=[finding])
        (found,) = post_mortems(load(path))
        mine = [r for r in found.rescues.tried if r.kind == "bf16"]
        assert [r.kind for r in mine] == kinds
        assert not any(r.assumes for r in mine)


def recorded_training(path, batches):
    torch = pytest.importorskip("torch", reason="a recording needs torch")
    import memprof

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 48),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    with memprof.track(path, sources=("cpu",)):
        for batch in batches:
            loss = model(torch.randn(batch, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return to_the_last_forward(load(path).devices[0].windows[0])


def test_a_real_training_resized_comes_to_what_it_really_takes(tmp_path):
    trace = recorded_training(tmp_path / "both.json", (1024, 1024, 2048, 2048))
    small = recorded_training(tmp_path / "small.json", (1024, 1024, 1024, 1024))
    slope = batch_slope(last_moment(trace))
    assert slope is not None
    assert slope.ratio == 0.5
    predicted = play(resized(workload_of(trace), slope.factors(0.5)))
    real = workload_of(small).recorded
    assert predicted.peak_allocated == pytest.approx(real.peak_allocated, rel=0.01)
    assert predicted.peak_reserved == pytest.approx(real.peak_reserved, rel=0.05)


def test_a_real_training_of_one_batch_is_predicted_to_five_per_cent(tmp_path):
    trace = recorded_training(tmp_path / "large.json", (2048,) * 4)
    small = recorded_training(tmp_path / "small.json", (1024,) * 4)
    slope = batch_slope(last_moment(trace))
    assert slope is not None
    assert slope.measured is None
    predicted = play(resized(workload_of(trace), slope.factors(0.5)))
    real = workload_of(small).recorded
    assert predicted.peak_allocated == pytest.approx(real.peak_allocated, rel=0.05)
