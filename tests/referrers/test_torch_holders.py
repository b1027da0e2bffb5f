"""Holders that only torch knows: modules, optimizers, graphs, gradients, views, hooks, cycles."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from memprof.chain_description import label
from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.referrers import unreachable
from memprof.referrers.find_holders import find_holders, holders
from memprof.sources.graph_nodes import most_nodes
from tests.referrers.marks import reads_saved

KEPT: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    KEPT.clear()
    gc.collect()


def storage(tensor: torch.Tensor) -> weakref.ref[torch.UntypedStorage]:
    """A target that holds nothing."""
    return weakref.ref(tensor.untyped_storage())


def below(holder: Holder) -> list[Link]:
    """The links below ``KEPT[...]``."""
    assert [one.kind for one in holder.links[:2]] == ["global", "item"]
    return holder.links[2:]


def named(links: list[Link]) -> list[tuple[str, str, str]]:
    return [(one.kind, label(one), one.type_name) for one in links]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))
        self.register_buffer("scale", torch.ones(3))
        self.seen: list[torch.Tensor] = []


def test_parameters_buffers_and_attributes_of_modules_have_dotted_names() -> None:
    KEPT["net"] = net = Net()
    inner = net.layers[1]
    inner.extra = torch.ones(5)
    net.seen.append(torch.ones(6))
    expected = {
        inner.weight: ("parameter", "layers.1.weight", "Net"),
        net.scale: ("buffer", "scale", "Net"),
        inner.extra: ("module_attribute", "layers.1.extra", "Net"),
    }
    seen = net.seen[0]
    del net, inner
    for tensor, link in expected.items():
        best = next(one for one in holders(tensor) if one.links[0].kind == "global")
        assert named(below(best)) == [link]
    assert named(below(holders(seen)[0])) == [
        ("module_attribute", "seen", "Net"),
        ("item", "0", "list"),
    ]


class Scores(torch.nn.ModuleDict):
    """It has `clear` and `pop`, as every module dict, and empties what is in it by `reset`."""

    def reset(self) -> None:
        for score in self.values():
            score.reset()


class Score(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[torch.Tensor] = [torch.ones(5)]

    def reset(self) -> None:
        self.values = []


class Judge(torch.nn.Module):
    """It tears down other things than its score."""

    def __init__(self, parts: dict[str, Score]) -> None:
        super().__init__()
        self.one = parts["one"]

    def __getitem__(self, name: str) -> Score:
        assert name == "one"
        return self.one

    def remove_hooks(self) -> None: ...

    def teardown(self) -> None: ...


@pytest.mark.parametrize(
    ("outer", "releases"),
    [
        (Scores, ("reset",)),
        (torch.nn.ModuleDict, ("clear", "pop", "reset")),
        (Judge, ("reset",)),
    ],
)
def test_a_modules_path_has_the_ways_out_of_both_of_its_ends(
    outer: type[torch.nn.ModuleDict | Judge], releases: tuple[str, ...]
) -> None:
    KEPT["scores"] = scores = outer({"one": Score()})
    value = scores["one"].values[0]
    del scores
    link = below(holders(value)[0])[0]
    assert (link.name, link.releases) == ("one.values", releases)


def test_optimizer_state_is_told_by_its_name() -> None:
    net = torch.nn.Linear(2, 2)
    KEPT["opt"] = opt = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    opt.step()
    state = opt.state[net.weight]["exp_avg"]
    weight = net.weight
    del opt
    best = next(one for one in holders(state) if one.links[0].kind == "global")
    assert best.kind == "optimizer_state"
    assert named(below(best)) == [("optimizer_state", "exp_avg", "Adam")]
    found = [one for one in holders(weight, limit=9) if one.links[0].name == "KEPT"]
    assert {one.links[2].name for one in found} == {"state (key)", "param_groups[0]['params'][0]"}
    assert holders(weight)[0].description.startswith("parameter `weight` of `Linear`, local `net`")


@reads_saved
def test_a_saved_tensor_is_told_with_the_tensor_whose_graph_keeps_it() -> None:
    x = torch.randn(4, requires_grad=True)
    hidden = x.exp()
    target = storage(hidden)
    KEPT["loss"] = (hidden * 2).sum()
    del hidden
    ((best,),) = find_holders([target])
    assert named(below(best)) == [
        ("autograd_node", "SumBackward0 -> MulBackward0 -> ExpBackward0", ""),
        ("saved_tensor", "result", "ExpBackward0"),
    ]
    assert best.kind == "saved_tensor"
    assert best.code == 'KEPT["loss"] = (hidden * 2).sum()'
    assert best.description == (
        "saved tensor `result` of ExpBackward0, kept by the autograd graph "
        "(SumBackward0 -> MulBackward0 -> ExpBackward0), "
        f"kept by dict `KEPT` (1 items), global `KEPT` of {__name__}"
    )


def test_a_graph_that_backward_freed_keeps_no_saved_tensor() -> None:
    x = torch.randn(4, requires_grad=True)
    hidden = x.exp()
    target = storage(hidden)
    KEPT["loss"] = loss = (hidden * 2).sum()
    loss.backward()
    del hidden
    assert find_holders([target]) == [()]


@reads_saved
def test_long_graphs_are_walked_without_recursion() -> None:
    x = torch.randn(4, requires_grad=True)
    total = x.exp()
    target = storage(total)
    nodes = most_nodes(20_000) // 2
    assert nodes > sys.getrecursionlimit()
    for _ in range(nodes):
        total = total + 1
    KEPT["total"] = total
    del total
    ((best,),) = find_holders([target], budget_s=20)
    assert below(best)[0].nodes == (("AddBackward0", nodes), ("ExpBackward0", 1))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(x + 1)
        ctx.extra = x * 3
        return x * x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        return grad


@reads_saved
def test_ctx_attributes_and_saved_tensors_of_a_custom_function_are_told() -> None:
    KEPT["out"] = out = Square.apply(torch.randn(4, requires_grad=True))
    extra, saved = storage(out.grad_fn.extra), storage(out.grad_fn.saved_tensors[0])
    del out
    (first,), (second,) = find_holders([extra, saved])
    assert named(below(first)) == [
        ("autograd_node", "SquareBackward", "Tensor"),
        ("ctx_attribute", "extra", "SquareBackward"),
    ]
    assert first.code == "ctx.extra = x * 3"
    assert named(below(second))[-1] == ("saved_tensor", "tensors[0]", "SquareBackward")


@reads_saved
def test_saved_tensors_with_hooks_are_never_unpacked() -> None:
    calls: list[str] = []

    def unpack(packed: dict[str, torch.Tensor]) -> torch.Tensor:
        calls.append("unpack")
        return packed["deep"]

    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: {"deep": tensor.clone()}, unpack):
        KEPT["out"] = x.exp()
    packed = KEPT["out"].grad_fn._raw_saved_result.data["deep"]  # type: ignore[attr-defined]
    target = storage(packed)
    del packed
    ((best,),) = find_holders([target])
    assert calls == []
    assert [one.kind for one in below(best)] == ["autograd_node", "saved_tensor", "item"]
    assert below(best)[-1].name == "'deep'"


def test_a_checkpointed_block_is_not_computed_again() -> None:
    calls: list[int] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().exp()

    x = torch.randn(4, requires_grad=True)
    KEPT["out"] = checkpoint(block, x, use_reentrant=False)
    holders(x)
    find_holders([storage(torch.ones(2))])
    assert calls == [1]


def test_a_gradient_is_told_with_its_parameter() -> None:
    KEPT["net"] = net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    target = storage(net.bias.grad)
    del net
    ((best,),) = find_holders([target])
    assert named(below(best)) == [("parameter", "bias", "Linear"), ("grad", "grad", "Parameter")]
    assert best.description.startswith(
        ".grad of a Parameter, kept by parameter `bias` of `Linear` (`KEPT['net'].bias`)"
    )


def test_a_view_says_how_little_it_shows() -> None:
    features = torch.zeros(8, 16)
    KEPT["token"] = features[:, 0]
    target = storage(features)
    del features
    ((best,),) = find_holders([target])
    assert named(below(best)) == [("base", "32 of 512 bytes", "Tensor")]
    assert best.description.startswith("a view that shows 32 of 512 bytes, kept by dict `KEPT`")


@pytest.mark.parametrize("how", ["inference", "data"])
def test_a_view_without_a_base_says_so_too(how: str) -> None:
    """Inference mode remembers no base, and the first row begins where the whole does."""
    with torch.inference_mode(how == "inference"):
        features = torch.zeros(8, 16)
        KEPT["row"] = features[0] if how == "inference" else features[0].data
    target = storage(features)
    del features
    ((best,),) = find_holders([target])
    assert best.description.startswith("a view that shows 64 of 512 bytes, kept by dict `KEPT`")


def test_module_hooks_are_told_with_the_place_of_registration() -> None:
    def register(net: torch.nn.Module) -> weakref.ref[torch.UntypedStorage]:
        seen = torch.ones(3)

        def watch(*_: object) -> None:
            seen.add_(0)

        net.register_forward_hook(watch)
        return storage(seen)

    KEPT["net"] = torch.nn.Linear(2, 2)
    ((best,),) = find_holders([register(KEPT["net"])])  # type: ignore[arg-type]
    assert best.kind == "hook"
    assert [(one.kind, one.name) for one in below(best)] == [
        ("hook", "forward hook"),
        ("closure", "seen"),
    ]
    assert below(best)[0].type_name == "Linear"
    assert best.code == "net.register_forward_hook(watch)"


def test_tensor_hooks_are_told() -> None:
    def register(leaf: torch.Tensor) -> weakref.ref[torch.UntypedStorage]:
        kept = torch.ones(3)

        def hook(grad: torch.Tensor) -> torch.Tensor:
            return grad * kept

        leaf.register_hook(hook)
        return storage(kept)

    KEPT["leaf"] = torch.ones(3, requires_grad=True)
    ((best,),) = find_holders([register(KEPT["leaf"])])  # type: ignore[arg-type]
    assert best.kind == "hook"
    assert [(one.kind, one.name) for one in below(best)] == [
        ("hook", "tensor hook"),
        ("closure", "kept"),
    ]
    assert best.code == "leaf.register_hook(hook)"


def test_post_accumulate_grad_hooks_are_told() -> None:
    kept = torch.ones(3)
    KEPT["leaf"] = leaf = torch.ones(3, requires_grad=True)
    leaf.register_post_accumulate_grad_hook(lambda _: kept.add_(1))
    del leaf
    best = next(one for one in holders(kept) if one.kind == "hook")
    assert best.code == "leaf.register_post_accumulate_grad_hook(lambda _: kept.add_(1))"


class Node:
    """Something that can refer to itself."""


@pytest.mark.parametrize("with_dicts", [False, True])
def test_a_cycle_that_waits_for_the_collector_is_told_with_its_links(with_dicts: bool) -> None:
    node = Node()
    node.other = Node()  # type: ignore[attr-defined]
    node.other.back = node  # type: ignore[attr-defined]
    node.tensor = torch.ones(3)  # type: ignore[attr-defined]
    if with_dicts:  # which Python 3.11 and later make when they are asked for
        assert vars(node)
        assert vars(node.other)  # type: ignore[attr-defined]
    target = storage(node.tensor)  # type: ignore[attr-defined]
    del node
    ((best,),) = find_holders([target])
    assert best.kind == "cycle"
    assert named(best.links) == [
        ("cycle", "", ""),
        ("attribute", "other", "Node"),
        ("attribute", "back", "Node"),
        ("attribute", "tensor", "Node"),
    ]
    assert "only the garbage collector frees" in best.description
    gc.collect()
    assert find_holders([target]) == [()]


class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def, override]
        ctx.out = out = x * 2
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        return grad


def test_a_cycle_through_ctx_is_one_that_the_collector_frees() -> None:
    out = KeepsOutput.apply(torch.randn(3, requires_grad=True))
    target = storage(out)
    del out
    ((best,),) = find_holders([target])
    assert best.kind == "cycle"
    assert [one.kind for one in best.links] == ["cycle", "autograd_node", "ctx_attribute"]
    assert best.code == "ctx.out = out = x * 2"
    gc.collect()
    assert target() is None


class KeepsOutputAmongOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def, override]
        ctx.cache = 3, {"out": x * 2}
        return ctx.cache[1]["out"]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        return grad


def test_so_is_one_through_a_tuple_of_ctx_where_graphs_are_too_many_to_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unreachable, "MAX_STARTS", 0)
    out = KeepsOutputAmongOthers.apply(torch.randn(3, requires_grad=True))
    target = storage(out)
    del out
    ((best,),) = find_holders([target])
    kinds = ["cycle", "autograd_node", "ctx_attribute", "item", "item"]
    assert [one.kind for one in best.links] == kinds
    assert best.code == 'ctx.cache = 3, {"out": x * 2}'
    gc.collect()
    assert target() is None


def test_a_cycle_through_ctx_is_told_where_graphs_are_too_many_to_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unreachable, "MAX_STARTS", 0)
    out = KeepsOutput.apply(torch.randn(3, requires_grad=True))
    lone = (torch.randn(4, requires_grad=True) * 2).exp()
    targets = [storage(out), storage(lone)]
    lone.register_hook(lambda grad, own=lone: grad * own)
    del out, lone
    (best,), (other,) = find_holders(targets)
    assert [one.kind for one in best.links] == ["cycle", "autograd_node", "ctx_attribute"]
    assert best.code == "ctx.out = out = x * 2"
    assert not other.is_named
    gc.collect()


def test_a_cycle_through_cpp_is_told_apart() -> None:
    def closes_over_itself() -> weakref.ref[torch.UntypedStorage]:
        z = torch.randn(3, requires_grad=True) * 2
        z.register_hook(lambda grad: grad * z)
        return storage(z)

    target = closes_over_itself()
    ((best,),) = find_holders([target])
    assert best.kind == "cpp_cycle"
    assert [one.kind for one in best.links] == ["cpp_cycle", "hook", "closure"]
    gc.collect()
    assert target() is not None


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_a_gradient_with_a_graph_that_leads_back_is_a_cpp_cycle() -> None:
    x = torch.randn(3, requires_grad=True)
    x.pow(3).sum().backward(create_graph=True)
    target = storage(x)
    del x
    ((best,),) = find_holders([target])
    assert best.kind == "cpp_cycle"
    assert {"grad", "saved_tensor"} <= {one.kind for one in best.links}
    assert best.code == "x.pow(3).sum().backward(create_graph=True)"


def test_what_only_cpp_owns_has_no_python_owner() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        weight.requires_grad_()
        with torch.enable_grad():
            x = torch.mm(torch.randn(4, 4), weight)
        del x
        found = [
            one
            for one in gc.get_objects()
            if type(one) is torch.Tensor and one.dtype == torch.bfloat16
        ]
        targets = [storage(one) for one in found]
        del found
        results = find_holders(targets)
    assert all(one.kind == "unknown" for (one,) in results)
    assert all("no Python owner found" in one.description for (one,) in results)


def test_what_a_list_that_is_being_made_has_is_told_with_what_it_shows_of_it() -> None:
    found = []

    def look(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if number == 3:
            found.extend(find_holders(keys[:1], budget_s=60.0))
        whole = torch.zeros(64, 64)
        keys.append(storage(whole))
        return whole.diagonal(), torch.ones(2)

    keys: list[object] = []
    made = [look(number) for number in range(4)]
    ((best,),) = found
    assert len(made) == 4
    assert [one.kind for one in best.links] == ["unknown", "item", "item", "base"]
    view = best.links[-1]
    assert (view.shown_bytes, view.storage_bytes) == (64 * 4, 64 * 64 * 4)


def test_tensors_without_storage_can_be_asked_for() -> None:
    KEPT["sparse"] = torch.eye(3).to_sparse()
    best = holders(KEPT["sparse"])[0]  # type: ignore[arg-type]
    assert best.links[0].name == "KEPT"


def test_a_subclass_runs_none_of_its_code() -> None:
    calls: list[object] = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    KEPT["loud"] = loud = torch.randn(3, requires_grad=True).as_subclass(Loud)
    calls.clear()
    best = holders(loud)
    assert calls == []
    assert best[0].links[0].name == "KEPT"


def test_many_targets_are_answered_in_order() -> None:
    KEPT["many"] = many = [torch.ones(2) for _ in range(100)]
    keys = [one.untyped_storage()._cdata for one in many]
    del many
    found = find_holders([*keys, 12345])
    assert [one[0].links[-1].name for one in found[:-1]] == [str(at) for at in range(100)]
    assert found[-1][0].description == "no Python owner found"


def test_every_kind_is_one_of_the_run_file_s_and_reads_as_a_string() -> None:
    KEPT["x"] = x = torch.ones(2)
    kinds = [one.kind for holder in holders(x) for one in holder.links]
    assert {type(kind) for kind in kinds} == {LinkKind}
    assert f"{kinds[0]} {kinds[0]!s}" == "global global"
    assert json.loads(json.dumps(kinds)) == kinds


@reads_saved
def test_what_a_function_of_vjp_has_saved_is_found_through_the_wrappers_of_torch_func():
    pullbacks = []
    weight = torch.randn(8, 8)

    def add():
        hidden = torch.randn(4, 8)
        _, pullback = torch.func.vjp(lambda w: torch.tanh(hidden @ w), weight)
        pullbacks.append(pullback)
        return hidden

    hidden = add()
    (found, *_) = holders(hidden)
    assert "`pullbacks`" in found.description
    assert found.code == "pullbacks.append(pullback)"


@pytest.mark.parametrize(
    ("parts", "shown"), [((64, 192), -1), ((64, 64), 128), ((64,), 64)], ids=str
)
def test_views_that_one_owner_holds_are_told_by_all_that_they_show(
    parts: tuple[int, ...], shown: int
) -> None:
    """A batch that is kept as what comes before and what is to be foretold."""
    whole = torch.zeros(256, 16)
    views = whole.split([*parts, 256 - sum(parts)])[: len(parts)]
    KEPT["batch"] = (views[0][:1], *views, views[0].detach(), "name")
    key = storage(whole)
    del whole, views
    ((best, *_),) = find_holders([key], budget_s=60.0)
    assert best.links[0].name == "KEPT"
    view = best.links[-1]
    if shown < 0:
        assert view.storage_bytes == -1
    else:
        assert (view.shown_bytes, view.storage_bytes) == (shown * 16 * 4, 256 * 16 * 4)
    KEPT.pop("batch")
