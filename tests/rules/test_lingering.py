"""lingering: values live on after their last use: until replaced, or through another pass."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import memprof
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.rules.waste import lingering as rule
from memprof.rules.waste.lingering import Lingering
from tests.rules.recorded import findings_of

LAYERS, WIDTH = 8, 1 << 14


def build():
    return [torch.zeros(WIDTH) for _ in range(LAYERS)]


class Trials:
    """A model for each trial, built while the last trial's is still in its attribute."""

    def __init__(self):
        self.net = None

    def step(self, number):
        self.net = build()


def fires():
    return Trials().step


def looks_alike():
    """A recurrence: the new state is computed of the old one, which must be there."""
    states = SimpleNamespace(hidden=torch.zeros(LAYERS * WIDTH))

    def step(number):
        states.hidden = torch.tanh(states.hidden)

    return step


def lingering(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    return [one for one in found if one.rule == "lingering"]


def test_the_attribute_is_to_be_emptied_before_it_is_filled_again(tmp_path):
    (found,) = lingering(fires, tmp_path)
    assert found.bytes == LAYERS * WIDTH * 4
    # An old layer may stay until its own successor exists: of the last one nothing is saved.
    assert found.match.saving.bytes == (LAYERS - 1) * WIDTH * 4
    assert found.title.endswith("live on in `self.net` until their replacement is there")
    assert found.remedies[0].fix == "del_ref"
    assert "+        self.net = None\n         self.net = build()" in found.remedies[0].patch


class Net:
    def __init__(self):
        self.layers = build()


class Rebuilt(Trials):
    """What `__init__` binds is an attribute of a new object: the old one is in another name."""

    def step(self, number):
        self.net = Net()


def test_what_an_init_makes_lives_on_in_the_name_of_the_object(tmp_path):
    (found,) = lingering(lambda: Rebuilt().step, tmp_path)
    (first,) = found.remedies
    assert found.bytes == LAYERS * WIDTH * 4
    assert found.title.endswith("live on in `self.net` until their replacement is there")
    assert (first.fix, first.code) == ("del_ref", "self.net = Net()")
    assert "+        self.net = None" in first.patch


class Job:
    """All of it runs as it is made."""

    def __init__(self):
        self.run()

    def run(self):
        for _ in range(12):
            self.net = build()
            memprof.step()


def test_an_init_in_which_the_whole_job_runs_makes_no_new_object(tmp_path):
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=60):
        Job()
    found = findings(memprof.load(tmp_path / "run.json"))
    (one,) = [one for one in found if one.rule == "lingering"]
    assert one.title.endswith("live on in `self.net` until their replacement is there")
    assert one.remedies[0].code == "self.net = build()"


def failing():
    """Each step fails and stores its exception, whose traceback has the frame with the tensors."""
    last = {}

    def attempt():
        tensors = build()
        raise ValueError(len(tensors))

    def step(number):
        try:
            attempt()
        except ValueError as error:
            last["error"] = error

    return step


def test_a_stored_exception_is_what_is_to_go_where_it_holds_the_frames(tmp_path):
    (found,) = lingering(failing, tmp_path)
    assert found.match.raises
    assert [remedy.fix for remedy in found.remedies] == ["clear_traceback"]
    assert found.remedies[0].code == 'last["error"] = error'


def forecasts():
    """Each step is one forward pass: a map is replaced when the step that made the next is over."""
    upscaler = torch.nn.Conv1d(1, 16, 3, padding=1)
    with torch.inference_mode():
        for _ in range(8):
            fine = upscaler(torch.zeros(1, 1, WIDTH))
            fine.mean().item()


def test_the_result_of_the_last_pass_is_to_go_before_the_next_pass(tmp_path):
    with memprof.track(tmp_path / "r.json", sources=["cpu"], allowance_s=60):
        forecasts()
    (found,) = (
        one for one in findings(memprof.load(tmp_path / "r.json")) if one.rule == "lingering"
    )
    assert found.bytes == 16 * WIDTH * 4
    assert found.title.endswith("live on in `fine` until their replacement is there")
    assert found.remedies[0].code == "fine = upscaler(torch.zeros(1, 1, WIDTH))"
    assert found.remedies[0].saves_bytes == found.bytes


class Pyramid(torch.nn.Module):
    """It returns the maps of all its stages, which are locals of its own until then."""

    def __init__(self):
        super().__init__()
        self.stages = torch.nn.ModuleList(
            torch.nn.Conv1d(1 if at == 0 else 8, 8, 3, padding=1) for at in range(4)
        )

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x).relu()
            maps.append(x)
        return maps


def test_what_a_module_returns_is_kept_by_who_called_it(tmp_path):
    pyramid = Pyramid()
    with (
        memprof.track(tmp_path / "r.json", sources=["cpu"], allowance_s=60),
        torch.inference_mode(),
    ):
        for _ in range(8):
            maps = pyramid(torch.zeros(1, 1, WIDTH))
            maps[-1].mean().item()
    (found,) = (
        one for one in findings(memprof.load(tmp_path / "r.json")) if one.rule == "lingering"
    )
    assert found.title.endswith("live on in `maps` until their replacement is there")
    assert found.remedies[0].code == "maps = pyramid(torch.zeros(1, 1, WIDTH))"


def two_names():
    """Two values that live on, of which each name keeps its own."""
    kept = SimpleNamespace(large=None, small=None)

    def step(number):
        kept.small = torch.zeros(WIDTH // 4)
        kept.large = torch.zeros(4 * WIDTH)

    return step


def test_a_name_is_told_to_keep_what_it_keeps_and_not_what_another_does(tmp_path):
    (found,) = lingering(two_names, tmp_path)
    assert "`kept.large`" in found.title
    assert found.bytes == 4 * WIDTH * 4


def held_in(*links):
    """Whether a binding of ``self.state`` lingers, where the job found tensors held so."""
    holder = Holder(kind=links[0].kind, links=list(links))
    window = SimpleNamespace(
        lives=SimpleNamespace(stack=np.array([5])),
        searches=(Finding(finding="holders", device="cpu", stack=5, holders=[holder]),),
    )
    binding = SimpleNamespace(target="self.state")
    match = Lingering(row=0, rows=np.array([0]), nbytes=1, binding=binding)
    return rule.is_stored(window, match)


STORE = Link(LinkKind.ATTRIBUTE, type_name="Backend", name="store.entries")
STATE = Link(LinkKind.ATTRIBUTE, type_name="Stream", name="state")
ITEM = Link(LinkKind.ITEM, type_name="dict", name="user-33", length=6)
ERROR = Link(LinkKind.TRACEBACK, name="handle")


@pytest.mark.parametrize(
    ("links", "is_stored"),
    [
        ((STORE, ITEM), True),
        ((STATE, ITEM), False),  # the attribute itself has a container of them
        ((STATE,), False),
        ((STORE,), False),
        ((ERROR, ITEM), False),
    ],
)
def test_what_a_container_of_another_name_holds_does_not_linger_in_a_variable(links, is_stored):
    assert held_in(*links) is is_stored


SAMPLES = """\
import copy

if False:
    from diffusers import DDPMPipeline

model = Model()
job = {{}}


def step(number):
    job["pipeline"] = {made}
    return job["pipeline"]()
"""


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class DDPMPipeline:
    def __init__(self, unet, scheduler):
        self.unet = unet

    def __call__(self):
        with torch.no_grad():
            return self.unet(torch.rand(2, 128)).sum().item()


@pytest.mark.parametrize(
    ("made", "fix"),
    [
        ("DDPMPipeline(unet=copy.deepcopy(model).eval(), scheduler=None)", "evaluate_itself"),
        ("Sampler(unet=copy.deepcopy(model).eval(), scheduler=None)", "del_ref"),
        ("DDPMPipeline(unet=copy.deepcopy(model).float(), scheduler=None)", "del_ref"),
    ],
)
def test_a_pipeline_of_a_library_needs_no_copy_of_the_model(made, fix, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SAMPLES.format(made=made))
    names_of = {"Model": Model, "DDPMPipeline": DDPMPipeline, "Sampler": DDPMPipeline}
    exec(compile(path.read_text(), str(path), "exec"), names_of)
    (found,) = lingering(lambda: names_of["step"], tmp_path)
    assert found.remedies[0].fix == fix
    assert found.remedies[0].line == 11
