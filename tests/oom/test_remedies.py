"""Changes that let a failed allocation succeed: what is replayed, and what is not claimed."""

from __future__ import annotations

from memprof.loading import load
from memprof.oom.post_mortem import OomCause, post_mortems
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase

MIB = 1 << 20


def told(folder, builder):
    (found,) = post_mortems(load(write_run(folder / "run.json", builder.build())))
    return found


def forward(builder, block, step=5):
    builder.label(step=step, phase=Phase.FORWARD, module=f"GPT.blocks.{block}")
    for name in ("hidden", "out"):
        builder.alloc(10 * MIB, f"{name}{block}", category=Category.ACTIVATION)


def test_a_checkpointed_block_keeps_its_output_and_the_running_block_everything(tmp_path):
    builder = TraceBuilder()
    for block in range(4):
        forward(builder, block)
    builder.label(step=5, phase=Phase.FORWARD, module="GPT.blocks.4")
    builder.alloc(10 * MIB, "now", category=Category.ACTIVATION).oom(20 * MIB, device_free=0)
    found = told(tmp_path, builder)
    assert found.cause is OomCause.PEAK
    (unit,) = (r for r in found.rescues.tried if r.kind == "checkpoint")
    assert unit.change == "checkpoint GPT.blocks.* (40 MiB of activations)"
    assert unit.fits
    assert unit.peak_allocated == (4 + 1 + 2) * 10 * MIB


def test_a_module_whose_backward_has_begun_is_not_dropped(tmp_path):
    builder = TraceBuilder()
    for block in range(2):
        forward(builder, block)
    builder.label(step=5, phase=Phase.BACKWARD, module="GPT.blocks.1")
    builder.free("out1").oom(40 * MIB, device_free=0)
    found = told(tmp_path, builder)
    (unit,) = (r for r in found.rescues.tried if r.kind == "checkpoint")
    assert unit.change == "checkpoint GPT.blocks.* (10 MiB of activations)"
    assert not unit.fits


def test_gradients_that_the_optimizer_has_used_may_go_before_the_forward_pass(tmp_path):
    builder = TraceBuilder().label(step=0, phase=Phase.BACKWARD)
    builder.alloc(30 * MIB, "grad", category=Category.GRADIENT)
    builder.label(step=0, phase=Phase.OPTIMIZER).alloc(10 * MIB, "t").free("t")
    builder.label(step=1, phase=Phase.FORWARD).alloc(30 * MIB, "x")
    builder.oom(20 * MIB, device_free=0)
    found = told(tmp_path, builder)
    (freed,) = (r for r in found.rescues.tried if r.kind == "free")
    assert freed.change.startswith("zero_grad(set_to_none=True) before the forward pass (30 MiB)")
    assert freed.fits


def test_what_three_steps_left_at_one_line_is_a_leak_and_two_are_not(tmp_path):
    line = (Frame("train", "/home/me/train.py", 3),)
    for steps, cause in ((2, OomCause.PEAK), (3, OomCause.LEAK)):
        builder = TraceBuilder()
        for step in range(steps):
            builder.label(step=step).alloc(20 * MIB, f"kept{step}", stack=line)
        builder.label(step=steps + 2).alloc(10 * MIB, "x").oom(20 * MIB, device_free=0)
        found = told(tmp_path, builder)
        assert found.cause is cause
        assert any(r.kind == "free" and r.fits for r in found.rescues.tried) == (steps == 3)


def test_parameters_that_stay_are_no_leak(tmp_path):
    builder = TraceBuilder()
    for step in range(5):
        builder.label(step=step).alloc(20 * MIB, f"w{step}", category=Category.PARAMETER)
    builder.label(step=9).alloc(10 * MIB, "x").oom(20 * MIB, device_free=0)
    assert told(tmp_path, builder).cause is OomCause.PEAK


def test_what_does_not_fail_in_the_model_gets_no_advice(tmp_path):
    builder = TraceBuilder().alloc(20 * MIB, "a").oom(10 * MIB, device_free=64 * MIB)
    found = told(tmp_path, builder)
    assert found.rescues.tried == ()
    assert "does not fail" in found.rescues.unproven


def test_the_last_of_several_failures_is_the_one_explained(tmp_path):
    builder = TraceBuilder().alloc(20 * MIB, "a").oom(90 * MIB, device_free=0)
    builder.alloc(12 * MIB, "b").oom(50 * MIB, device_free=0)
    found = told(tmp_path, builder)
    assert (found.failure.times, found.failure.requested) == (2, 50 * MIB)
    assert any(r.kind == "card" and r.fits for r in found.rescues.tried)


def test_an_optimizer_may_go_through_its_parameters_one_by_one(tmp_path):
    torchs = Frame("_multi_tensor_adam", "/site-packages/torch/optim/adam.py", 602)
    mine = Frame("train", "/home/me/train.py", 3)
    builder = TraceBuilder().label(step=0, phase=Phase.FORWARD)
    builder.alloc(60 * MIB, "w", category=Category.PARAMETER).alloc(10 * MIB, "x").free("x")
    builder.label(step=0, phase=Phase.OPTIMIZER)
    for number in range(6):
        builder.alloc(10 * MIB, f"t{number}", stack=(torchs, mine))
    builder.oom(20 * MIB, device_free=0)
    found = told(tmp_path, builder)
    (one_by_one,) = (r for r in found.rescues.tried if r.kind == "optimizer")
    assert one_by_one.change == (
        "fused=True, or foreach=False, in the optimizer "
        "(40 MiB of temporaries for all parameters at once)"
    )
    assert one_by_one.fits
    assert one_by_one.peak_allocated == (60 + 2 * 10 + 20) * MIB
    assert found.rescues.fitting[0] is one_by_one


def test_what_a_loop_of_the_users_own_makes_is_no_optimizers(tmp_path):
    mine = Frame("train_foreach", "/home/me/train.py", 3)
    builder = TraceBuilder().label(step=0, phase=Phase.OPTIMIZER)
    for number in range(6):
        builder.alloc(10 * MIB, f"t{number}", stack=(mine,))
    builder.oom(20 * MIB, device_free=0)
    assert not any(r.kind == "optimizer" for r in told(tmp_path, builder).rescues.tried)
