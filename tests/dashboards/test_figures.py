"""What the figures hold, to the byte, for recordings whose every byte is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memprof.loading import load
from memprof.records import Readings
from memprof.run import Run
from memprof.testing import TraceBuilder, step_columns, write_run
from memprof.trace import Action, Category, Phase, Trace
from memprof.views.examination import examine
from memprof_dashboards.memory import MemoryFigure, memory_figure
from memprof_dashboards.owners import Tree, owners_figures
from memprof_dashboards.readings import readings_figure
from memprof_dashboards.segments import segment_maps, segments_at
from memprof_dashboards.steps import steps_figure
from memprof_dashboards.views import DeviceView, StackBook, device_view, origin_us
from tests.dashboards.recordings import (
    LINEAR,
    MIB,
    MODEL,
    START_US,
    STEPS,
    TRAIN,
    recorded,
    training,
)


def view_of(run: Run) -> DeviceView:
    examined = examine(run).devices[0]
    book = StackBook(examined.windows[0].trace.tables, examined.windows[0].owners.sites)
    return device_view(run, examined, origin_us(run), book)


def view_of_traces(folder: Path, *traces: Trace) -> DeviceView:
    return view_of(load(write_run(folder / "run.json", *traces)))


def memory_of(view: DeviceView, count: int = 1000) -> MemoryFigure:
    figure = memory_figure(view, count)
    assert figure is not None
    return figure


# -- memory over time ------------------------------------------------------------------------------


def test_the_layers_of_every_split_add_up_to_what_is_allocated(tmp_path: Path):
    figure = memory_of(view_of(recorded(tmp_path)))
    assert set(figure.layers) == {"category", "module", "site"}
    for layers in figure.layers.values():
        assert np.sum(layers.bytes, axis=0).tolist() == figure.allocated


def test_the_peak_is_where_the_kept_meets_the_gradient(tmp_path: Path):
    figure = memory_of(view_of(recorded(tmp_path)))
    at = figure.peak_sample
    by_name = {
        name: row[at]
        for name, row in zip(
            figure.layers["category"].names, figure.layers["category"].bytes, strict=True
        )
    }
    assert figure.allocated[at] == 14 * MIB
    assert by_name == {
        "parameter": 4 * MIB,
        "gradient": 4 * MIB,
        "activation": 6 * MIB,
        "temporary": 0,
    }


def test_samples_carry_what_their_event_did(tmp_path: Path):
    view = view_of(recorded(tmp_path))
    figure = memory_of(view)
    trace = view.windows[0].trace
    assert figure.action == [-1, *trace.events.action.tolist()]
    assert figure.size[1:] == trace.events.size.tolist()
    assert figure.event == list(range(len(trace.events) + 1))
    table = view.book.table()
    kept = figure.action.index(int(Action.ALLOC))
    frames = [table.frames[i][:3] for i in table.stacks[figure.stack[kept]]]
    assert frames == [(f.name, f.filename, f.line) for f in (LINEAR, MODEL, TRAIN)]
    assert table.sites[figure.stack[kept]] == "job/model.py:31 in forward"


def test_few_samples_of_many_events_keep_the_peak_and_the_ends(tmp_path: Path):
    builder = TraceBuilder()
    for number in range(5000):
        builder.alloc(MIB, "spike" if number == 3333 else "usual")
        if number == 3333:
            builder.alloc(50 * MIB, "usual").free("spike")
        builder.free("usual")
    figure = memory_of(view_of_traces(tmp_path, builder.build()), 100)
    assert len(figure.event) < 400
    assert figure.allocated[figure.peak_sample] == 51 * MIB
    assert figure.event[-1] == figure.events == len(builder.build().events)


def test_phases_are_bands_between_samples(tmp_path: Path):
    figure = memory_of(view_of(recorded(tmp_path)))
    phases = [band.phase for band in figure.phases]
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER] * STEPS
    assert all(a.last <= b.first for a, b in zip(figure.phases, figure.phases[1:], strict=False))


def test_step_marks_lie_where_the_steps_were_on_both_axes(tmp_path: Path):
    run = recorded(tmp_path)
    figure = memory_of(view_of(run))
    steps = run.devices[0].steps
    assert [m.end_us for m in figure.steps] == (steps.end_us - START_US).tolist()
    labels = [
        run.devices[0].windows[0].label(int(i)).step for i in run.devices[0].windows[0].events.label
    ]
    ends = [max(i for i, s in enumerate(labels) if s == step) + 1 for step in range(STEPS)]
    assert [m.end_event for m in figure.steps] == ends


def test_a_recorder_without_a_clock_has_events_alone(tmp_path: Path):
    trace = training()
    trace.events.time_us[:] = -1
    run = recorded(tmp_path)
    device = run.devices[0]
    timeless = type(device)(device.device, device.info, (trace,))
    figure = memory_of(view_of(Run(source="", header=run.header, devices=(timeless,))))
    assert figure.time_us == []
    assert figure.event[-1] == len(trace.events)


def test_windows_follow_one_another_and_share_their_layers(tmp_path: Path):
    first = TraceBuilder().alloc(MIB, "a", stack=(MODEL,)).build()
    second = TraceBuilder().wait(1000).alloc(3 * MIB, "b", stack=(TRAIN,)).build()
    figure = memory_of(view_of_traces(tmp_path, first, second))
    assert figure.windows == [0, 3]  # start, segment, allocation
    assert figure.event == [0, 1, 2, 2, 3, 4]
    assert figure.allocated == [0, 0, MIB, 0, 0, 3 * MIB]
    assert np.sum(figure.layers["site"].bytes, axis=0).tolist() == figure.allocated


def test_an_out_of_memory_is_a_mark_with_what_was_asked_and_free(tmp_path: Path):
    trace = TraceBuilder().alloc(MIB, "a").oom(40 * MIB, device_free=5 * MIB).build()
    (oom,) = memory_of(view_of_traces(tmp_path, trace)).ooms
    assert (oom.requested, oom.free, oom.event) == (40 * MIB, 5 * MIB, 2)


def test_beyond_twelve_groups_the_rest_is_one_layer(tmp_path: Path):
    builder = TraceBuilder()
    for number in range(20):
        frame = type(MODEL)("forward", "/home/someone/job/model.py", number + 1)
        builder.alloc((number + 1) * MIB, f"t{number}", stack=(frame,))
    layers = memory_of(view_of_traces(tmp_path, builder.build())).layers["site"]
    assert layers.names[0] == "job/model.py:20 in forward"
    assert layers.names[-1] == "8 others"
    assert layers.bytes[-1][-1] == sum(range(1, 9)) * MIB


def test_modules_that_differ_in_a_number_only_share_a_layer_where_they_are_many(tmp_path: Path):
    builder = TraceBuilder()
    for number in range(20):
        builder.label(step=0, module=f"GPT.blocks.{number}.mlp").alloc(MIB, f"t{number}")
    builder.label(step=0, module="GPT.head").alloc(3 * MIB, "head")
    layers = memory_of(view_of_traces(tmp_path, builder.build())).layers["module"]
    assert layers.names == ["GPT.blocks.*.mlp", "GPT.head"]
    assert [row[-1] for row in layers.bytes] == [20 * MIB, 3 * MIB]


# -- what was alive --------------------------------------------------------------------------------


def paths(tree: Tree) -> dict[str, int]:
    """Bytes by the labels down to each node."""
    found: dict[int, str] = {}
    for row, (label, parent) in enumerate(zip(tree.label, tree.parent, strict=True)):
        found[row] = f"{found[parent]}/{label}" if parent >= 0 else ""
    return {path: tree.bytes[row] for row, path in found.items()}


def test_the_module_tree_at_the_peak_holds_every_byte_once(tmp_path: Path):
    figure = owners_figures(view_of(recorded(tmp_path)))["peak"]
    assert paths(figure.trees["module"]) == {
        "": 14 * MIB,
        "/GPT": 6 * MIB,
        "/GPT/head": 6 * MIB,
        "/GPT/head/forward · model.py:31": 6 * MIB,
        "/(no module)": 8 * MIB,
        "/(no module)/main · train.py:7": 4 * MIB,
        "/(no module)/(no stack)": 4 * MIB,
    }


def test_the_stack_tree_folds_libraries_and_the_other_keeps_them(tmp_path: Path):
    trees = owners_figures(view_of(recorded(tmp_path)))["peak"].trees
    folded, whole = paths(trees["stack"]), paths(trees["frames"])
    assert folded["/main · train.py:7/forward · model.py:31"] == 6 * MIB
    assert whole["/main · train.py:7/forward · model.py:31/forward · linear.py:125"] == 6 * MIB
    assert not any("linear" in path for path in folded)


def test_at_the_end_only_the_parameters_are_left(tmp_path: Path):
    figure = owners_figures(view_of(recorded(tmp_path)))["end"]
    assert figure.allocated == 4 * MIB
    assert [(s.name, s.bytes, s.count, s.parts) for s in figure.sites] == [
        ("job/train.py:7 in main", 4 * MIB, 1, [(int(Category.PARAMETER), 4 * MIB)])
    ]


def test_branches_too_small_to_draw_are_summed_up(tmp_path: Path):
    builder = TraceBuilder().alloc(4000 * MIB, "large", stack=(TRAIN,))
    for number in range(50):
        frame = type(MODEL)("forward", "/home/someone/job/model.py", number + 1)
        builder.alloc(MIB, f"t{number}", stack=(frame,))
    tree = owners_figures(view_of_traces(tmp_path, builder.build()))["peak"].trees["stack"]
    assert paths(tree) == {
        "": 4050 * MIB,
        "/main · train.py:7": 4000 * MIB,
        "/(smaller ones)": 50 * MIB,
    }


# -- steps and readings ----------------------------------------------------------------------------


def test_steps_tell_peak_end_and_reserved(tmp_path: Path):
    figure = steps_figure(view_of(recorded(tmp_path)))
    assert figure is not None
    assert figure.peak_allocated == [14 * MIB] * STEPS
    assert figure.allocated == [4 * MIB] * STEPS
    assert figure.traced == [True] * STEPS


def test_readings_are_panels_by_source_and_unit_without_constants(tmp_path: Path):
    panels = readings_figure(view_of(recorded(tmp_path)))
    assert [(p.title, p.unit, [line.name for line in p.lines]) for p in panels] == [
        ("Device (NVML)", "", ["used"]),
        ("Host", "", ["rss"]),
        ("Host", "", ["available"]),
        ("Device (NVML)", "W", ["power"]),
    ]
    assert panels[0].lines[0].values == [30 * MIB, 31 * MIB, None]
    assert panels[0].lines[0].time_us == [0, 1500, 3000]


def test_what_is_not_torch_s_is_a_panel_of_its_own_with_processes_by_name(tmp_path: Path):
    values = {
        "used": [90 * MIB] * 3,
        "process_used": [None, 30 * MIB, 36 * MIB],
        "others_used": [5 * MIB] * 3,
        **{f"used by python {pid}": [pid * MIB] * 3 for pid in range(1, 7)},
    }
    steps = step_columns(reserved=[20 * MIB] * 2, allocated=[MIB] * 2, end_us=[1, 2])
    readings = Readings("nvml", "cuda:0", [3, 4, 5], values)
    trace = TraceBuilder().alloc(MIB, "a").build()
    run = load(write_run(tmp_path / "run.json", trace, steps=steps, more=[readings]))
    panels = {panel.title: panel for panel in readings_figure(view_of(run))}
    names = [line.name for line in panels["Not torch's (NVML)"].lines]
    assert names[:2] == ["this process beyond torch", "all other processes"]
    assert sorted(names[2:]) == [f"python {pid}" for pid in (3, 4, 5, 6)]
    assert panels["Not torch's (NVML)"].lines[0].values == [None, 10 * MIB, 16 * MIB]
    assert [line.name for line in panels["Device (NVML)"].lines] == ["used", "process used"]


# -- the map ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("ends", ["start", "end", "both"])
def test_segments_at_every_event_are_those_taken_and_not_given_back(expandable: bool, ends: str):
    builder = TraceBuilder(expandable=expandable).existing(3 * MIB, "weight")
    builder.alloc(8 * MIB, "a").alloc(2000, "b").free("a").empty_cache().alloc(6 * MIB, "c")
    trace = builder.build(start=ends != "end", end=ends != "start")
    grows = np.isin(trace.events.action, [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])
    shrinks = np.isin(trace.events.action, [Action.SEGMENT_FREE, Action.SEGMENT_UNMAP])
    held = 4 * MIB
    assert segments_at(trace, -1).size.tolist() == [4 * MIB]
    for event, size in enumerate(trace.events.size.tolist()):
        held += size * int(grows[event]) - size * int(shrinks[event])
        assert int(segments_at(trace, event).size.sum()) == held
    assert shrinks.any()


def test_the_map_shows_blocks_where_they_lay_and_what_waits_for_a_stream(tmp_path: Path):
    builder = TraceBuilder().existing(2 * MIB, "weight", category=Category.PARAMETER)
    builder.alloc(6 * MIB, "peak").free("peak", complete=False).alloc(4 * MIB, "late")
    drawn = segment_maps(view_of_traces(tmp_path, builder.build()))
    last = drawn["end"]
    sizes = dict(zip(last.block_address, last.block_size, strict=True))
    assert sorted(sizes.values()) == [2 * MIB, 4 * MIB, 6 * MIB]
    waiting = [
        size
        for size, category in zip(last.block_size, last.block_category, strict=True)
        if category == -1
    ]
    assert waiting == [6 * MIB]
    assert sum(drawn["peak"].block_size) == 8 * MIB


@pytest.mark.parametrize(
    "name",
    ["gpt-medium-1024-training", "dataparallel-oom-expandable", "nca-empty-cache", "lm-spike"],
)
def test_the_maps_of_real_snapshots_tile_their_segments(shared: Path, name: str):
    run = load(shared / "snapshots" / f"{name}.pickle")
    for examined in examine(run).devices:
        window = examined.windows[0]
        view = device_view(
            run, examined, origin_us(run), StackBook(window.trace.tables, window.owners.sites)
        )
        maps = segment_maps(view)
        for moment, (_, entry) in view.moments.items():
            assert maps[moment].reserved == window.line.reserved[entry]
            address, size = np.array(maps[moment].block_address), np.array(maps[moment].block_size)
            assert (address[1:] >= address[:-1] + size[:-1]).all()
            starts = np.array(maps[moment].segment_address)
            row = np.searchsorted(starts, address, side="right") - 1
            ends = starts[row] + np.array(maps[moment].segment_size)[row]
            assert ((row >= 0) & (address + size <= ends)).all()
