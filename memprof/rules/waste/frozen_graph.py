"""frozen-graph: modules that take no gradient keep activations, because their input takes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.dataflow import Flow, flow_of, flow_of_value
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    root_name,
)
from memprof.source_code.scopes import Scopes, parameters, qualified_name
from memprof.source_code.values import values_of
from memprof.source_code.verbs import LEARNING
from memprof.trace import Category, Phase
from memprof.views.window import Ints, Window

__all__ = ["RULE", "asks_for_checkpointing"]

_INPUTS_ASK = "enable_input_require_grads"
"""Method of transformers' models by which what an embedding returns takes a gradient."""
_HOOKED = "register_forward_hook"
"""Method of modules that is given a function of the module, its arguments, and what it returns."""
_READING_HOOKS = frozenset(("register_hook", "register_post_accumulate_grad_hook"))
"""Methods of tensors that are given a function of the gradient."""
_BACKWARD_HOOKS = (
    *("register_backward_hook", "register_full_backward_hook"),
    *("register_full_backward_pre_hook", "register_multi_grad_hook"),
)
"""The like of modules, which have gradients of what they return as long as their graph is built."""
_OF_MODULES_ALONE = frozenset(
    (
        *("children", "eval", "load_state_dict", "modules", "named_parameters", "parameters"),
        *("state_dict", "train"),
    )
)
"""Methods of modules that a tensor has not."""
_CHECKPOINTING = frozenset(("checkpoint", "checkpoint_sequential"))
"""Functions of `torch.utils.checkpoint`."""
_LEAST_SHARE = 0.1
"""Of the peak: a normalization or an embedding that is frozen on purpose keeps less."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenModules(Match):
    """Activations of modules that are not trained, and who asked for their graph."""

    request: Place | None = None
    """The statement that asks for the gradient of an input, which nothing reads."""
    needless: str = ""
    """What asks for it on behalf of checkpointing, of which there is none."""


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
        asking = next(_asked_in_vain(window.programs), None)
        if asking is None:
            return
        request, needless = asking
        after = np.append(window.lives.alloc[rows[1:]], window.lives.alloc[rows[-1:]])
        yield FrozenModules(
            row=window.main_site(at_peak),
            rows=rows,
            nbytes=window.bytes_of(at_peak),
            saving=window.replayed(window.ended_at(rows, after)),
            request=request,
            needless=needless,
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
        if place is not None and match.needless:
            vain = f"only checkpointing needs it, and there is none; {why}"
            yield Advice("detach", f"Leave {match.needless} out: {vain}.", place)
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


def _asked_in_vain(programs: Sequence[Program]) -> Iterator[tuple[Place, str]]:
    """``images.requires_grad_(True)``, ``x.requires_grad = True``, with no ``.grad`` of it read.

    And what asks for it, where that only serves checkpointing. None where modules have hooks that
    read gradients.
    """
    if any(calls_in(program.tree, *_BACKWARD_HOOKS) for program in programs):
        return
    if not any(map(asks_for_checkpointing, programs)):
        yield from _asked_for_checkpointing(programs)
    for program, node in ((one, node) for one in programs for node in one.nodes):
        name = _asked_of(node)
        place = program.place(node) if isinstance(node, (ast.stmt, ast.Call)) else None
        if place is None or (name and _is_parameter(place, name)):
            continue
        if name:
            flow = flow_of(programs, place, name, through=False)
        elif not _asked_of(place.statement) and (tensor := _asked_in(place, node)) is not None:
            if _reads_gradients(programs) or _is_of_module(programs, place, tensor):
                continue
            flow = _flow_of_request(programs, place, node, tensor)
        else:
            continue
        if not flow.is_lost and not _serves(flow, place) and not _is_module(flow):
            yield place, ""


def _asked_in(place: Place, node: ast.AST) -> ast.expr | None:
    """The tensor whose gradient is asked for in the midst of a statement, or by an attribute of it.

    ``x.detach().requires_grad_()`` wherever it stands, ``torch.randn(n, requires_grad=True)``, and
    ``batch["x"].requires_grad = True``.
    """
    if isinstance(node, ast.Call):
        if called_name(node) == "requires_grad_":
            return (
                node.func.value if isinstance(node.func, ast.Attribute) and _is_on(node) else None
            )
        name = qualified_name(place, node.func)
        is_tensor = name.startswith("torch.") and not name.endswith(".Parameter")
        return node if is_tensor and _is_true(keyword(node, "requires_grad")) else None
    targets = bound_names(node) if isinstance(node, ast.Assign) and _is_true(node.value) else []
    asking = (one for one in targets if isinstance(one, ast.Attribute))
    return next((one.value for one in asking if one.attr == "requires_grad"), None)


def _flow_of_request(
    programs: Sequence[Program], place: Place, node: ast.AST, tensor: ast.expr
) -> Flow:
    """Where a tensor goes that asks for its gradient in the midst of a statement."""
    if not isinstance(node, ast.Call):
        return flow_of(programs, place, ast.unparse(tensor), through=False)
    flow = flow_of_value(programs, place, node, through=False)
    if isinstance(tensor, (ast.Name, ast.Subscript, ast.Attribute)):  # it is the same tensor
        flow.give(tensor, tuple(one for one in place.around if isinstance(one, FUNCTIONS)))
        flow.follow()
    return flow


def _is_of_module(programs: Sequence[Program], place: Place, tensor: ast.expr) -> bool:
    """Whether it may be a parameter: a variable of a loop over them, or a module's attribute."""
    name = root_name(tensor)
    if name and _is_parameter(place, name):
        return True
    if isinstance(tensor, ast.Call):
        return False
    if not name or name == "self":
        return True
    is_attribute = isinstance(tensor, ast.Attribute)
    return is_attribute and _is_module(flow_of(programs, place, name, through=False))


def _is_module(flow: Flow) -> bool:
    """Whether what flows is called, or has methods that modules have and tensors have not."""
    return any(
        isinstance(node, ast.Call)
        and (
            flow.carries(node.func, scopes)
            if not isinstance(node.func, ast.Attribute)
            else _is_of_modules(flow, node.func, scopes)
        )
        for node, scopes in flow.source.nodes
    )


def _is_of_modules(flow: Flow, function: ast.Attribute, scopes: Scopes) -> bool:
    if function.attr in _OF_MODULES_ALONE and flow.carries(function.value, scopes):
        return True
    return flow.carries(function, scopes)


def _asked_for_checkpointing(programs: Sequence[Program]) -> Iterator[tuple[Place, str]]:
    """Statements that ask for the gradient of what an embedding returns, and what they do it by.

    That is a method of transformers, or a hook of the program's own.
    """
    for program in programs:
        for call in calls_in(program.tree, _INPUTS_ASK):
            asking = program.place(call)
            if asking is not None:
                yield asking, f"`{_INPUTS_ASK}()`"
        for call in calls_in(program.tree, _HOOKED):
            for place, name in _asked_by_hook(programs, program, call):
                flow = flow_of(programs, place, name, through=False)
                # What is returned is handed on in any case.
                if not flow.is_lost and not _is_read(flow, place):
                    yield place, "the hook"


def _asked_by_hook(
    programs: Sequence[Program], program: Program, call: ast.Call
) -> Iterator[tuple[Place, str]]:
    """Where a hook asks for the gradient of what its module returns, and the name of that."""
    hook = next(arguments(call), None)
    functions: list[tuple[Program, ast.AST]] = []
    if isinstance(hook, ast.Lambda):
        functions = [(program, hook)]
    elif isinstance(hook, (ast.Name, ast.Attribute)):
        name = ast.unparse(hook).rpartition(".")[2]
        functions = [(one, function) for one in programs for function in one.functions(name)]
    if len(functions) != 1:
        return
    ((where, function),) = functions
    names = [one for one in parameters(function) if one not in ("self", "cls")]
    returned = names[-1] if len(names) == len(("module", "args", "output")) else ""
    for asking in calls_in(function, "requires_grad_"):
        receiver = asking.func.value if isinstance(asking.func, ast.Attribute) else None
        place = where.place(asking)
        if place is not None and _is_on(asking) and getattr(receiver, "id", None) == returned:
            yield place, returned


def _reads_gradients(programs: Sequence[Program]) -> bool:
    """Whether a gradient is read, or computed, that is not known to be that of a parameter.

    A copy may be handed to an object, and its gradient be read of that.
    """
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and isinstance(node.ctx, ast.Load)
        and not _is_gradient_of_parameter(program, node)
        for program in programs
        for node in program.nodes
    )


def _is_gradient_of_parameter(program: Program, gradient: ast.Attribute) -> bool:
    place = program.place(gradient)
    name = gradient.value.id if isinstance(gradient.value, ast.Name) else ""
    return place is not None and bool(name) and _is_parameter(place, name)


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_on(call: ast.Call) -> bool:
    return not any(isinstance(one, ast.Constant) and one.value is False for one in arguments(call))


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
        is_on = isinstance(call.func, ast.Attribute) and _is_on(call)
        receiver = call.func.value if isinstance(call.func, ast.Attribute) and is_on else None
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
    is_handed_on = any(
        flow.carries(one, scopes)
        for node, scopes in flow.source.nodes
        if isinstance(node, ast.Call)
        for one in arguments(node)
    )
    return not is_handed_on or _is_read(flow, place)


def _is_read(flow: Flow, place: Place) -> bool:
    """True if a statement reads the gradient of what flows, or hands that to what may read it."""
    for node, scopes in flow.source.nodes:
        if isinstance(node, ast.Attribute):
            reads = node.attr == "grad" and isinstance(node.ctx, ast.Load)
            if (reads or node.attr in _READING_HOOKS) and flow.carries(node.value, scopes):
                return True
        elif isinstance(node, ast.Call):
            carried = [one for one in arguments(node) if flow.carries(one, scopes)]
            if carried and _takes_gradients(flow, place, node, carried):
                return True
    return False


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
