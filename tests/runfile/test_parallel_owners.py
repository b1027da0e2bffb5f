"""Whose the memory of parallel training is, told by stacks as torch's versions make them."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.loading import load
from memprof.records import StateRecord, TraceRecord
from memprof.runfile.parallel_owners import ParallelOwners
from memprof.runfile.reader import read_records
from memprof.testing.runs import write_run
from memprof.testing.traces import TraceBuilder
from memprof.trace import Action, BlockState, Category, Frame, Trace
from memprof.views.lifetimes import lifetimes
from memprof.views.owners import owners
from memprof.views.window import Window

TORCH = "/env/lib/python3.12/site-packages/torch"
FSDP = f"{TORCH}/distributed/fsdp/_fully_shard"
OLDER_FSDP = f"{TORCH}/distributed/_composable/fsdp"
STAGE = f"{TORCH}/distributed/pipelining/stage.py"
TRAIN = Frame("train", "/home/u/train.py", 20)
WRAPPER = Frame("DistributedDataParallel.__init__", f"{TORCH}/nn/parallel/distributed.py", 1079)

REDUCER = [
    Frame("DistributedDataParallel._ddp_init_helper", f"{TORCH}/nn/parallel/distributed.py", 1437),
    WRAPPER,
    TRAIN,
]
REBUILT = [Frame("_pre_forward", f"{TORCH}/nn/parallel/distributed.py", 1775), TRAIN]
COPY_OUT = Frame("foreach_all_gather_copy_out", f"{FSDP}/_fsdp_collectives.py", 463)
GATHERED = [
    Frame("alloc_storage", f"{FSDP}/_fsdp_param.py", 1069),
    Frame("FSDPParam.alloc_all_gather_outputs", f"{FSDP}/_fsdp_param.py", 825),
    COPY_OUT,
    TRAIN,
]
FIRST_GATHERED = [
    Frame("<listcomp>", f"{OLDER_FSDP}/_fsdp_param.py", 320),
    Frame("init_all_gather_outputs", f"{OLDER_FSDP}/_fsdp_param.py", 319),
    TRAIN,
]
FLAT = [
    Frame("_alloc_storage", f"{TORCH}/distributed/utils.py", 180),
    Frame("_alloc_padded_unsharded_flat_param", f"{TORCH}/distributed/fsdp/_flat_param.py", 1409),
    TRAIN,
]
SENT = [
    Frame("DefaultAllocMixin.allocate", f"{FSDP}/_fsdp_collectives.py", 59),
    Frame("foreach_reduce", f"{FSDP}/_fsdp_collectives.py", 597),
    TRAIN,
]
REDUCED = [SENT[0], SENT[1]._replace(line=612), TRAIN]
META = Frame("_make_tensor_from_meta", f"{TORCH}/distributed/pipelining/_utils.py", 323)
RECEIVED = [
    META,
    Frame("<genexpr>", STAGE, 2270),
    Frame("_setup_forward_recv_info", STAGE, 1),
    TRAIN,
]
OLDER_RECEIVED = [
    META._replace(filename=STAGE),
    Frame("<listcomp>", STAGE, 1169),
    Frame("_prepare_forward_infra", STAGE, 1160),
    TRAIN,
]
INFERENCE = [
    META,
    Frame("to_tensor", META.filename, 95),
    Frame("_to_tensor", STAGE, 1858),
    Frame("<genexpr>", STAGE, 1932),
    Frame("_forward_metadata_inference", STAGE, 1932),
    Frame("_prepare_forward_infra", STAGE, 2238),
    TRAIN,
]
BUCKET, WHOLE = Category.GRADIENT_BUCKET, Category.GATHERED_PARAMETER
BUFFER, UNKNOWN = Category.COMMUNICATION_BUFFER, Category.UNKNOWN


def of_allocations(trace: Trace) -> list[int]:
    made = trace.events.action == Action.ALLOC
    return [int(one) for one in trace.events.category[made]]


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        (REDUCER, BUCKET),
        (REBUILT, BUCKET),
        ([Frame("c10d::Reducer::initialize_buckets", "reducer.cpp", 0), *REDUCER], BUCKET),
        ([Frame("broadcast", f"{TORCH}/distributed/utils.py", 326), *REDUCER[1:]], UNKNOWN),
        ([Frame("mine", "/home/u/hooks.py", 3), *REDUCER], UNKNOWN),
        ([Frame("_ddp_init_helper", "/home/u/distributed.py", 3), TRAIN], UNKNOWN),
        (GATHERED, WHOLE),
        (FIRST_GATHERED, WHOLE),
        (FLAT, WHOLE),
        (SENT, BUFFER),
        (RECEIVED, BUFFER),
        (OLDER_RECEIVED, BUFFER),
        (INFERENCE, UNKNOWN),
        ([TRAIN], UNKNOWN),
    ],
)
def test_the_function_of_torch_that_asked_for_memory_says_whose_it_is(tmp_path, stack, category):
    trace = TraceBuilder().existing(512, "before", stack=stack).alloc(512, "a", stack=stack).build()
    (window,) = load(write_run(tmp_path / "run.json", trace)).devices[0].windows
    assert of_allocations(window) == [category]
    for state in (window.start, window.end):
        used = state.blocks.state == BlockState.ACTIVE_ALLOCATED
        assert set(state.blocks.category[used].tolist()) == {category}


def test_who_is_known_to_own_it_counts_more_than_the_stack(tmp_path):
    trace = TraceBuilder()
    given = [
        ("view", REDUCER, Category.GRADIENT),  # `gradient_as_bucket_view`
        ("met", GATHERED, Category.PARAMETER),  # the module's while it is gathered
        ("kept", GATHERED, Category.ACTIVATION),  # there as the backward pass began
        ("sent", SENT, Category.TEMPORARY),
        ("reduced", REDUCED, Category.GRADIENT),
        ("dropped", REDUCED, Category.TEMPORARY),  # nobody looked before it went
    ]
    for name, stack, category in given:
        trace.alloc(512, name, stack=stack, category=category)
    (window,) = load(write_run(tmp_path / "run.json", trace.build())).devices[0].windows
    gradient = Category.GRADIENT
    assert of_allocations(window) == [gradient, WHOLE, WHOLE, BUFFER, gradient, gradient]


def test_a_free_keeps_its_category_though_its_stack_is_fsdps(tmp_path):
    built = TraceBuilder().alloc(512, "a", stack=GATHERED).free("a").build()
    built.events.stack[:] = built.events.stack.max()
    (window,) = load(write_run(tmp_path / "run.json", built)).devices[0].windows
    assert of_allocations(window) == [WHOLE]
    assert sorted(set(window.events.category.tolist())) == [UNKNOWN, WHOLE]


def test_the_file_has_none_of_it_so_that_older_versions_read_it(tmp_path):
    trace = TraceBuilder().existing(512, "a", stack=GATHERED).alloc(512, "b", stack=REDUCER).build()
    path = write_run(tmp_path / "run.json", trace)
    written = [one for one in read_records(path) if isinstance(one, (TraceRecord, StateRecord))]
    assert {type(one) for one in written} == {TraceRecord, StateRecord}
    for one in written:
        columns = one if isinstance(one, TraceRecord) else one.blocks
        assert set(columns.category) <= {int(UNKNOWN)}


def test_a_snapshot_of_torch_has_it_inferred():
    trace = TraceBuilder().alloc(512, "a", stack=GATHERED).alloc(512, "b", stack=[TRAIN]).build()
    lives = lifetimes(trace)
    assert owners(trace, lives).inferred
    assert owners(trace, lives).category.of.tolist()[0] == WHOLE


def test_reports_call_it_by_words_of_torch_and_it_counts_as_owned(tmp_path):
    trace = TraceBuilder().alloc(512, "a", stack=REDUCER).alloc(512, "b", stack=GATHERED)
    trace.alloc(512, "c", stack=RECEIVED).alloc(512, "d", stack=[TRAIN], category=Category.INPUT)
    (loaded,) = load(write_run(tmp_path / "run.json", trace.build())).devices[0].windows
    window = Window.of(loaded)
    names = window.owners.category.names
    words = [names[one] for one in window.owners.category.of.tolist()]
    assert words == ["gradient bucket", "gathered parameter", "communication buffer", "input"]
    assert window.has_owner.tolist() == [True, True, True, False]


def test_rows_of_tables_may_come_in_any_number_of_records():
    parallel = ParallelOwners()
    frames = [tuple(one) for one in GATHERED]
    parallel.add(0, frames[:1], 1, [(0,)])
    parallel.add(1, frames[1:], 2, [(0, 1, 2, 3)])
    category = np.zeros(3, "u1")
    assert parallel.categories(category, np.array([0, 1, 2])).tolist() == [0, 0, WHOLE]
    assert category.tolist() == [0, 0, 0]
