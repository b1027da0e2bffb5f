"""Holders that Python itself knows: names, containers, functions, exceptions, threads."""

from __future__ import annotations

import ast
import collections
import functools
import gc
import inspect
import itertools
import logging
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from memprof.errors import SettingsError
from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.find_holders import find_holders, holders
from memprof.referrers.links_by_type import KEEPING_ITERATORS
from tests.programs.shell import MODULE, start_shell

HERE = Path(__file__).name
KEPT: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()


def keep(value: object) -> None:
    """Hold ``value`` by the global dict alone."""
    KEPT["value"] = value


def held(tensor: torch.Tensor) -> tuple[Holder, list[Link]]:
    """The best holder of ``tensor`` and its links below the global dict's entry."""
    best = holders(tensor)[0]
    assert [(one.kind, one.name) for one in best.links[:2]] == [
        ("global", "KEPT"),
        ("item", "'value'"),
    ]
    return best, best.links[2:]


class Box:
    """Anything with attributes."""

    def __init__(self, content: object) -> None:
        self.content = content


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content


def test_a_local_is_told_with_its_function_and_line() -> None:
    lonely = torch.ones(3)
    (one,) = holders(lonely)
    assert one.kind == "local"
    assert (one.links[0].name, one.links[0].type_name) == (
        "lonely",
        "test_a_local_is_told_with_its_function_and_line",
    )
    assert one.code == "lonely = torch.ones(3)"
    assert one.filename == __file__
    assert one.description.startswith(
        "local `lonely` of test_a_local_is_told_with_its_function_and_line()"
    )


def test_a_global_is_told_with_its_module() -> None:
    tensor = torch.ones(3)
    keep(tensor)
    best, rest = held(tensor)
    assert (best.kind, rest) == ("item", [])
    assert best.links[0].type_name == __name__
    assert best.description == f"dict `KEPT` (1 items), global `KEPT` of {__name__}"


def test_an_attribute_path_is_told() -> None:
    tensor = torch.ones(3)
    keep(Box(Box(tensor)))
    _, rest = held(tensor)
    assert [(one.kind, one.name, one.type_name) for one in rest] == [
        ("attribute", "content", "Box")
    ] * 2


def test_a_slot_and_a_namespace_are_attributes() -> None:
    tensor = torch.ones(3)
    keep(Slotted(types.SimpleNamespace(inner=tensor)))
    _, rest = held(tensor)
    assert [(one.kind, one.name, one.type_name) for one in rest] == [
        ("attribute", "content", "Slotted"),
        ("attribute", "inner", "SimpleNamespace"),
    ]


@pytest.mark.parametrize(
    ("make", "name", "length"),
    [
        (lambda t: [0, 0, t], "2", 3),
        (lambda t: (0, t), "1", 2),
        (lambda t: {"a": 1, "loss": t}, "'loss'", 2),
        (lambda t: collections.OrderedDict(a=t), "'a'", 1),
        (lambda t: collections.deque([t, 0, 0, 0]), "0", 4),
        (lambda t: {t, "other"}, "element", 2),
        (lambda t: frozenset([t]), "element", 1),
        (lambda t: [*range(200), t], "200", 201),
    ],
    ids=["list", "tuple", "dict", "OrderedDict", "deque", "set", "frozenset", "long-list"],
)
def test_a_container_is_told_with_key_and_length(make: object, name: str, length: int) -> None:
    tensor = torch.ones(3)
    container = make(tensor)  # type: ignore[operator]
    keep(container)
    del make
    one = holders(tensor)[0]
    assert one.kind == "item"
    assert one.links[-1].type_name == type(container).__name__
    assert (one.links[-1].name, one.links[-1].length) == (name, length)


class Word(str):
    """A string of another class."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("others", "is_record"),
    [
        ({"b": 1}, True),
        ({"it's": 1, Word("c"): 2}, True),
        ({f"layer{number}": number for number in range(200)}, True),
        ({7: 1}, False),
        ({("b", 1): 1}, False),
        ({**{f"layer{number}": number for number in range(200)}, 7: 1}, False),
    ],
)
def test_a_dict_is_a_record_where_all_of_its_keys_are_strings(others, is_record) -> None:
    tensor = torch.ones(3)
    keep({"a": tensor, **others})
    one = holders(tensor)[0]
    assert (one.links[-1].name, one.links[-1].is_record) == ("'a'", is_record)


def test_an_item_of_a_list_is_no_field_of_a_record() -> None:
    tensor = torch.ones(3)
    keep([tensor])
    assert not holders(tensor)[0].links[-1].is_record


def test_a_long_name_of_an_attribute_is_told_whole() -> None:
    tensor, box = torch.ones(3), Box(None)
    setattr(box, "x" * 90, tensor)
    keep(box)
    assert holders(tensor)[0].links[-1].name == "x" * 90


def test_nested_containers_are_told_by_the_longest() -> None:
    tensor = torch.ones(3)
    keep(Box([{"n": number} for number in range(9)] + [{"loss": tensor}]))
    best, rest = held(tensor)
    assert [(one.kind, one.name, one.length) for one in rest] == [
        ("attribute", "content", -1),
        ("item", "9", 10),
        ("item", "'loss'", 1),
    ]
    assert best.description.startswith("list `KEPT['value'].content` (10 items) at `[9]['loss']`")


def test_a_tensor_as_a_key_is_told() -> None:
    tensor = torch.ones(3)
    keep({tensor: 1, "x": 2})
    _, rest = held(tensor)
    assert [(one.kind, one.length) for one in rest] == [("key", 2)]


def test_a_closure_is_told_with_function_and_variable() -> None:
    def outer() -> object:
        inside = torch.ones(3)

        def inner() -> torch.Tensor:
            return inside

        return inner

    inner = outer()
    keep(inner)
    one = next(one for one in holders(inner()) if one.kind == "closure")  # type: ignore[operator]
    link = one.links[-1]
    assert (link.kind, link.name) == ("closure", "inside")
    assert link.type_name.endswith("outer.inner")
    assert one.code == "def inner() -> torch.Tensor:"


def test_default_arguments_are_told() -> None:
    def function(a: object = torch.ones(3), *, b: object = torch.ones(4)) -> None:
        del a, b

    keep(function)
    first = function.__defaults__[0]  # type: ignore[index]
    second = function.__kwdefaults__["b"]
    for tensor, name in ((first, "a"), (second, "b")):
        chains = [one.links[-1] for one in holders(tensor)]
        assert ("default_argument", name) in [(link.kind, link.name) for link in chains]


def test_a_bound_method_and_a_partial_are_told() -> None:
    tensor, other = torch.ones(3), torch.ones(4)
    keep([Box(tensor).__init__, functools.partial(print, other)])
    assert [link.kind for link in holders(tensor)[0].links[3:]] == ["bound_method", "attribute"]
    assert holders(other)[0].links[3].kind == "partial"
    assert holders(other)[0].links[3].type_name.startswith("partial of")


@pytest.mark.parametrize("maxsize", [None, 4])
def test_an_lru_cache_is_told_with_its_function(maxsize: int | None) -> None:
    @functools.lru_cache(maxsize=maxsize)
    def table(size: int) -> torch.Tensor:
        return torch.ones(size)

    keep(table)
    one = next(one for one in holders(table(7)) if one.kind == "lru_cache")
    assert one.links[-1].type_name.endswith(".table")
    assert one.code == "@functools.lru_cache(maxsize=maxsize)"


def test_a_class_attribute_is_told_with_its_class() -> None:
    class Registry:
        instances: list[object] = []  # noqa: RUF012 (that is the bug)

    tensor = torch.ones(3)
    Registry.instances.append(tensor)
    keep(Registry)
    one = next(one for one in holders(tensor) if one.kind == "class_attribute")
    link = one.links[-2]
    assert (link.kind, link.name) == ("class_attribute", "instances")
    assert link.type_name.endswith("Registry")
    assert one.code.startswith("instances: list[object] = []")


def fail(value: torch.Tensor) -> None:
    inside = value * 2
    raise ValueError(inside.shape)


def test_an_exception_is_told_with_its_frames() -> None:
    try:
        fail(torch.ones(3))
    except ValueError as error:
        keep(error)
        tensor = error.__traceback__.tb_next.tb_frame.f_locals["inside"]  # type: ignore[union-attr]
    best, rest = held(tensor)
    assert best.kind == "exception"
    kinds = [(one.kind, one.type_name) for one in rest]
    assert kinds[0] == ("exception", "ValueError")
    assert kinds[-2:] == [("traceback", "fail"), ("frame", "fail")]
    assert rest[-1].name == "inside"
    assert best.code in ("inside = value * 2", "keep(error)", 'KEPT["value"] = value')


def test_a_context_exception_is_followed() -> None:
    try:
        try:
            fail(torch.ones(3))
        except ValueError as error:
            tensor = error.__traceback__.tb_next.tb_frame.f_locals["inside"]  # type: ignore[union-attr]
            raise KeyError("second") from None
    except KeyError as second:
        keep(second)
    names = [one.name for one in held(tensor)[1]]
    assert names[:2] == ["__context__", "__traceback__"]


def test_the_last_exception_of_a_prompt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        fail(torch.ones(3))
    except ValueError as error:
        monkeypatch.setattr(sys, "last_traceback", error.__traceback__.tb_next, raising=False)  # type: ignore[union-attr]
        tensor = error.__traceback__.tb_next.tb_frame.f_locals["inside"]  # type: ignore[union-attr]
    one = next(one for one in holders(tensor) if one.kind == "traceback")
    assert (one.links[0].kind, one.links[0].name, one.links[0].type_name) == (
        "global",
        "last_traceback",
        "sys",
    )


def test_a_log_record_is_told_with_the_logging_call() -> None:
    records: list[logging.LogRecord] = []
    logger = logging.Logger("train")  # noqa: LOG001 - one that outlives no test
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        fail(torch.ones(3))
    except ValueError as error:
        logger.exception("skipped")
        tensor = error.__traceback__.tb_next.tb_frame.f_locals["inside"]  # type: ignore[union-attr]
    one = holders(tensor)[0]
    link = next(link for link in one.links if link.kind == "log_record")
    assert (one.kind, link.name, link.type_name) == ("log_record", "exc_info", "logger train")
    assert one.code == 'logger.exception("skipped")'


def test_a_suspended_generator_is_told() -> None:
    def batches() -> Iterator[int]:
        batch = torch.ones(3)
        yield 1
        yield int(batch.sum())

    generator = batches()
    next(generator)
    keep(generator)
    batch = generator.gi_frame.f_locals["batch"]  # type: ignore[attr-defined]
    del generator
    best, rest = held(batch)
    assert [(one.kind, one.name, one.type_name) for one in rest] == [
        ("generator", "batch", "batches")
    ]
    assert best.code == "batch = torch.ones(3)"


def tensor_of(length: int) -> torch.Tensor:
    """The one tensor of a length, whoever holds it."""
    (one,) = (t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == (length,))
    return one


@pytest.mark.parametrize(
    "around", [iter, enumerate, lambda batches: zip(range(9), batches, strict=False)]
)
def test_a_generator_that_a_loop_goes_through_is_told_without_a_name_of_its_own(
    around: Callable[[Iterator[torch.Tensor]], Iterable[object]],
) -> None:
    """Only the interpreter refers to it, or to what is put around it."""

    def batches() -> Iterator[torch.Tensor]:
        ready = [torch.ones(1237)]
        for _ in range(2):
            yield ready[0].sum()

    for _ in around(batches()):
        chains = [one.links for one in holders(tensor_of(1237))]
        named = [[(link.kind, link.name) for link in links] for links in chains]
        assert named == [[("generator", "ready"), ("item", "0")]]


@pytest.mark.parametrize(
    "around", [iter, enumerate, lambda batches: zip(range(9), batches, strict=False)]
)
def test_what_a_cycle_keeps_that_a_loop_goes_through_is_told(
    around: Callable[[Iterator[torch.Tensor]], Iterable[object]],
) -> None:
    """``for batch in cycle(loader)``: no name leads to the iterator, or to what is around it."""
    for number, _ in enumerate(around(itertools.cycle(torch.ones(1241 + n) for n in range(9)))):
        if number == 3:
            chains = [one.links for one in holders(tensor_of(1242))]
            named = [[(link.kind, link.name) for link in links] for links in chains]
            assert named == [[("iterator", "itertools.cycle"), ("item", "1")]]
            return


def test_a_metaclass_of_what_is_put_around_a_generator_is_not_asked() -> None:
    questions: list[str] = []

    class Asked(type):
        def __getattribute__(cls, name: str) -> object:
            questions.append(name)
            return super().__getattribute__(name)

    class Around(metaclass=Asked):
        def __init__(self, batches: Iterator[torch.Tensor]) -> None:
            self.batches = batches

        def __iter__(self) -> Iterator[torch.Tensor]:
            return self

        def __next__(self) -> torch.Tensor:
            return next(self.batches)

    def batches() -> Iterator[torch.Tensor]:
        ready = [torch.ones(1239)]
        yield ready[0].sum()

    for _ in Around(batches()):
        questions.clear()
        (holder,) = holders(tensor_of(1239))
        assert "__next__" not in questions
        assert ("generator", "ready") in [(link.kind, link.name) for link in holder.links]


FILLS_A_TUPLE = """
import torch
from memprof.referrers.find_holders import find_holders

def parts():
    yield "the first"
    part = torch.ones(1251)
    key = part.untyped_storage()._cdata
    yield part
    del part
    (holder,) = find_holders([key], budget_s=60.0)[0]
    yield [(link.kind.value, link.name) for link in holder.links]

first, part, links = tuple(parts())
print(first, len(part), links)
"""


def test_a_tuple_that_is_being_filled_is_not_gone_through() -> None:
    """It has room for ten items, of which two are there: to read the third one crashes.

    In a process without another thread, where the collector lists such a tuple.
    """
    run = subprocess.run(
        [sys.executable, "-c", FILLS_A_TUPLE], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (
        0,
        "the first 1251 [('unknown', ''), ('item', '1')]\n",
    )


def test_a_generator_that_only_a_cycle_keeps_is_none_that_a_loop_goes_through() -> None:
    class Loader:
        def __init__(self) -> None:
            self.iterator = self.batches()

        def batches(self) -> Iterator[int]:
            batch = torch.ones(1238)
            yield len(batch)

    next(Loader().iterator)
    (holder,) = holders(tensor_of(1238))
    assert [link.kind for link in holder.links][:1] == ["cycle"]


def test_iterators_of_one_program_are_told_apart_in_one_pass() -> None:
    """One that a loop goes through, and one that a cycle keeps."""

    class Loader:
        def __init__(self) -> None:
            self.iterator = itertools.cycle([torch.ones(1239)])

    loader = Loader()
    loader.loader = loader  # type: ignore[attr-defined]
    next(loader.iterator)
    del loader
    for _, kept in zip(range(1), itertools.cycle([torch.ones(1240)]), strict=False):
        assert len(kept) == 1240
        del kept
        in_cycle, in_loop = find_holders([tensor_of(1239), tensor_of(1240)])
    assert in_cycle[0].kind == LinkKind.CYCLE
    assert in_loop[0].links[0].kind == LinkKind.ITERATOR


def test_memprof_leaves_no_iterator_that_a_search_would_look_for() -> None:
    """A pass over all objects each time, a fifth of a search, for what no program has made."""
    own = [module for name, module in sys.modules.items() if name.split(".")[0] == "memprof"]
    variables = [one for module in own for one in vars(module).values()]
    assert own
    assert not [one for one in variables if isinstance(one, KEEPING_ITERATORS)]


def test_a_suspended_coroutine_is_told() -> None:
    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    async def job() -> float:
        waiting = torch.ones(3)
        await pause()
        return float(waiting.sum())

    coroutine = job()
    coroutine.send(None)
    keep(coroutine)
    waiting = coroutine.cr_frame.f_locals["waiting"]
    coroutine = None
    _, rest = held(waiting)
    assert [(one.kind, one.name, one.type_name) for one in rest] == [
        ("coroutine", "waiting", "job")
    ]
    KEPT["value"].close()  # type: ignore[attr-defined]


def test_a_local_of_another_thread_is_told_with_the_thread() -> None:
    ready, done = threading.Event(), threading.Event()
    box: list[object] = []

    def work() -> None:
        result = torch.ones(3)
        box.append(result.untyped_storage()._cdata)
        ready.set()
        done.wait(300)
        del result

    thread = threading.Thread(target=work, name="loader-7")
    thread.start()
    assert ready.wait(300)
    (found,) = find_holders(box)
    done.set()
    thread.join()
    assert [(one.kind, one.name) for one in found[0].links] == [
        ("thread", "loader-7"),
        ("local", "result"),
    ]
    assert found[0].code == "result = torch.ones(3)"


def test_an_attribute_of_a_thread_is_told() -> None:
    tensor = torch.ones(3)
    keep(threading.Thread(target=print, args=(tensor,)))
    _, rest = held(tensor)
    assert [(one.kind, one.name) for one in rest] == [("thread", "_args"), ("item", "0")]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPython shell that runs; its namespace, laid out as IPython's own is, is kept by name."""
    monkeypatch.setitem(sys.modules, MODULE, sys)  # to be taken out again
    keep(start_shell())


@pytest.mark.usefixtures("shell")
def test_the_results_of_a_notebook_are_told_by_the_shell_that_runs() -> None:
    tensor = torch.ones(3)
    KEPT["value"]["Out"][7] = tensor
    best, rest = held(tensor)
    assert best.kind == "notebook"
    assert [(one.kind, one.name) for one in rest] == [("notebook", "Out"), ("item", "7")]
    assert best.description.startswith("dict `Out[7]`") or "the notebook's `Out" in best.description


def test_a_dict_with_a_key_out_is_no_notebook() -> None:
    tensor = torch.ones(3)
    keep({"In": ["", "x"], "Out": {1: tensor}, "_oh": {}})
    best, rest = held(tensor)
    assert best.kind == "item"
    assert [(one.kind, one.name) for one in rest] == [("item", "'Out'"), ("item", "1")]


@pytest.mark.usefixtures("shell")
def test_a_variable_that_only_looks_like_a_result_is_no_notebooks() -> None:
    tensor = torch.ones(3)
    KEPT["value"]["_8"] = tensor  # no cell's: the shell has no such result
    best, _ = held(tensor)
    assert best.kind == "item"


def test_objects_without_a_name_for_it_are_followed_through() -> None:
    tensor = torch.ones(3)
    keep(iter([tensor]))
    _, rest = held(tensor)
    assert [one.kind for one in rest] == ["unknown", "item"]
    assert rest[0].type_name == "list_iterator"


def test_no_user_code_runs() -> None:
    class Hostile(dict):  # type: ignore[type-arg]
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __iter__(self) -> Iterator[object]:
            raise AssertionError

        def items(self) -> object:  # type: ignore[override]
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise AssertionError

    tensor = torch.ones(3)
    hostile = Hostile()
    dict.__setitem__(hostile, "deep", tensor)
    keep(hostile)
    del hostile
    _, rest = held(tensor)
    assert [(one.kind, one.name, one.type_name, one.length) for one in rest] == [
        ("item", "'deep'", "Hostile", 1)
    ]


def test_only_tensors_have_holders() -> None:
    with pytest.raises(SettingsError, match="takes a tensor, not list"):
        holders([])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="holders of a str"):
        find_holders(["x"])


def test_source_lines_are_those_of_the_file() -> None:
    tensor = torch.ones(3)
    keep([tensor, tensor])
    best, _ = held(tensor)
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    assert lines[best.line - 1].strip() == best.code == 'KEPT["value"] = value'
    assert best.filename.endswith(HERE)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one]], ids=["itself", "in_a_list"])
def test_what_an_array_of_objects_keeps_is_found(wrap):
    rows = np.empty((3, 2), dtype=object)
    tensor = torch.randn(4)
    rows[1, 0] = wrap(tensor)
    keep([rows])
    target = weakref.ref(tensor.untyped_storage())
    del tensor, rows
    (found, *_) = find_holders([target])[0]
    assert "ndarray" in found.description
    assert [(one.kind, one.name) for one in found.links[2:4]] == [("item", "0"), ("item", "2")]
    assert found.links[3].length == 6


def test_a_step_that_comes_again_and_again_is_said_once():
    class Node:
        def __init__(self, parents):
            self.parents, self.value = parents, None

    node = Node([])
    node.value = torch.randn(4)
    target = weakref.ref(node.value.untyped_storage())
    for _ in range(12):
        node = Node([node])
    keep(node)
    (found, *_) = find_holders([target])[0]
    assert "([0].parents x11)[0].value" in found.description
    assert found.description.count("parents") < 4


def test_a_cycle_through_a_tuple_is_seen_while_another_thread_runs() -> None:
    """No list may hold a tuple with a single reference then: a thread may be building it."""
    node: dict[str, object] = {"kept": (torch.ones(1240),)}
    node["self"] = (node,)
    del node
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        (holder,) = holders(tensor_of(1240))
    finally:
        over.set()
        thread.join()
    names = [(link.kind, link.name) for link in holder.links]
    ring = [("item", "'self'"), ("item", "0")]
    assert names == [("cycle", ""), *ring, *ring, ("item", "'kept'"), ("item", "0")]
    gc.collect()


def test_a_thread_that_builds_tuples_is_not_disturbed_by_a_search() -> None:
    results: list[object] = []
    over = threading.Event()

    def build() -> None:
        while not over.is_set():
            try:
                results.append(len(tuple(over.wait(0.001) for _ in range(13))))
            except SystemError as error:
                results.append(error)

    keep(torch.ones(1241))
    thread = threading.Thread(target=build)
    thread.start()
    try:
        for _ in range(3):
            best = holders(KEPT["value"])[0]  # type: ignore[arg-type]
            assert best.links[0].name == "KEPT"
    finally:
        over.set()
        thread.join()
    assert set(results) == {13}


LOGGED = """
import gc
import logging
from logging.handlers import MemoryHandler
import torch
import torch._dynamo  # whose classes lead to many a cache, and to logging's own
import memprof

def scored():
    logging.getLogger("payments").setLevel(logging.DEBUG)
    logging.getLogger("payments").addHandler(MemoryHandler(10_000))
    logging.getLogger("payments.scorer").debug("rows %s", torch.ones(77))

def kept():
    return next(one for one in gc.get_objects() if type(one) is torch.Tensor and len(one) == 77)

def show():
    rows = kept()
    for holder in memprof.holders(rows):
        if holder.kind != "local":
            print([link.kind.value for link in holder.links])
            print([link.name for link in holder.links])

scored()
show()
"""


def test_what_a_librarys_class_has_is_named_by_its_module() -> None:
    # Not in a fork: what its server has made is left out of a search there.
    done = subprocess.run(
        [sys.executable, "-c", LOGGED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kinds, names = map(ast.literal_eval, done.stdout.splitlines())
    assert "lru_cache" not in kinds
    at = names.index("manager")
    assert names[at : at + 6] == ["manager", "loggerDict", "'payments'", "handlers", "0", "buffer"]
    assert (at, kinds[0]) == (1, "global")
