"""Programs that leak are found, with their bytes; programs that only look guilty are left alone."""

from __future__ import annotations

import gc

import pytest

import memprof
from memprof.rules.finding import Kind
from memprof.rules.growth_findings import leaks
from memprof.views.examination import examine

pytest.importorskip("torch", reason="these programs are torch's")

from tests.programs import leaks as programs

STEPS = 40
WITH_GRAPHS = {"losses_kept_before_backward"}


def record(program, path, steps=STEPS, *, cycles=True):
    (gc.enable if cycles else gc.disable)()
    try:
        with memprof.track(path, sources=["cpu"], allowance_s=60) as tracker:
            step = program()
            for i in range(steps):
                step(i)
                tracker.step()
    finally:
        gc.enable()
    return memprof.load(path)


@pytest.mark.parametrize("name", programs.LEAKING)
def test_a_leak_is_found_with_its_bytes(name, tmp_path):
    program, expected = programs.LEAKING[name]
    found = leaks(examine(record(program, tmp_path / "run.json")))
    assert found, "nothing was found"
    assert found[0].kind in (Kind.LEAK, Kind.CYCLE)
    if expected:
        assert sum(f.bytes_per_step for f in found) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", programs.HEALTHY)
def test_healthy_growth_raises_no_alarm(name, tmp_path):
    found = leaks(examine(record(programs.HEALTHY[name], tmp_path / "run.json")))
    assert [f.title for f in found] == []


def test_what_is_held_without_its_graph_is_told_from_what_only_the_graph_keeps(tmp_path):
    def outputs_kept_with_their_graphs():
        model, outputs = programs.mlp(), []

        def step(i):
            outputs.append(model(programs.torch.randn(8, 16)))

        return step

    found, *others = leaks(examine(record(outputs_kept_with_their_graphs, tmp_path / "run.json")))
    assert others == []
    assert found.bytes_per_step == 512 + 1024 + 512  # the batch, what tanh made, the output
    assert found.growth.kept_itself == 0.25
    assert found.title.startswith("grows by 2 KiB per step: list (")
    assert found.title.endswith(", through the autograd graph")
    assert found.holders[0].description.startswith("saved tensor ")


class Store:
    """The last message of each node, which training and then an evaluation write."""

    def __init__(self):
        self.messages = {}

    def put(self, key, message):
        self.messages[key] = message


@pytest.mark.parametrize(("nodes", "is_told"), [(20, False), (40, True)])
def test_items_of_a_dict_that_another_line_replaces_are_no_leak(nodes, is_told, tmp_path):
    def storing():
        store = Store()

        def trained(i):
            store.put(i % nodes, programs.torch.ones(4096))

        def evaluated(i):
            store.put(i % nodes, programs.torch.ones(4096))

        return lambda i: (trained if i < STEPS // 2 else evaluated)(i)

    found = leaks(examine(record(storing, tmp_path / "run.json")))
    assert bool(found) is is_told
