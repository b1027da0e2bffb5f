"""Follows a value through the user's program by the names that hold it, and what is done to it.

Only syntax is read: variables by their scope, attributes by their last name in every file at hand.
What cannot be followed counts as a use of any kind, so that a "no" can be relied on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    assigned,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    root_name,
)
from memprof.source_code.scopes import (
    BINDING,
    COMPREHENSIONS,
    LOOPING,
    Scopes,
    Syntax,
    enclosing_function,
    parameters,
    syntax_of,
)
from memprof.source_code.verbs import (
    CONTAINER_METHODS,
    CUTTING,
    FILLING,
    HANDING_OUT,
    LEARNING,
    NUMBER_FUNCTIONS,
    OF_MODULES,
    OF_NO_BUILTIN,
    TEXT_FUNCTIONS,
)

__all__ = ["Flow", "FlowOf", "flow_from", "flow_into", "flow_of", "flow_of_value"]

_HOLDING = frozenset(("dict", "enumerate", "iter", "list", "next", "reversed", "tuple", "zip"))
"""Builtin functions whose result holds what they are given."""
_PASSING = _HOLDING | {"abs", "max", "min", "round", "sorted", "sum"}
_SWITCHING = frozenset(("cpu", "eval", "requires_grad_", "to", "train"))
"""Methods of modules and tensors that compute nothing with the values."""
_ENDING = NUMBER_FUNCTIONS | TEXT_FUNCTIONS
_CONTENT = (FILLING - OF_NO_BUILTIN - {"put"}) | {"count", "remove"}
"""Methods that take a number, or a text, as well as a tensor."""
_NUMBERS = frozenset(("json", "math", "np", "numpy", "statistics"))
"""Modules whose functions take numbers, and tensors only as numbers."""
_TELLING = frozenset(
    (
        *("add_scalar", "add_scalars", "critical", "debug", "error", "info", "join", "log"),
        *("log_metric", "log_metrics", "set_description", "set_postfix", "set_postfix_str"),
        *("warning", "write", "writerow"),
    )
)
"""Methods of loggers, progress bars and files, which show a number or a text."""
_CALLED_BY_OBJECT = "forward"
"""The method of a module that a call of the module itself runs."""
_UNDEFINED_FOR_ZERO = (ast.Div, ast.FloorDiv, ast.Mod)

_Key = tuple[int, str]
_MODULE, _ATTRIBUTE = 0, 1
_LARGEST = 300_000
"""Nodes of syntax that are followed; of a larger program nothing is known."""


@dataclass(eq=False)
class Flow:
    """A value that a name holds, followed through a program."""

    source: Syntax
    through: bool
    """Also through what is computed from it, as a graph goes; else only the value itself."""
    keys: set[_Key] = field(default_factory=set)
    returning: set[str] = field(default_factory=set)
    """Functions that return it."""
    is_lost: bool = False
    """True if it went where it cannot be followed."""

    def follow(self) -> Flow:
        """Follow the value until it reaches nothing new."""
        if len(self.source.nodes) > _LARGEST:
            self.is_lost = True
            return self
        size = -1
        try:
            while size < len(self.keys) + len(self.returning):
                size = len(self.keys) + len(self.returning)
                for node, around in self.source.passing:
                    self._pass_on(node, around)
        except RecursionError:  # a sum of hundreds of terms
            self.is_lost = True
        return self

    @property
    def learned(self) -> bool:
        """True if a backward pass may start from it."""
        return self._any(self._starts)

    @property
    def more_than_shown(self) -> bool:
        """True if something is asked of it that a number, or a text, may not be able to do."""
        return self._any(self._asks)

    def used_beyond(self, calls: frozenset[str]) -> bool:
        """True if it is computed with, or handed to a call that is neither of ``calls`` nor known.

        To store it, to compare it, and to hand it to a function of the program is no use by itself.
        """
        return self._any(lambda node, scopes: self._uses(node, scopes, calls))

    def reaches(self, calls: frozenset[str]) -> bool:
        """True if a call of one of these names may be of it, or be handed it."""
        return self._any(lambda node, scopes: self._is_in_call(node, scopes, calls))

    def is_held_beside(self, scope: ast.AST, name: str) -> bool:
        """True if an attribute, a variable of the file or another one of a function holds it.

        Variables of the functions that it is handed to do not count: they go when those return.
        """
        there = (_MODULE, id(scope))
        return any(
            key[0] == _ATTRIBUTE or (key[0] in there and key[1] != name) for key in self.keys
        )

    def _uses(self, node: ast.AST, scopes: Scopes, calls: frozenset[str]) -> bool:
        if isinstance(node, ast.Attribute):
            resting = CONTAINER_METHODS | OF_MODULES | _SWITCHING | calls
            return node.attr not in resting and self.carries(node.value, scopes)
        if isinstance(node, ast.BinOp):
            return self.carries(node.left, scopes) or self.carries(node.right, scopes)
        if isinstance(node, ast.AugAssign):
            return self.carries(node.target, scopes) or self.carries(node.value, scopes)
        if not isinstance(node, ast.Call) or called_name(node) in calls:
            return False
        name, receiver = called_name(node), _receiver(node)
        if receiver is None and self.carries(node.func, scopes):
            return True  # a model that is called
        if not any(self.carries(one, scopes) for one in arguments(node)):
            return False
        stores = name in (CONTAINER_METHODS if receiver is not None else _HOLDING)
        return not (stores or self.source.functions.get(name))

    def _any(self, question: Callable[[ast.AST, Scopes], bool]) -> bool:
        try:
            return self.is_lost or any(question(node, scopes) for node, scopes in self.source.nodes)
        except RecursionError:
            return True

    def _starts(self, node: ast.AST, scopes: Scopes) -> bool:
        return self._is_in_call(node, scopes, LEARNING)

    def _is_in_call(self, node: ast.AST, scopes: Scopes, calls: frozenset[str]) -> bool:
        if not isinstance(node, ast.Call) or called_name(node) not in calls:
            return False
        return any(self.carries(one, scopes) for one in (_receiver(node), *arguments(node)))

    def carries(self, node: ast.expr | None, scopes: Scopes) -> bool:
        """True if an expression is the value, holds it, or (``through``) is computed from it."""
        if node is None:
            return False
        if isinstance(node, (ast.Name, ast.Attribute)):
            own = self._key(node, scopes) in self.keys
            inside = self.through and isinstance(node, ast.Attribute)
            return own or (inside and self.carries(_value(node), scopes))
        if isinstance(node, ast.Call):
            return self._returns(node, scopes)
        if isinstance(node, ast.BinOp) and isinstance(node.left, (ast.Constant, ast.JoinedStr)):
            formats = not isinstance(getattr(node.left, "value", ""), (int, float))
            return not formats and self.carries(node.right, scopes)
        inner = (*scopes, node) if isinstance(node, COMPREHENSIONS) else scopes
        return any(self.carries(one, inner) for one in _parts(node))

    def _returns(self, call: ast.Call, scopes: Scopes) -> bool:
        name, receiver = called_name(call), _receiver(call)
        if name in self.returning:
            return True
        if _CALLED_BY_OBJECT in self.returning and self.source.may_call_object(call):
            return True
        of_receiver = receiver is not None and self.carries(receiver, scopes)
        is_passed = any(self.carries(one, scopes) for one in arguments(call))
        if self.through:
            ends = name in CUTTING or (receiver is None and name in _ENDING)
            return (of_receiver or is_passed) and not ends
        if receiver is not None:
            return of_receiver and name in HANDING_OUT | OF_MODULES
        return is_passed and name in _PASSING

    def _key(self, node: ast.expr | None, scopes: Scopes) -> _Key | None:
        while isinstance(node, (ast.Subscript, ast.Starred)):
            node = node.value
        if isinstance(node, ast.Attribute):
            return _ATTRIBUTE, node.attr
        if not isinstance(node, ast.Name):
            return None
        for scope in reversed(scopes):
            if node.id in self.source.bound.get(id(scope), ()):
                return id(scope), node.id
        return _MODULE, node.id

    def give(self, target: ast.expr | None, scopes: Scopes) -> None:
        """Let a name hold the value."""
        key = self._key(target, scopes)
        if key is None:
            self.is_lost = True
        else:
            self.keys.add(key)

    def _pass_on(self, node: ast.AST, scopes: Scopes) -> None:
        if isinstance(node, BINDING):
            for target, value in assigned(node):
                if self.carries(value, scopes):
                    self.give(target, scopes)
        elif isinstance(node, LOOPING) and self.carries(node.iter, scopes):
            for target in _loop_values(node.iter, node.target):
                self.give(target, scopes)
        elif isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
            if self.carries(node.value, scopes):
                self._given_back(scopes)
        elif isinstance(node, ast.Call):
            self._pass_to(node, scopes)

    def _given_back(self, scopes: Scopes) -> None:
        """A function returns it: whoever calls that has it, or reads it as a property."""
        function = enclosing_function(scopes)
        if function is None:
            return
        self.returning.add(function.name)
        if any("property" in ast.unparse(one) for one in function.decorator_list):
            self.keys.add((_ATTRIBUTE, function.name))

    def _pass_to(self, call: ast.Call, scopes: Scopes) -> None:
        """Follow a call into a container, or a function of the program."""
        carried = [one for one in arguments(call) if self.carries(one, scopes)]
        if not carried:
            return
        receiver, name = _receiver(call), called_name(call)
        is_container = receiver is not None and root_name(receiver) not in self.source.of_torch
        if is_container and name in FILLING:  # no ``torch.add(total, loss)``
            self.give(receiver, scopes)
        self.enter(call, carried)

    def enter(self, call: ast.Call, carried: list[ast.expr]) -> None:
        """Follow arguments into the parameters of the functions that a call may be of."""
        for function in self.source.functions.get(called_name(call), ()):
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
            method = names[:1] in (["self"], ["cls"])
            into = dict(zip(map(id, call.args), names[method:], strict=False))
            into |= {id(k.value): k.arg for k in call.keywords if k.arg}
            names_in = set(parameters(function))
            for one in carried:
                if into.get(id(one)) in names_in:
                    if not (self.through and _cuts_first(function, into[id(one)])):
                        self.keys.add((id(function), into[id(one)]))
                else:
                    self.is_lost = True

    def _asks(self, node: ast.AST, scopes: Scopes) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr not in CONTAINER_METHODS and self.carries(node.value, scopes)
        if isinstance(node, ast.Raise):
            return self.carries(node.exc, scopes) or self.carries(node.cause, scopes)
        if isinstance(node, ast.Lambda):
            return self.carries(node.body, (*scopes, node))
        if isinstance(node, ast.BinOp):
            zero = isinstance(node.op, _UNDEFINED_FOR_ZERO) and self.carries(node.right, scopes)
            whole = isinstance(node.op, ast.MatMult) and self.carries(node, scopes)
            return whole or (zero and not isinstance(node.left, (ast.Constant, ast.JoinedStr)))
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
            return self.carries(node.value, scopes) and not self._is_called(scopes)
        if isinstance(node, ast.Call):
            return self._takes(node, scopes)
        return False

    def _is_called(self, scopes: Scopes) -> bool:
        """True if the innermost function is called or read by name in the program, all of it."""
        function = enclosing_function(scopes)
        if function is None:
            return False
        if (_ATTRIBUTE, function.name) in self.keys:
            return True
        return function.name in self.source.called_names

    def _takes(self, call: ast.Call, scopes: Scopes) -> bool:
        """True if a call takes it that is not known to be content with a number or a text."""
        if not any(self.carries(one, scopes) for one in arguments(call)):
            return False
        name, receiver = called_name(call), _receiver(call)
        words = {keyword.arg for keyword in call.keywords}
        if self.source.functions.get(name):
            return False
        if receiver is None:
            return name not in _PASSING | _ENDING or "key" in words
        if name in _CONTENT:
            return False
        if root_name(receiver) in _NUMBERS or name == "format":
            return False
        is_printed = name in _TELLING and root_name(receiver) not in self.source.of_torch
        return not is_printed or "exc_info" in words


@dataclass(eq=False)
class FlowOf(Flow):
    """What some expressions are, followed through a program."""

    origins: frozenset[int] = frozenset()
    """These expressions, by identity."""

    def carries(self, node: ast.expr | None, scopes: Scopes) -> bool:
        """True if an expression is one of them, or is what `Flow` says."""
        return id(node) in self.origins or super().carries(node, scopes)


def _cuts_first(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether a function does nothing with a parameter but to go on with it without its graph.

    ``pos = pos.detach().requires_grad_(True)``, before anything else reads it.
    """
    for statement in function.body:
        if name not in loaded_names(statement):
            continue
        value = statement.value if isinstance(statement, ast.Assign) else None
        targets = [ast.unparse(one) for one in bound_names(statement)]
        is_cut = False
        while isinstance(value, (ast.Call, ast.Attribute)):
            is_cut |= isinstance(value, ast.Call) and called_name(value) in CUTTING
            value = value.func if isinstance(value, ast.Call) else value.value
        return is_cut and targets == [name] and isinstance(value, ast.Name) and value.id == name
    return False


def flow_of(programs: Sequence[Program], place: Place, text: str, *, through: bool) -> Flow:
    """The flow of what is held by ``text``, as written at a place, through the program."""
    flow = _flow([place.program, *programs], through=through)
    scopes = tuple(node for node in place.around if isinstance(node, FUNCTIONS))
    flow.give(ast.parse(text, mode="eval").body, scopes)
    return flow.follow()


def flow_of_value(
    programs: Sequence[Program], place: Place, value: ast.expr, *, through: bool
) -> Flow:
    """The flow of what an expression of a statement is, through the program."""
    source = _flow([place.program, *programs], through=through).source
    return FlowOf(source, through, origins=frozenset((id(value),))).follow()


def flow_from(programs: Sequence[Program], function: str) -> Flow:
    """The flow of what the functions of a name return, and of what is computed from it."""
    flow = _flow(programs, through=True)
    flow.returning.add(function)
    return flow.follow()


def flow_into(
    programs: Sequence[Program], place: Place, argument: ast.expr, *, through: bool
) -> Flow:
    """The flow of an argument of a call, in the functions that the call may be of."""
    flow = _flow([place.program, *programs], through=through)
    for call in calls_in(place.statement):
        if any(one is argument for one in arguments(call)):
            flow.enter(call, [argument])
    return flow.follow()


def _flow(programs: Sequence[Program], *, through: bool) -> Flow:
    files = sorted(dict.fromkeys(programs), key=lambda program: program.filename)
    return Flow(syntax_of(tuple(files)), through)


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _value(node: ast.expr) -> ast.expr | None:
    return node.value if isinstance(node, ast.Attribute) else None


def _parts(node: ast.expr) -> Iterable[ast.expr]:
    """The expressions that an expression may come to be, or to hold; none of other kinds."""
    if isinstance(node, (ast.Subscript, ast.Starred, ast.Await, ast.NamedExpr)):
        return (node.value,)
    if isinstance(node, ast.UnaryOp):
        return (node.operand,)
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)
    if isinstance(node, ast.IfExp):
        return (node.body, node.orelse)
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return node.elts
    if isinstance(node, ast.Dict):
        return (*(key for key in node.keys if key is not None), *node.values)
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return (node.elt,)
    if isinstance(node, ast.DictComp):
        return (node.key, node.value)
    return ()


def _loop_values(iterated: ast.expr, target: ast.expr) -> list[ast.expr]:
    """The names of a loop that get the values: not the number of ``enumerate``, nor the key."""
    numbered = called_name(iterated) in ("enumerate", "items")
    if numbered and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    return bound_names(ast.Assign(targets=[target], value=iterated))
