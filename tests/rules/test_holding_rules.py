"""Rules that follow a value to the call or the container that keeps it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Kind
from memprof.rules.waste.retained_graph import Retained
from tests.rules.bench import LOOP, Bench, fixes


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


METER = """\
class Meter:
    def update(self, value, n=1):
        self.values.append(value)

    def watch(self, value):
        self.update(value)


def step(net, meter, seen):
    seen.update(net)
    loss = net().mean()
    meter.watch(loss)
"""


def test_a_value_handed_over_is_cut_off_at_the_call_that_hands_it_over(bench):
    bench.write(METER)
    held = bench.holder(
        "values.append",
        ("local", "meter", -1),
        ("attribute", "values", -1),
        ("item", "0", 9),
        ("autograd_node", "MeanBackward0", -1),
        ("saved_tensor", "self", -1),
    )
    by_fix = {r.fix: r for r in bench.advise("net().mean()", held)}
    assert by_fix["detach"].code == "self.values.append(value)"
    assert by_fix["item"].code == "meter.watch(loss)"
    assert "+    meter.watch(loss.item())" in by_fix["item"].patch


def test_a_value_made_where_it_is_kept_has_no_other_call(bench):
    bench.write("def step(net, kept):\n    out = net()\n    kept.append(out)\n\n\nstep(1, 2)\n")
    held = bench.holder("kept.append", ("local", "kept", -1), ("item", "0", 9))
    assert {r.code for r in bench.advise("net()", held)} == {"kept.append(out)"}


BUS = """\
class Bus:
    def subscribe(self, callback):
        self.listeners.append(callback)


class Probe:
    def __init__(self, bus):
        self.table = zeros(9)
        bus.subscribe(self.heard)
"""


def test_listeners_that_keep_their_objects_should_be_registered_weakly(bench):
    bench.write(BUS)
    held = bench.holder(
        "listeners.append",
        ("global", "bus", -1),
        ("attribute", "listeners", -1),
        ("item", "0", 9),
        ("bound_method", "__self__", -1),
        ("attribute", "table", -1),
    )
    best = bench.advise("zeros(9)", held)[0]
    assert (best.fix, best.code) == ("weakref", "bus.subscribe(self.heard)")


TRIALS = """\
class Trial:
    def note(self, key, value):
        self.notes[key] = value


def objective(trials, trial):
    model = build()
    trials.append(trial)
    trial.note("model", model)
"""


def test_models_that_items_of_a_container_keep_are_dropped_where_they_are_given_away(bench):
    bench.write(TRIALS)
    held = bench.holder(
        "trials.append",
        ("global", "trials", -1),
        ("item", "0", 9),
        ("attribute", "notes", -1),
        ("item", "'model'", 1),
        ("parameter", "weight", -1),
    )
    at = bench.line("self.notes[key]")
    held.links[2] = Link("attribute", "notes", "Trial", str(bench.file), at)
    best = bench.advise("build()", held, category="parameter")[0]
    assert (best.fix, best.code) == ("del_ref", 'trial.note("model", model)')


CYCLE = """\
class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks
        for callback in callbacks:
            callback.trainer = self
"""


def test_a_cycle_is_told_by_two_of_its_links(bench):
    bench.write(CYCLE)
    held = bench.holder("callback.trainer", ("cycle", "", 4), ("attribute", "callbacks", -1))
    at = bench.line("self.callbacks")
    held.links[1] = Link("attribute", "callbacks", "Trainer", str(bench.file), at)
    remedies = bench.advise("callback.trainer", held, kind=Kind.CYCLE)
    assert {r.fix: r.code for r in remedies if r.fix in ("break_cycle", "weakref")} == {
        "break_cycle": "callback.trainer = self",
        "weakref": "self.callbacks = callbacks",
    }


METACLASS = """\
class Once(type):
    made = {}

    def __call__(cls, n):
        if n not in cls.made:
            cls.made[n] = super().__call__(n)
        return cls.made[n]
"""


def test_a_cache_of_a_class_is_bounded_where_it_is_filled(bench):
    bench.write(METACLASS)
    links = [("class_attribute", "made", -1), ("item", "3", 40), ("attribute", "table", -1)]
    best = bench.advise("super()", bench.holder("made = {}", *links))[0]
    assert (best.fix, best.code) == ("bound_cache", "cls.made[n] = super().__call__(n)")


def test_tensors_of_a_class_attribute_are_not_to_be_held_weakly(bench):
    bench.write("class Log:\n    kept = []\n\n\ndef step(x):\n    Log.kept.append(x)\n")
    links = [("class_attribute", "kept", -1), ("item", "3", 40)]
    remedies = bench.advise("def step", bench.holder("kept = []", *links))
    assert "weakref" not in fixes(remedies)
    by_fix = {r.fix: r.code for r in remedies}
    assert by_fix["clear_container"] == "Log.kept.append(x)"


def test_a_part_of_an_array_is_copied_as_arrays_are(bench):
    bench.write("def step(kept, probs):\n    kept.append(probs.numpy()[:, 1])\n")
    held = bench.holder("kept.append", ("local", "kept", -1), ("item", "3", 40))
    held.links.append(Link(LinkKind.BASE, type_name="ndarray", shown_bytes=32, storage_bytes=128))
    best = bench.advise("kept.append", held)[0]
    assert best.fix == "clone_view"
    assert "+    kept.append(probs.numpy()[:, 1].copy())" in best.patch


SUM = """\
def step(s, loss):
    loss.backward()
    s.total = s.total + loss
"""


def held_sum(bench):
    return bench.holder(
        "s.total", ("attribute", "total", -1), ("autograd_node", "AddBackward0", -1)
    )


@pytest.mark.parametrize("above", ["", "x = 1\n"])
def test_no_patch_is_made_for_another_line_than_the_recorded_one(bench, above):
    holder = held_sum(bench.write(SUM))
    bench.write(above + SUM)
    remedies = bench.advise("loss.backward", holder, kind=Kind.HOST_GROWTH)
    assert any(r.patch for r in remedies) is (above == "")
    said = [r.why for r in remedies if "No patch is made: `train.py` has changed since" in r.why]
    assert bool(said) is (above != "")


RETAINED = Retained(0, np.zeros(0, dtype=np.int64), 4096)


def test_a_stack_is_not_looked_up_in_a_file_that_is_younger_than_the_recording(bench):
    bench.write(LOOP)
    assert bench.advise("net().mean", rule="retained-graph", match=RETAINED)[0].code
    os.utime(bench.file)
    stale = bench.advise("net().mean", rule="retained-graph", match=RETAINED)
    assert {r.code for r in stale} == {""}
    assert "has changed since" in stale[0].why


def test_a_file_that_is_what_ran_is_patched_however_young(bench):
    holder = held_sum(bench.write(SUM).record())
    os.utime(bench.file)
    assert bench.advise("loss.backward", holder, kind=Kind.HOST_GROWTH)[0].patch
    (first, *_) = (
        bench.write(LOOP).record().advise("net().mean", rule="retained-graph", match=RETAINED)
    )
    os.utime(bench.file)
    again = bench.advise("net().mean", rule="retained-graph", match=RETAINED)[0]
    assert (again.code, again.why) == (first.code, first.why)
    assert again.code == "loss = net().mean()"


@pytest.mark.parametrize("times", [(1, 1), None], ids=["touched back", "young"])
def test_a_file_that_is_not_what_ran_is_not_patched_however_old(bench, times):
    holder = held_sum(bench.write(SUM).record())
    bench.file.write_text(SUM + "# the line that is asked for is still the same\n")
    os.utime(bench.file, times)
    remedies = bench.advise("loss.backward", holder, kind=Kind.HOST_GROWTH)
    assert [r.patch for r in remedies if r.patch] == []
    assert [r for r in remedies if "`train.py` has changed since" in r.why]


def test_a_patch_of_a_line_that_was_not_recorded_needs_the_file_that_ran_too(bench):
    text = "def step(opt):\n    opt.zero_grad(set_to_none=False)\n    x = net()\n"
    bench.write(text).record()
    asked = {"rule": "held-gradients"}
    patched = [r for r in bench.advise("net()", **asked) if r.fix == "set_to_none"]
    assert [bool(r.patch) for r in patched] == [True]
    bench.file.write_text(text + "# more\n")
    os.utime(bench.file, (1, 1))
    (remedy,) = [r for r in bench.advise("net()", **asked) if r.fix == "set_to_none"]
    assert remedy.patch == ""
    assert remedy.why.endswith("No patch is made: `train.py` has changed since.")


def test_a_recorded_line_that_still_stands_there_is_trusted_in_a_younger_file(bench):
    holder = held_sum(bench.write(SUM))
    os.utime(bench.file)
    remedies = bench.advise("loss.backward", holder, kind=Kind.HOST_GROWTH)
    assert remedies[0].patch


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("self.images = raw.float() / 255", "narrow_before_cast"),
        ("self.images = raw", "cpu_offload"),
    ],
)
def test_a_data_set_that_was_converted_as_a_whole_is_told_to_be_converted_in_parts(
    bench, line, fix
):
    bench.write(f"def load(self, raw):\n    {line}\n")
    first, *_ = bench.advise("self.images", rule="resident")
    assert first.fix == fix
    assert "held by" not in first.why


def test_a_repetition_of_values_is_told_to_be_an_expansion(bench):
    bench.write("def score(q, m):\n    q = q.unsqueeze(1).repeat(1, m, 1)\n")
    first, *_ = bench.advise("repeat", rule="repeated")
    assert (first.fix, first.line) == ("reshape", 2)
    assert "`expand`" in first.why
