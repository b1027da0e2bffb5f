from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.rules.waste_findings import waste_of
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from memprof.views.examination import examine

KIB = 1 << 10
MIB = 1 << 20
TRAIN = Frame("train", "/home/user/train.py", 10)
STEPS = 12


class Job:
    """Steps of a small training job on an ordinary allocator; `each` adds a mistake to it."""

    def __init__(self):
        self.trace = TraceBuilder(device="cpu")
        self.count = 0

    def stack(self, line, *inner):
        return (*inner, Frame("train", TRAIN.filename, line))

    def alloc(self, size, name, line, category=Category.UNKNOWN, inner=()):
        self.trace.alloc(size, name, stack=self.stack(line, *inner), category=category)

    def model(self, layers=4, size=256 * KIB):
        self.trace.label(step=0, phase=Phase.OTHER)
        for layer in range(layers):
            self.trace.label(step=0, phase=Phase.OTHER, module=f"Net.{layer}")
            self.alloc(size + layer * 1024, f"w{layer}", 2, Category.PARAMETER)

    def forward(self, step, layers=4, size=128 * KIB, line=10):
        for layer in range(layers):
            self.trace.label(step=step, phase=Phase.FORWARD, module=f"Net.{layer}")
            self.alloc(size, f"a{layer}.{step}", line, Category.ACTIVATION)

    def backward(self, step, layers=4, size=256 * KIB, gradients=True):
        for layer in reversed(range(layers)):
            self.trace.label(step=step, phase=Phase.BACKWARD, module=f"Net.{layer}")
            if gradients:
                self.alloc(size + layer * 1024, f"g{layer}.{step}", 20, Category.GRADIENT)
            else:
                # the new gradient is added to the old one and goes
                self.alloc(size + layer * 1024, f"t{layer}.{step}", 20, Category.TEMPORARY)
                self.trace.free(f"t{layer}.{step}")
            self.trace.free(f"a{layer}.{step}")

    def drop_gradients(self, step, layers=4):
        self.trace.label(step=step, phase=Phase.OTHER)
        for layer in range(layers):
            self.trace.free(f"g{layer}.{step}")

    def found(self, path):
        write_run(path, self.trace.build())
        return waste_of(examine(load(path)))


def patterns(found):
    return [one.rule for one in found]


@pytest.fixture
def job():
    made = Job()
    made.model()
    return made


def test_a_plain_training_loop_wastes_nothing_but_what_checkpointing_would_save(job, tmp_path):
    for step in range(STEPS):
        job.forward(step)
        job.backward(step)
        job.drop_gradients(step)
    assert set(patterns(job.found(tmp_path / "run.json"))) <= {"activations"}


def test_gradients_that_are_zeroed_instead_of_dropped_are_found(job, tmp_path):
    job.forward(0)
    job.backward(0)
    for step in range(1, STEPS):
        job.forward(step, size=512 * KIB)
        job.backward(step, gradients=False)
    found = job.found(tmp_path / "run.json")
    (held,) = [one for one in found if one.rule == "held-gradients"]
    assert held.bytes == 4 * 256 * KIB + (1 + 2 + 3) * KIB
    assert held.match.saving.bytes == held.bytes


def test_gradients_of_an_accumulation_are_meant(job, tmp_path):
    for step in range(STEPS):
        job.forward(step, size=512 * KIB)
        job.backward(step, gradients=step % 4 == 0)
        if step % 4 == 3:
            job.drop_gradients(step - 3)
    assert "held-gradients" not in patterns(job.found(tmp_path / "run.json"))


def test_a_copy_of_the_parameters_is_found_and_weighed_by_a_replay(job, tmp_path):
    for layer in range(4):
        job.alloc(256 * KIB + layer * 1024, f"copy{layer}", 40)
    for step in range(STEPS):
        job.forward(step)
        job.backward(step)
        job.drop_gradients(step)
    found = {one.rule: one for one in job.found(tmp_path / "run.json")}
    copy = found["copy-of-model"]
    saving = copy.match.saving
    assert copy.bytes == 4 * 256 * KIB + 6 * KIB == saving.bytes
    assert copy.site.line == 40


@pytest.mark.parametrize("size", [256 * KIB, 384 * KIB])
def test_what_torch_load_made_and_nobody_dropped_is_found(size, job, tmp_path):
    loading = Frame("load", "/venv/lib/python3.12/site-packages/torch/serialization.py", 1500)
    for layer in range(4):
        job.alloc(size + layer * 1024, f"loaded{layer}", 5, inner=(loading,))
    for step in range(STEPS):
        job.forward(step)
        job.backward(step)
        job.drop_gradients(step)
    found = job.found(tmp_path / "run.json")
    assert patterns(found)[0] == "loaded"
    assert (found[0].bytes, found[0].site.line) == (4 * size + 6 * KIB, 5)
    assert found[0].match.tentative is (size != 256 * KIB)  # else it may be a table that is read


def test_low_precision_copies_of_weights_that_stay_are_autocast_s_cache(job, tmp_path):
    for layer in range(4):
        job.trace.label(step=0, phase=Phase.FORWARD, module=f"Net.{layer}")
        job.alloc((256 * KIB + layer * 1024) // 2, f"half{layer}", 10)
    for step in range(STEPS):
        job.trace.label(step=step, phase=Phase.FORWARD, module="Net.0")
        job.alloc(64 * KIB, f"x{step}", 11)
        job.trace.free(f"x{step}")
    found = job.found(tmp_path / "run.json")
    assert patterns(found)[0] == "autocast-cache"
    assert found[0].match.copies == 4


@pytest.mark.parametrize("phase", [Phase.OTHER, Phase.BACKWARD])
def test_graphs_of_earlier_steps_are_old_unless_a_backward_pass_waits_for_them(
    phase, job, tmp_path
):
    for step in range(4 * STEPS):
        job.forward(step)
        job.trace.label(step=step, phase=phase)
        if step >= 5:
            for layer in range(4):
                job.trace.free(f"a{layer}.{step - 5}")
    found = job.found(tmp_path / "run.json")
    if phase == Phase.BACKWARD:
        assert "old-graphs" not in patterns(found)
        return
    assert patterns(found)[0] == "old-graphs"
    assert found[0].bytes >= 5 * 4 * 128 * KIB


def test_gradients_that_no_optimizer_clears_are_told_from_those_that_one_does(job, tmp_path):
    for step in range(STEPS):
        job.forward(step)
        for layer in reversed(range(4)):
            job.trace.label(step=step, phase=Phase.BACKWARD, module=f"Net.{layer}")
            if layer == 3 or step == 0:
                job.alloc(256 * KIB + layer * KIB, f"g{layer}.{step}", 20, Category.GRADIENT)
            job.trace.free(f"a{layer}.{step}")
        job.trace.label(step=step, phase=Phase.OTHER)
        job.trace.free(f"g3.{step}")
    found = {one.rule: one for one in job.found(tmp_path / "run.json")}
    unused = found["unused-gradients"]
    assert unused.match.graph == 3 * 128 * KIB  # their activations serve nothing else
    assert unused.bytes == 3 * 256 * KIB + 3 * KIB + unused.match.graph
    assert unused.match.within_model


def test_a_forward_pass_that_keeps_its_activations_for_no_backward_is_found(job, tmp_path):
    for step in range(STEPS):
        job.forward(step)
        job.trace.label(step=step, phase=Phase.OTHER)
        job.alloc(512, f"sum{step}", 12)
        for layer in range(4):
            job.trace.free(f"a{layer}.{step}")
        job.trace.free(f"sum{step}")
    assert "evaluation-graph" in patterns(job.found(tmp_path / "run.json"))


def test_activations_that_outlive_the_backward_pass_are_a_retained_graph(job, tmp_path):
    for step in range(STEPS):
        job.forward(step)
        job.trace.label(step=step, phase=Phase.BACKWARD)
        job.alloc(512, f"t{step}", 20)
        job.trace.free(f"t{step}")
        if step:
            for layer in range(4):
                job.trace.free(f"a{layer}.{step - 1}")
    assert "retained-graph" in patterns(job.found(tmp_path / "run.json"))


def test_temporaries_of_a_multi_tensor_optimizer_at_the_peak_are_found(job, tmp_path):
    inner = Frame("_multi_tensor_adam", "/venv/site-packages/torch/optim/adam.py", 600)
    for step in range(STEPS):
        job.trace.label(step=step, phase=Phase.OPTIMIZER)
        for number in range(8):
            job.alloc(256 * KIB, f"t{number}.{step}", 30, inner=(inner,))
        for number in range(8):
            job.trace.free(f"t{number}.{step}")
    found = job.found(tmp_path / "run.json")
    assert patterns(found)[0] == "optimizer-temporaries"
    saving = found[0].match.saving
    assert saving.bytes == 6 * 256 * KIB  # one tensor needs two


def test_what_is_freed_only_when_its_replacement_exists_lingers(job, tmp_path):
    for step in range(STEPS):
        job.trace.label(step=step, phase=Phase.OTHER)
        for part in range(4):
            job.alloc(512 * KIB, f"big{part}.{step}", 50 + part)
        if step:
            for part in range(4):
                job.trace.free(f"big{part}.{step - 1}")
    found = job.found(tmp_path / "run.json")
    assert patterns(found)[0] == "lingering"
    saving = found[0].match.saving
    assert saving.bytes >= 3 * 512 * KIB


def test_an_empty_run_has_no_waste(tmp_path):
    write_run(tmp_path / "run.json", TraceBuilder(device="cpu").build())
    assert waste_of(examine(load(tmp_path / "run.json"))) == ()


def test_what_a_forward_pass_hands_out_of_many_modules_is_no_graph(job, tmp_path):
    for step in range(STEPS):
        for layer in range(4):
            job.trace.label(step=step, phase=Phase.FORWARD, module=f"Net.{layer}")
            job.alloc(128 * KIB, f"out{layer}.{step}", 10)
            for part in range(3):
                job.alloc(128 * KIB, f"between{part}.{layer}.{step}", 11)
                job.trace.free(f"between{part}.{layer}.{step}")
        job.trace.label(step=step, phase=Phase.OTHER)
        for layer in range(4):
            job.trace.free(f"out{layer}.{step}")
    assert "evaluation-graph" not in patterns(job.found(tmp_path / "run.json"))


def test_buffers_that_gradients_are_views_of_are_neither_unused_nor_held(job, tmp_path):
    job.trace.label(step=0, phase=Phase.FORWARD, module="Net")
    job.alloc(4 * 256 * KIB, "bucket", 3, Category.GRADIENT)
    for step in range(STEPS):
        job.forward(step)
        job.trace.label(step=step, phase=Phase.BACKWARD, module="Net.1")
        job.alloc(512, f"small{step}", 20, Category.GRADIENT)
        for layer in range(4):
            job.trace.free(f"a{layer}.{step}")
        job.trace.label(step=step, phase=Phase.OTHER)
        job.trace.free(f"small{step}")
    found = patterns(job.found(tmp_path / "run.json"))
    assert not {"unused-gradients", "held-gradients"} & set(found)


def validated(job, *, dropped_before):
    """Steps that end with a large forward pass; gradients are dropped before it or after it."""
    for step in range(STEPS):
        if step and not dropped_before:
            job.drop_gradients(step - 1)
        job.forward(step)
        job.backward(step)
        if dropped_before:
            job.drop_gradients(step)
        job.trace.label(step=step, phase=Phase.FORWARD, module="Net.0")
        job.alloc(2 * MIB, f"out.{step}", 30)
        job.trace.free(f"out.{step}")
    return job


def test_gradients_that_wait_through_a_validation_are_held_for_nothing(job, tmp_path):
    found = validated(job, dropped_before=False).found(tmp_path / "run.json")
    (held,) = [one for one in found if one.rule == "held-gradients"]
    gradients = sum(256 * KIB + layer * 1024 for layer in range(4))
    assert held.bytes == gradients
    peak = held.match.saving.before
    assert peak == 2 * gradients + 2 * MIB  # the model, its gradients, the output
    assert held.match.saving.after == peak - gradients


def test_gradients_dropped_before_a_validation_are_no_waste(job, tmp_path):
    found = validated(job, dropped_before=True).found(tmp_path / "run.json")
    assert "held-gradients" not in [one.rule for one in found]


@pytest.mark.parametrize(
    ("inner", "pattern"),
    [
        ((), "upcast"),
        ((Frame("_call_impl", "/site-packages/torch/nn/modules/module.py", 1),), "largest"),
    ],
)
def test_a_wider_copy_is_what_the_line_converts_and_not_what_its_module_makes(
    inner, pattern, tmp_path
):
    script = tmp_path / "train.py"
    script.write_text("logits = model(half).float()\n")
    job = Job()
    job.model(layers=1)
    for step in range(STEPS):
        job.trace.label(step=step, phase=Phase.OTHER)
        job.alloc(8 * MIB, f"half.{step}", 10)
        stack = (*inner, Frame("train", str(script), 1))
        job.trace.alloc(16 * MIB, f"wide.{step}", stack=stack)
        job.trace.free(f"wide.{step}")
        job.trace.free(f"half.{step}")
    assert pattern in patterns(job.found(tmp_path / "run.json"))


@pytest.mark.parametrize(
    ("phase", "pattern"), [(Phase.FORWARD, "broadcast"), (Phase.OPTIMIZER, "largest")]
)
def test_a_square_of_an_optimizer_s_is_not_what_the_loss_on_its_line_broadcasts(
    phase, pattern, tmp_path
):
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.nn.functional import mse_loss\n"
        "loss = mse_loss(model(x), y); loss.backward(); optimizer.step()\n"
    )
    job = Job()
    job.model(layers=1)
    for step in range(STEPS):
        job.trace.label(step=step, phase=phase)
        for name in "xy":
            job.alloc(4 * 1024, f"{name}.{step}", 10)
        job.trace.alloc(4 * MIB, f"square.{step}", stack=(Frame("train", str(script), 2),))
        for name in ("square", "x", "y"):
            job.trace.free(f"{name}.{step}")
    assert pattern in patterns(job.found(tmp_path / "run.json"))
