"""loaded: what `torch.load` read from a file is there beside the model, or at the peak."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of


def model():
    return nn.Sequential(*(nn.Linear(192, 192, bias=False) for _ in range(4)))


def checkpoint_file():
    """A file as an earlier job left it."""
    path = Path(tempfile.mkdtemp()) / "model.pt"
    torch.save({"model": model().state_dict(), "epoch": 3}, path)
    return path


def trained(net):
    net(torch.randn(64, 192)).square().mean().backward()
    net.zero_grad()


def fires():
    net = model()
    checkpoint = torch.load(checkpoint_file())
    net.load_state_dict(checkpoint["model"])

    def step(number):
        trained(net)
        return checkpoint["epoch"] + number

    return step


def looks_alike():
    """The loaded tensors are the model's own from then on."""
    net = model()
    checkpoint = torch.load(checkpoint_file())
    net.load_state_dict(checkpoint["model"], assign=True)

    def step(number):
        trained(net)
        return checkpoint["epoch"] + number

    return step


def test_all_that_was_loaded_is_there_and_its_name_is_told(tmp_path):
    (loaded,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "loaded"]
    assert loaded.bytes == 4 * 192 * 192 * 4
    assert not loaded.match.passing
    first, second = loaded.remedies
    assert first.why == (
        "`step` reads `checkpoint['epoch']` later, and keeps all of `checkpoint` for that: put "
        "what it reads into variables of their own before it, and drop `checkpoint` once the model "
        "has been filled from it."
    )
    assert first.code == 'return checkpoint["epoch"] + number'
    assert (second.fix, second.saves_bytes, second.peak_before) == ("map_location_cpu", 0, -1)
    assert '+    checkpoint = torch.load(checkpoint_file(), map_location="cpu")' in second.patch


def averages():
    """Once, several files are loaded and then added up."""
    paths = [checkpoint_file() for _ in range(6)]

    def step(number):
        if number != 8:
            trained(model())
            return
        states = [torch.load(path)["model"] for path in paths]
        sum(state["0.weight"].sum().item() for state in states)

    return step


def read(path):
    return torch.load(path)["model"]


def averages_by_a_function():
    paths = [checkpoint_file() for _ in range(6)]

    def step(number):
        if number != 8:
            trained(model())
            return
        states = [read(path) for path in paths]
        sum(state["0.weight"].sum().item() for state in states)

    return step


def evaluates():
    """Once, the model is filled from each file in turn."""
    paths, net = [checkpoint_file() for _ in range(6)], model()

    def step(number):
        if number != 8:
            trained(net)
            return
        for path in paths:
            state = torch.load(path)["model"]
            net.load_state_dict(state)

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (averages, 'states = [torch.load(path)["model"] for path in paths]'),
        (averages_by_a_function, "states = [read(path) for path in paths]"),
    ],
)
def test_of_files_that_are_loaded_at_once_one_after_the_other_is_enough(program, code, tmp_path):
    path = tmp_path / "run.json"
    (found,) = [one for one in findings_of(program, path) if one.rule == "loaded"]
    assert found.match.passing
    first, *_ = found.remedies
    assert (first.fix, first.code) == ("running_total", code)


def test_files_that_are_loaded_one_after_the_other_are_so_already(tmp_path):
    found = [one for one in findings_of(evaluates, tmp_path / "run.json") if one.rule == "loaded"]
    assert "running_total" not in {fix.fix for one in found for fix in one.remedies}


def continued(tracker):
    """A function that loads, fills the model and trains it, all in one."""
    saved = torch.load(checkpoint_file())
    net = model()
    net.load_state_dict(saved["model"])
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(saved["epoch"], saved["epoch"] + 16):
        net(torch.randn(4, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.step()
    return net


def compared(tracker):
    """The same, but each step needs what was loaded."""
    saved = torch.load(checkpoint_file())
    net = model()
    weights = saved["model"]
    net.load_state_dict(weights)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(16):
        net(torch.randn(4, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            (net[0].weight - weights["0.weight"]).norm()
        tracker.step()
    return net


def loaded_by(job, path):
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        job(tracker)
    return [one for one in findings(load(path)) if one.rule == "loaded"]


def test_in_a_function_that_trains_as_well_it_is_dropped_after_the_last_read(tmp_path):
    (found,) = loaded_by(continued, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.fix, found.minor) == ("del_ref", False)
    assert first.why == "Drop `saved` once the model has been filled from it."
    assert first.saves_bytes == 4 * 192 * 192 * 4


def test_what_each_step_reads_cannot_be_dropped_before_the_steps(tmp_path):
    assert all(
        one.remedies[0].saves_bytes <= 192 * 192 * 4
        for one in loaded_by(compared, tmp_path / "run.json")
    )


class Tuner:
    """It goes on from what another job has learnt, and reads a number of it in each step."""

    def __init__(self, net, path):
        self.net = net
        self.start = torch.load(path)
        self.net.load_state_dict(self.start["model"])

    def step(self, number):
        trained(self.net)
        return self.start["epoch"] + number


def test_what_other_methods_read_of_it_is_kept(tmp_path):
    found = findings_of(lambda: Tuner(model(), checkpoint_file()).step, tmp_path / "run.json")
    (first, *_) = next(one for one in found if one.rule == "loaded").remedies
    assert first.why == (
        "Keep of `self.start` what is read later (`self.start['epoch']`), and drop the rest once "
        "the model has been filled from it."
    )


def resumed_from_a_number(path):
    """A number of the file is read in each step, and its tensors are read no more."""
    net = nn.Linear(512, 512)
    checkpoint = torch.load(path)
    net.load_state_dict(checkpoint["model"])
    start = checkpoint["epoch"]
    for number in range(start, start + 16):
        net(torch.randn(64, 512)).square().mean().backward()
        net.zero_grad()
        memprof.step()
        print(number - start)


def test_a_number_of_the_file_is_none_of_its_tensors(tmp_path):
    torch.save({"model": nn.Linear(512, 512).state_dict(), "epoch": 3}, tmp_path / "model.pt")
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=600):
        resumed_from_a_number(tmp_path / "model.pt")
    (loaded,) = [one for one in findings(load(tmp_path / "run.json")) if one.rule == "loaded"]
    (drop,) = [one for one in loaded.remedies if one.fix == "del_ref"]
    assert drop.saves_bytes >= 512 * 512 * 4
