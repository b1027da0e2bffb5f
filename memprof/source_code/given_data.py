"""Whether what a call was given may have a graph, by the stack of the calls that led to it."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    place_of,
    root_name,
)
from memprof.source_code.scopes import COMPREHENSIONS, nodes_around, parameters, qualified_name
from memprof.source_code.values import asks_for_gradients, has_no_graph, values_of
from memprof.trace import Frame

__all__ = ["calls_given_data", "is_given_data"]

_FUNCTIONAL = "torch.nn.functional."
_STATELESS = ("builtins.", "math.", "numpy.", "random.", "torch.")
_FEEDING = ("/transformers/trainer.py", "/lightning/pytorch/", "/pytorch_lightning/")
"""Files of libraries that run the loop, and call methods of the program with a batch …"""
_BATCHES = ("batch", "inputs")
"""… under these names."""
_DATA_CLASSES = ("Dataset", "IterableDataset", "NamedTuple", "object")
_WITH_GRAPHS = ("torch.nn.Parameter", "torch.autograd.", "torch.func.")
_NOT_ONCE = (ast.IfExp, ast.BoolOp, ast.Lambda, *COMPREHENSIONS)
"""What may run an expression in it never, later, or several times."""
_OPERATIONS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice),
    *(ast.Tuple, ast.List, ast.Constant),
)


def calls_given_data(
    programs: Sequence[Program], stack: Sequence[Frame]
) -> Sequence[tuple[ast.Call, bool]]:
    """Several calls of one thing in the innermost statement, and whether each is given data alone.

    In the order in which they run. Empty where that is not what it does, or where one of them may
    not run, run repeatedly, or be given what another returns: ``F.mse_loss(net(x), net(y))`` calls
    ``net`` twice, and functions of torch do not count.
    """
    place = _place(stack[0]) if stack else None
    if place is None or asks_for_gradients(programs):
        return ()
    calls = sorted(calls_in(place.statement), key=lambda one: (one.lineno, one.col_offset))
    own = [call for call in calls if not qualified_name(place, call.func).startswith("torch.")]
    named = Counter(ast.unparse(call.func) for call in own)
    repeated = [name for name, count in named.items() if count > 1]
    if len(repeated) != 1:
        return ()
    alike = [call for call in own if ast.unparse(call.func) == repeated[0]]
    around = [node for call in alike for node in nodes_around(place.statement, call)]
    if any(isinstance(node, _NOT_ONCE) or node in alike for node in around):
        return ()
    return [(call, _hands_data(place, call, stack[1:])) for call in alike]


def is_given_data(programs: Sequence[Program], stack: Sequence[Frame]) -> bool:
    """True if nothing that the innermost statement of a stack hands to its one call has a graph.

    ``stack`` is innermost first. A parameter is followed to the call around it: of a module's
    ``forward`` to the call of the module. A variable is followed to what it is computed from, also
    by functions of the program. False where that cannot be told from the source.
    """
    if not stack or asks_for_gradients(programs):
        return False
    place = _place(stack[0])
    call = _only_call(place)
    if place is None or call is None:
        return False
    return _hands_data(place, call, stack[1:])


def _hands_data(place: Place, call: ast.Call, callers: Sequence[Frame]) -> bool:
    arguments = [*call.args, *(one.value for one in call.keywords)]
    return all(_is_data(place, value, callers) for value in arguments)


def _is_data(place: Place, value: ast.expr, callers: Sequence[Frame]) -> bool:
    return _DataFlow(place.function, callers).is_data(place, value)


def _is_handed_data(place: Place, name: str, callers: Sequence[Frame]) -> bool:
    """The same of a parameter, by what the call around hands to it."""
    for at, frame in enumerate(callers):
        if frame_kind(frame.filename) is FrameKind.TORCH:
            continue  # a module's call hands on what it is given
        path = frame.filename.replace("\\", "/")
        if name in _BATCHES and any(part in path for part in _FEEDING):
            return True
        caller = _place(frame)
        call = _call_of(caller, place)
        argument = _argument(call, place, name) if call is not None else None
        return (
            caller is not None
            and argument is not None
            and _is_data(caller, argument, callers[at + 1 :])
        )
    return False


@dataclass(eq=False)
class _DataFlow:
    """What values of a program are computed of, by functions without any state."""

    function: ast.AST | None
    """The function that was called, …"""
    callers: Sequence[Frame]
    """… and the calls that led to it, innermost first."""
    known: dict[tuple[int, str, bool], bool] = field(default_factory=dict)
    """By the variable's scope and name; one that is computed of itself counts as no data."""

    def is_data(self, place: Place, value: ast.AST, *, of_parameters: bool = False) -> bool:
        """Whether a value is computed of new tensors and numbers.

        ``of_parameters``: those of the function around are data, too.
        """
        if isinstance(value, ast.expr) and has_no_graph(place, value):
            return True
        below = partial(self.is_data, place, of_parameters=of_parameters)
        if isinstance(value, ast.Name):
            key = id(place.scope), value.id, of_parameters
            if key not in self.known:
                self.known[key] = False
                self.known[key] = self._is_variable_data(place, value.id, of_parameters)
            return self.known[key]
        if isinstance(value, ast.Call):
            given = [*value.args, *(one.value for one in value.keywords)]
            return all(map(below, given)) and self._keeps_to_its_arguments(place, value, below)
        if isinstance(value, ast.Attribute):
            return below(value.value)
        return isinstance(value, _OPERATIONS) and all(
            below(child) for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)
        )

    def _is_variable_data(self, place: Place, name: str, of_parameters: bool) -> bool:
        if _is_written_into(place, name):
            return False
        bound = _bound(place, name)
        if not bound:
            return self._is_constant(place, name)
        if bound == [None] and name in parameters(place.scope):
            is_of_call = place.function is not None and place.function is self.function
            handed = is_of_call and _is_handed_data(place, name, self.callers)
            return of_parameters or handed
        return all(
            one is not None and self.is_data(place, one, of_parameters=of_parameters)
            for one in bound
        )

    def _keeps_to_its_arguments(
        self, place: Place, call: ast.Call, is_data: Callable[[ast.AST], bool]
    ) -> bool:
        """Whether a call computes its result of its arguments alone, if these are data."""
        name = qualified_name(place, call.func)
        if name:
            of_modules = name.startswith("torch.nn.") and not name.startswith(_FUNCTIONAL)
            return name.startswith(_STATELESS) and not of_modules
        if isinstance(call.func, ast.Attribute):
            return is_data(call.func.value)
        if not isinstance(call.func, ast.Name):
            return False
        own = place.program.functions(call.func.id)
        if not own:
            classes = [one for one in place.program.classes() if one.name == call.func.id]
            if classes:
                return len(classes) == 1 and _makes_data(place.program, classes[0])
            return hasattr(builtins, call.func.id)
        key = id(own[0]), "", True
        if key not in self.known:
            self.known[key] = False
            self.known[key] = len(own) == 1 and self._returns_data(place, own[0])
        return self.known[key]

    def _returns_data(self, place: Place, function: ast.AST) -> bool:
        returned = [
            (place.program.place(node), node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        return bool(returned) and all(
            at is not None and self.is_data(at, value, of_parameters=True) for at, value in returned
        )

    def _is_constant(self, place: Place, name: str) -> bool:
        """Whether the file itself binds a name, to numbers and what is computed of them."""
        bindings = [
            node
            for node in place.program.tree.body
            if any(isinstance(one, ast.Name) and one.id == name for one in bound_names(node))
        ]
        return bool(bindings) and all(
            isinstance(node, ast.Assign)
            and (at := place.program.place(node)) is not None
            and self.is_data(at, node.value)
            for node in bindings
        )


def _makes_data(program: Program, class_: ast.ClassDef) -> bool:
    """Whether objects of a class have nothing but data, if they are given nothing else.

    It calls functions without state and its own methods, and makes no modules or parameters.
    """
    bases = [ast.unparse(base).rpartition(".")[2] for base in class_.bases]
    if not set(bases) <= set(_DATA_CLASSES) or class_.keywords:
        return False
    methods = {one.name for one in ast.walk(class_) if isinstance(one, FUNCTIONS)}
    for call in calls_in(class_):
        place = program.place(call)
        name = qualified_name(place, call.func) if place is not None else ""
        if place is None or name.startswith(_WITH_GRAPHS):
            return False
        if name.startswith("torch.nn.") and not name.startswith(_FUNCTIONAL):
            return False
        if not name and not _is_of_value(place, call.func, methods):
            return False
        if name and not name.startswith(_STATELESS):
            return False
    return True


def _is_of_value(place: Place, function: ast.expr, methods: set[str]) -> bool:
    """Whether a function without a name of its own is a method: of ``self``, or of a value.

    ``self.model(x)`` is none: what an attribute is may be a module. Nor is ``settings.model(x)``,
    where the name is bound outside of the method.
    """
    if isinstance(function, ast.Name):
        return hasattr(builtins, function.id)
    if not isinstance(function, ast.Attribute):
        return False
    root = root_name(function.value)
    is_imported = bool(qualified_name(place, ast.Name(root, ast.Load())))
    if root not in ("", "self") and not is_imported and not [*values_of(place, root)]:
        return False
    is_own = isinstance(function.value, ast.Name) and root == "self"
    return not is_own or function.attr in methods


def _bound(place: Place, name: str) -> list[ast.expr | None]:
    """What a name is bound to; of one of several results, or of a loop's, all of them."""
    bound = list(values_of(place, name))
    unpacked = [
        node.value if isinstance(node, ast.Assign) else node.iter
        for node in ast.walk(place.scope)
        if (isinstance(node, ast.For) or _is_unpacked(node))
        and any(isinstance(one, ast.Name) and one.id == name for one in bound_names(node))
    ]
    if not unpacked or bound.count(None) != len(unpacked):
        return bound
    return [*(one for one in bound if one is not None), *unpacked]


def _is_unpacked(node: ast.AST) -> TypeGuard[ast.Assign]:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(one, (ast.Tuple, ast.List)) for one in node.targets)
    )


def _is_written_into(place: Place, name: str) -> bool:
    """``batch["embeddings"] = self.prompt(ids)``, ``batch.update(…)``: it may have more by then."""
    for node in ast.walk(place.scope):
        into: ast.expr | None = None
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            into = node.value
        elif called_name(node) in ("setdefault", "update") and isinstance(node, ast.Call):
            into = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(into, ast.Name) and into.id == name:
            return True
    return False


def _call_of(caller: Place | None, callee: Place) -> ast.Call | None:
    """The one call of a statement that may have run a function: none of a library's."""
    if caller is None or callee.function is None:
        return None
    if not isinstance(caller.statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)):
        return None
    is_module = callee.function.name == "forward"
    calls = [
        call
        for call in calls_in(caller.statement)
        if (is_module and _may_be_module(caller, call)) or called_name(call) == callee.function.name
    ]
    return calls[0] if len(calls) == 1 else None


def _may_be_module(place: Place, call: ast.Call) -> bool:
    """Whether what is called may be an object of the program's, by its name."""
    if qualified_name(place, call.func) or place.program.functions(called_name(call)):
        return False
    return isinstance(call.func, (ast.Attribute, ast.Subscript)) or (
        isinstance(call.func, ast.Name) and not hasattr(builtins, call.func.id)
    )


def _place(frame: Frame) -> Place | None:
    return place_of(frame) if frame_kind(frame.filename) is FrameKind.USER else None


def _only_call(place: Place | None) -> ast.Call | None:
    """The call that a statement is, or whose value it binds or returns, if it makes no other."""
    if place is None or not isinstance(place.statement, (ast.Assign, ast.Expr, ast.Return)):
        return None
    value = place.statement.value
    while isinstance(value, (ast.Attribute, ast.Subscript)):  # of its result
        value = value.value
    calls = calls_in(place.statement)
    return value if isinstance(value, ast.Call) and calls == [value] else None


def _argument(call: ast.Call, place: Place, name: str) -> ast.expr | None:
    """What a call hands to the parameter ``name`` of the function around a statement."""
    value = next((one.value for one in call.keywords if one.arg == name), None)
    names = list(_by_position(place))
    spread = next((at for at, one in enumerate(call.args) if isinstance(one, ast.Starred)), None)
    if value is not None or name not in names:
        return value
    at = names.index(name)
    if spread is not None and at >= spread:
        last = call.args[-1]  # of several values one; what comes after them is not known by place
        return last.value if isinstance(last, ast.Starred) and last is call.args[spread] else None
    return call.args[at] if at < len(call.args) else None


def _by_position(place: Place) -> Iterator[str]:
    """The names of the parameters that a call fills by their order."""
    function = place.function
    if function is None:
        return
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    yield from names[place.class_ is not None :]
