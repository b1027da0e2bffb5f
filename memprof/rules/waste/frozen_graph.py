"""frozen-graph: modules that take no gradient keep activations, because their input takes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.dataflow import Flow, flow_of
from memprof.source_code.program import Place, Program, called_name, calls_in, loaded_names
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import values_of
from memprof.source_code.verbs import LEARNING
from memprof.trace import Category, Phase
from memprof.views.window import Ints, Window

__all__ = ["RULE", "asks_for_checkpointing"]

_INPUTS_ASK = "enable_input_require_grads"
"""Method of transformers' models by which what an embedding returns takes a gradient."""
_CHECKPOINTING = frozenset(("checkpoint", "checkpoint_sequential"))
"""Functions of `torch.utils.checkpoint`."""
_LEAST_SHARE = 0.1
"""Of the peak: a normalization or an embedding that is frozen on purpose keeps less."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenModules(Match):
    """Activations of modules that are not trained, and who asked for their graph."""

    request: Place | None = None
    """The statement that asks for the gradient of an input, which nothing reads."""


class FrozenGraph(WasteRule[FrozenModules]):
    """A frozen model runs ahead of what is trained, and its input asks for a gradient."""

    name = "frozen-graph"
    summary = "a frozen model keeps activations for a gradient that nothing reads"
    fixes = ("detach", "no_grad")

    def matches(self, window: Window) -> Iterator[FrozenModules]:
        """Activations of what runs before anything that is trained.

        Only where a statement of the program asks for the gradient of an input, and none reads it.
        """
        rows = _ahead_of_training(window)
        mask = np.zeros(len(window.lives), dtype=bool)
        mask[rows] = True
        at_peak = mask & window.at_peak
        if not len(rows) or window.share(window.bytes_of(at_peak)) < _LEAST_SHARE:
            return
        request = next(_asked_in_vain(window.programs), None)
        if request is None:
            return
        after = np.append(window.lives.alloc[rows[1:]], window.lives.alloc[rows[-1:]])
        yield FrozenModules(
            row=window.main_site(at_peak),
            rows=rows,
            nbytes=window.bytes_of(at_peak),
            saving=window.replayed(window.ended_at(rows, after)),
            request=request,
        )

    def title(self, match: FrozenModules) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are kept for."""
        return "are activations of modules that take no gradient, kept for that of their input"

    def advice(self, match: FrozenModules, case: Case) -> Iterator[Advice]:
        """Ask for no gradient of the input, or build no graph."""
        why = (
            "no module before the first trained one takes a gradient, and nothing reads the input's"
        )
        request = match.request
        place = (
            case.place_at(request.program.filename, request.line) if request is not None else None
        )
        if place is not None and calls_in(place.statement, _INPUTS_ASK):
            vain = f"only checkpointing needs it, and there is none; {why}"
            yield Advice("detach", f"Leave `{_INPUTS_ASK}()` out: {vain}.", place)
        else:
            yield Advice("detach", f"Leave the input without a gradient: {why}.", place)
        outside = (p for frame, p in case.frames if frame.name.rpartition(".")[2] != "forward")
        outside_site = next(outside, case.site)
        yield Advice(
            "no_grad", f"Or run those modules under `torch.no_grad()`: {why}.", outside_site
        )


def _ahead_of_training(window: Window) -> Ints:
    """Activations of each step's forward passes up to the first module that has a gradient."""
    learns = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    training_modules = np.unique(window.module[learns & (window.module > 0)])
    parameters = window.category == Category.PARAMETER
    untrained = np.setdiff1d(window.module[parameters], np.append(training_modules, 0))
    if not len(training_modules) or not len(untrained):
        return np.zeros(0, dtype=np.int64)
    module_of_label = _module_of_label(window)
    events = np.flatnonzero(np.isin(module_of_label[window.trace.events.label], training_modules))
    first: dict[int, int] = {}
    for event in events[window.phase_of_event[events] == Phase.FORWARD].tolist():
        first.setdefault(int(window.step_of_event[event]), event)
    in_forward = window.category == Category.ACTIVATION
    in_forward &= (window.phase == Phase.FORWARD) & (window.module > 0)
    rows = np.flatnonzero(in_forward)
    begins = np.array([first.get(int(step), -1) for step in window.made_in[rows]], dtype=np.int64)
    return rows[window.lives.alloc[rows] < begins]


def _module_of_label(window: Window) -> Ints:
    at = {name: number for number, name in enumerate(window.owners.module.names)}
    labels = window.trace.tables.labels
    return np.array([at.get(label.module, 0) for label in labels], dtype=np.int64)


def _asked_in_vain(programs: Sequence[Program]) -> Iterator[Place]:
    """``images.requires_grad_(True)``, ``x.requires_grad = True``, with no ``.grad`` of it read."""
    if not any(map(asks_for_checkpointing, programs)):
        for program in programs:
            for call in calls_in(program.tree, _INPUTS_ASK):
                asking = program.at(call.lineno)
                if asking is not None:
                    yield asking
    for program, node in ((one, node) for one in programs for node in one.nodes):
        name = _asked_of(node)
        place = program.place(node) if name and isinstance(node, ast.stmt) else None
        if place is None or _is_parameter(place, name):
            continue
        flow = flow_of(programs, place, name, through=False)
        if not flow.is_lost and not _serves(flow, place):
            yield place


def asks_for_checkpointing(program: Program) -> bool:
    """Whether a file asks for activation checkpointing, which needs an input with a gradient."""
    calls = list(calls_in(program.tree))
    names = {called_name(call) for call in calls}
    switches = {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}
    return bool(names & _CHECKPOINTING) or any(
        name.startswith("gradient_checkpointing") for name in names | switches
    )


def _asked_of(node: ast.AST) -> str:
    """The name whose gradient a statement asks for; empty where it asks for none."""
    if isinstance(node, ast.Expr) and called_name(node.value) == "requires_grad_":
        call = node.value
        assert isinstance(call, ast.Call)
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        off = any(isinstance(value, ast.Constant) and value.value is False for value in arguments)
        receiver = call.func.value if isinstance(call.func, ast.Attribute) and not off else None
        return receiver.id if isinstance(receiver, ast.Name) else ""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        on = isinstance(value, ast.Constant) and value.value is True
        return target.value.id if on and isinstance(target.value, ast.Name) else ""
    if isinstance(target, ast.Name) and isinstance(value, ast.Call):
        settings = [k.value for k in value.keywords if k.arg == "requires_grad"]
        on = any(isinstance(one, ast.Constant) and one.value is True for one in settings)
        return target.id if on or called_name(value) == "requires_grad_" else ""
    return ""


def _is_parameter(place: Place, name: str) -> bool:
    """True if a name goes through parameters: of a module, or of an optimizer's groups."""
    for node in ast.walk(place.scope):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and any(
            isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.target)
        ):
            sources: list[ast.expr | None] = [node.iter]
            for loaded_name in loaded_names(node.iter):
                sources += values_of(place, loaded_name)
            if any(one is not None and _gives_parameters(one) for one in sources):
                return True
    return False


def _gives_parameters(value: ast.expr) -> bool:
    groups = (isinstance(n, ast.Attribute) and n.attr == "param_groups" for n in ast.walk(value))
    return bool(calls_in(value, "parameters", "named_parameters")) or any(groups)


def _serves(flow: Flow, place: Place) -> bool:
    """True if the gradient that a name asks for is read, or an optimizer may read it.

    So it may where the tensor is handed to no call at all: it is thawed for others.
    """
    is_handed_on = False
    for node, scopes in flow.source.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            if isinstance(node.ctx, ast.Load) and flow.carries(node.value, scopes):
                return True
        elif isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            carried = [one for one in arguments if flow.carries(one, scopes)]
            is_handed_on = is_handed_on or bool(carried)
            if carried and _takes_gradients(flow, place, node, carried):
                return True
    return not is_handed_on


def _takes_gradients(flow: Flow, place: Place, call: ast.Call, carried: list[ast.expr]) -> bool:
    """True if a call learns by what it is given: ``autograd.grad``, a parameter, an optimizer.

    An optimizer that is not torch's is told by a class of the program that derives from torch's,
    or by what it is given: a list that the tensor is in.
    """
    if called_name(call) in LEARNING:
        return True
    where = next((p for program in flow.source.programs if (p := program.place(call))), place)
    name = qualified_name(where, call.func)
    if name.startswith("torch."):
        return name.startswith("torch.optim.") or name.endswith(".Parameter")
    classes = [
        class_
        for program in flow.source.programs
        for class_ in program.classes()
        if class_.name == called_name(call)
    ]
    if classes:
        return any(
            qualified_name(inside, base).startswith("torch.optim.")
            for class_ in classes
            for program in flow.source.programs
            if (inside := program.place(class_)) is not None
            for base in class_.bases
        )
    return bool(name) and any(isinstance(one, (ast.List, ast.Tuple)) for one in carried)


RULE = FrozenGraph()
