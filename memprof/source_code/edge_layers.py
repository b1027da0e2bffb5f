"""Layers on graphs that compute for each edge what a node's features tell by themselves."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from memprof.source_code.call_sites import calls_of
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.scopes import parameters, reads_of
from memprof.source_code.values import returned_by, values_of

__all__ = ["LinearOfEdges", "linear_of_edges", "linear_of_gathered", "linear_of_sums"]

_MESSAGE = "message"
"""The method of PyG's `MessagePassing` that makes a message of what it gathers for each edge."""
_ENDS = ("_i", "_j")
"""What ends the name of a parameter that is given features of nodes, one row for each edge."""
_LINEAR = "Linear"
_BY_ROW = frozenset(
    (
        *("CELU", "ELU", "GELU", "Hardswish", "Hardtanh", "Identity", "LayerNorm", "LeakyReLU"),
        *("Linear", "Mish", "PReLU", "RMSNorm", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid"),
        *("Softplus", "Softsign", "Tanh"),
    )
)
"""Modules that compute each row by itself."""
_EACH = (ast.GeneratorExp, ast.ListComp)
_PARAMETER = "Parameter"
_WEIGHT = "weight"
_SEVERAL = ("ParameterDict", "ParameterList")
_DEEPEST = 3
"""Functions that hand a parameter on, until it is given up."""
_MULTIPLYING = ("matmul", "mm", "mv", "linear")
_JOINING = ("cat", "concat", "concatenate")
_SELECTING = "index_select"
_SUMS = ("add", "sum", "mean")
"""Of a layer's ``aggr``: of these a linear map may be taken before as well as after."""
_SUMMING = ("index_add", "index_add_", "scatter_add", "scatter_add_")
_SCALING = (ast.Mult, ast.Div)
_OF_PYG = "MessagePassing"
_SWAPPING = ("movedim", "permute", "swapaxes", "transpose")
_ENDS_OF_EDGES = 2
_OF_SHAPE = ("device", "dtype", "shape", "size")
_RESHAPING = ("reshape", "unsqueeze", "view")


@dataclass(frozen=True, slots=True, eq=False)
class LinearOfEdges:
    """A linear layer that all gathered features of one kind go into."""

    layer: str
    """As written: ``self.lin``."""
    features: str
    """What is gathered: ``x``, an argument of `propagate` or a variable."""
    place: Place
    """The statement that calls it."""
    parts: int = 1
    """How many tensors are joined to what it is given."""
    reads_parts: bool = False
    """Something else reads what is joined as well."""
    is_product: bool = False
    """It is no layer, but a parameter that a statement multiplies by."""
    path: str = ""
    """Of the layer below its module, as torch names it: ``lin``, or ``lins.`` of one of several."""
    has_bias: bool = True
    """It adds a bias to each row, as a layer does unless it is told otherwise."""
    scaled_by: str = ""
    """What the sums are multiplied or divided by on their way to it."""


def linear_of_edges(place: Place) -> LinearOfEdges | None:
    """``self.lin(x_j)`` in the `message` of the class that calls ``self.propagate(…, x=x)``.

    None where `message` reads what is gathered at another place as well, or where the layer is
    bound to anything but an ``nn.Linear``, or several layers of which each takes a row by itself.
    """
    class_ = place.class_
    gathered = [
        given.arg
        for call in calls_in(place.statement, "propagate")
        if ast.unparse(call.func) == "self.propagate"
        for given in call.keywords
        if given.arg is not None
    ]
    for method in class_.body if class_ is not None else ():
        if not isinstance(method, FUNCTIONS) or method.name != _MESSAGE:
            continue
        for name in parameters(method):
            reads = [node for node, _ in reads_of(method, name)]
            calls = [
                c for c in calls_in(method) if any(one is node for node in reads for one in c.args)
            ]
            if not name.endswith(_ENDS) or name[:-2] not in gathered or len(reads) != 1:
                continue
            at = place.program.place(calls[0]) if len(calls) == 1 else None
            if at is not None and len(calls[0].args) == 1 and _takes_each_row(place, calls[0].func):
                return LinearOfEdges(ast.unparse(calls[0].func), name[:-2], at)
    return None


def linear_of_gathered(place: Place) -> LinearOfEdges | None:
    """``self.lin(x[src])`` or ``self.lin(torch.cat([x[src], x[dst]], -1))``, as a statement has it.

    Or as one gathers, or joins, what a variable then hands to the layer. In a `message` ``x_j`` is
    gathered. ``torch.cat([x[src], x[dst]], -1) @ self.att`` is linear, too. A function of the file
    may gather, and return that to its one caller. None where anything else reads what the layer is
    given.
    """
    functions = [place.function, _only_caller(place)]
    for node in (node for one in functions if one is not None for node in ast.walk(one)):
        at = place.program.place(node) if isinstance(node, ast.expr) else None
        mapped = _linear_map(at, node) if at is not None else None
        if mapped is None or at is None:
            continue
        (by, given), of_layer = mapped, _Given(at)
        if not of_layer.follow(given) or not of_layer.gathered:
            continue
        makes_it = [] if isinstance(given, ast.Name) else [at.statement]
        if place.statement in [*makes_it, *of_layer.statements]:
            return LinearOfEdges(
                ast.unparse(by),
                ast.unparse(of_layer.gathered[0]),
                at,
                of_layer.parts,
                of_layer.is_shared,
                is_product=not _is_layer(at, node),
                path=_path_of(at, by),
            )
    return None


def _only_caller(place: Place) -> ast.AST | None:
    """The function around the one call of the function around a statement; None without one."""
    if place.function is None or place.function.name == _MESSAGE:
        return None
    calls = calls_in(place.program.tree, place.function.name)
    at = place.program.place(calls[0]) if len(calls) == 1 else None
    return at.function if at is not None else None


def linear_of_sums(place: Place) -> LinearOfEdges | None:
    """``self.lin(sums)``, of what a statement gathers for each edge and adds up for each node.

    ``sums = self.propagate(edge_index, x=x)`` in a class whose ``aggr`` is a sum or a mean and
    whose `message` scales what it is given; or ``sums.index_add_(0, dst, x[src])``. What is added
    up may be scaled again, or be what a function of the file returns to its one caller. None where
    anything else reads the sums.
    """
    function = place.function
    if function is None:
        return None
    sums = _sums_of_messages(place) or _sums_of_rows(place)
    if sums is None:
        return None
    name, features = sums
    if name:
        reads = [node for node, _ in reads_of(function, name)]
        reads = [one for one in reads if not _is_added_to(function, one)]
        linear = _linear_call(place, reads, features)
        if linear is not None:
            return linear
        returned = place.program.place(reads[0]) if len(reads) == 1 else None
        is_returned = returned is not None and isinstance(returned.statement, ast.Return)
        if returned is None or not is_returned or _value_of(returned) is not reads[0]:
            return None
    return _linear_of_returned(place, function, features)


def _linear_of_returned(
    place: Place, function: ast.FunctionDef | ast.AsyncFunctionDef, features: str
) -> LinearOfEdges | None:
    """The linear layer that the one caller of a function gives the sums that it returns."""
    calls = calls_in(place.program.tree, function.name)
    at = place.program.place(calls[0]) if len(calls) == 1 else None
    returns = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
    if at is None or at.function is None or len(returns) != 1:
        return None
    names = [one for one in parameters(function) if one not in ("self", "cls")]
    given = dict(zip(names, map(ast.unparse, calls[0].args), strict=False))
    given |= {one.arg: ast.unparse(one.value) for one in calls[0].keywords if one.arg is not None}
    features = given.get(features, features)
    bound = [one.id for one, value in assigned(at.statement) if _is_variable(one, value, calls[0])]
    if not bound:
        return _linear_call(at, [calls[0]], features)
    return _linear_call(at, [node for node, _ in reads_of(at.function, bound[0])], features)


def _is_variable(target: ast.expr, value: ast.expr | None, bound: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(target, ast.Name) and value is bound


def _value_of(place: Place) -> ast.expr | None:
    """What a statement returns, or scales and returns."""
    value = place.statement.value if isinstance(place.statement, ast.Return) else None
    return _scaled(value) if value is not None else None


def _linear_call(place: Place, reads: Sequence[ast.expr], features: str) -> LinearOfEdges | None:
    """The linear layer that is given the only read of some sums, as they are or scaled."""
    for call in calls_in(place.scope):
        if len(call.args) != 1 or not _is_bound_to(place, call.func, _LINEAR):
            continue
        given, at = _scaled(call.args[0]), place.program.place(call)
        if at is None or not reads or any(one is not given for one in reads):
            continue
        scaled_by = call.args[0].right if isinstance(call.args[0], ast.BinOp) else None
        return LinearOfEdges(
            ast.unparse(call.func),
            features,
            at,
            has_bias=_has_bias(place.class_, call.func),
            scaled_by=ast.unparse(scaled_by) if scaled_by is not None else "",
        )
    return None


def _sums_of_messages(place: Place) -> tuple[str, str] | None:
    """The variable that PyG's sums of messages are bound to, and the features that it gathers."""
    if place.class_ is None or not _adds_up(place.class_):
        return None
    for target, value in assigned(place.statement):
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Call):
            continue
        if ast.unparse(value.func) != "self.propagate":
            continue
        gathered = [one for one in value.keywords if one.arg is not None]
        scaled = _scaled_in_message(place.class_)
        for given in gathered:
            if scaled is None or given.arg == scaled:
                return target.id, ast.unparse(given.value)
    return None


def _adds_up(class_: ast.ClassDef) -> bool:
    """Whether a class of PyG's `MessagePassing` takes a sum or a mean, as it does by default."""
    if not any(ast.unparse(base).endswith(_OF_PYG) for base in class_.bases):
        return False
    for call in calls_in(class_, "__init__"):
        for given in [*call.args[:1], *(one.value for one in call.keywords if one.arg == "aggr")]:
            if not isinstance(given, ast.Constant) or given.value not in _SUMS:
                return False
    return True


def _scaled_in_message(class_: ast.ClassDef) -> str | None:
    """The name of the features that `message` returns scaled, ``""`` where it does more.

    None where the class has no such method: then it is what is gathered, as ``x``.
    """
    for method in class_.body:
        if isinstance(method, FUNCTIONS) and method.name == _MESSAGE:
            returned = [node.value for node in ast.walk(method) if isinstance(node, ast.Return)]
            if len(returned) != 1 or returned[0] is None:
                return ""
            factors = _factors(returned[0])
            features = [
                one
                for one in factors
                if isinstance(one, ast.Name) and one.id in parameters(method)
                if one.id.endswith(_ENDS)
            ]
            if len(features) != 1 or len(list(reads_of(method, features[0].id))) != 1:
                return ""
            scales = all(_is_there_already(one) for one in factors)
            return features[0].id[:-2] if scales else ""
    return None


def _is_there_already(factor: ast.expr) -> bool:
    """Whether a factor is read and not computed: what is may weigh each value by itself."""
    while isinstance(factor, ast.Subscript) or called_name(factor) in _RESHAPING:
        within = factor.func if isinstance(factor, ast.Call) else factor
        assert isinstance(within, (ast.Attribute, ast.Subscript))
        factor = within.value
    return isinstance(factor, (ast.Attribute, ast.Constant, ast.Name))


def _factors(value: ast.expr) -> list[ast.expr]:
    """The factors of a product, and what a quotient is made of."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _SCALING):
        return _factors(value.left) + _factors(value.right)
    return [value]


def _scaled(value: ast.expr) -> ast.expr:
    """What a product or quotient scales: the first of its factors."""
    return _factors(value)[0]


def _sums_of_rows(place: Place) -> tuple[str, str] | None:
    """The variable to which rows are added that a statement gathers, and of what they are.

    The variable is empty where the function returns the sums as it makes them.
    """
    assert place.function is not None
    own = {one.id: value for one, value in assigned(place.statement) if isinstance(one, ast.Name)}
    for call in calls_in(place.function, *_SUMMING):
        at = place.program.place(call)
        added = call.args[2] if len(call.args) > 2 else None
        if isinstance(added, ast.Name) and added.id in own:
            if not _is_only_added(place.function, added):
                continue
            added = own[added.id]
        elif at is None or at.statement is not place.statement:
            continue
        factors = _factors(added) if added is not None else []
        gathered = [rows for rows in map(_rows_of, factors[:1]) if rows is not None]
        if at is None or not gathered or not isinstance(call.func, ast.Attribute):
            continue
        if not all(map(_is_there_already, factors[1:])):
            continue
        targets = [one.id for one, _ in assigned(at.statement) if isinstance(one, ast.Name)]
        into = call.func.value
        name = targets[0] if targets else into.id if isinstance(into, ast.Name) else ""
        if name or _value_of(at) is call:
            return name, ast.unparse(gathered[0])
    return None


def _is_only_added(function: ast.AST, added: ast.Name) -> bool:
    """Whether a variable is read once, but for its shape."""
    for read, around in reads_of(function, added.id):
        parent = around[-1]
        is_shape = isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE
        if read is not added and not is_shape and called_name(parent) != "expand_as":
            return False
    return True


def _is_added_to(function: ast.AST, read: ast.Name) -> bool:
    """Whether a variable is read only to add rows to it."""
    return any(
        isinstance(call.func, ast.Attribute) and call.func.value is read
        for call in calls_in(function, *_SUMMING)
    )


def _has_bias(class_: ast.ClassDef | None, attribute: ast.expr) -> bool:
    """Whether a layer that a class makes adds a bias, as far as the source tells."""
    made = [
        value
        for node in (ast.walk(class_) if class_ is not None else ())
        for target, value in assigned(node)
        if ast.unparse(target) == ast.unparse(attribute) and isinstance(value, ast.Call)
    ]
    return not all(
        any(
            one.arg == "bias" and isinstance(one.value, ast.Constant) and one.value.value is False
            for one in call.keywords
        )
        for call in made
    )


def _linear_map(place: Place, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The layer or parameter of an expression that maps rows one by one, and what it is given."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        given, by = node.left, node.right
    elif not isinstance(node, ast.Call) or node.keywords or not node.args:
        return None
    elif len(node.args) == 1 and _is_bound_to(place, node.func, _LINEAR):
        return node.func, node.args[0]
    elif len(node.args) == 1 and _begins_with_layer(place, node.func):
        return ast.Subscript(node.func, ast.Constant(0), ast.Load()), node.args[0]
    elif len(node.args) == 1 and _list_of(place, node.func):
        return node.func, node.args[0]
    elif called_name(node) == "einsum" and _maps_rows(node):
        given, by = node.args[1], node.args[2]
    elif called_name(node) not in _MULTIPLYING:
        return None
    elif len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        given, by = node.func.value, node.args[0]
    elif len(node.args) > 1:  # of `F.linear` a bias follows
        given, by = node.args[0], node.args[1]
    else:
        return None
    return (by, given) if _are_weights(place, by) else None


def _is_layer(place: Place, node: ast.AST) -> bool:
    """Whether it is the call of a linear layer, not a product."""
    layer = node.func if isinstance(node, ast.Call) else None
    return layer is not None and (
        _is_bound_to(place, layer, _LINEAR)
        or _begins_with_layer(place, layer)
        or bool(_list_of(place, layer))
    )


def _list_of(place: Place, layer: ast.expr) -> str:
    """The attribute whose items a layer is one of, if these are linear layers; else empty.

    ``self.lins[kind](x)``, or of a variable with which a loop goes through them.
    """
    attributes: list[ast.expr] = []
    if isinstance(layer, ast.Subscript):
        attributes = [layer.value]
    elif isinstance(layer, ast.Name):
        loops = [one for one in place.around if isinstance(one, (ast.For, ast.AsyncFor))]
        inside = [one for one in ast.walk(place.statement) if isinstance(one, ast.comprehension)]
        attributes = [
            node
            for loop in (*loops, *inside)
            if any(isinstance(t, ast.Name) and t.id == layer.id for t in ast.walk(loop.target))
            for node in ast.walk(loop.iter)
            if isinstance(node, ast.Attribute)
        ]
    own = [one for one in attributes if _are_linear(place, one)]
    return ast.unparse(own[0]).partition(".")[2] if len(own) == 1 else ""


def _are_linear(place: Place, attribute: ast.expr) -> bool:
    """Whether an attribute is a list or a dict of modules, each of which is a linear layer."""
    values = _bound_to(place, attribute)
    return bool(values) and all(
        isinstance(one, ast.Call)
        and called_name(one) in ("ModuleDict", "ModuleList")
        and bool(one.args)
        and all(called_name(part) == _LINEAR for part in _parts_of(one.args[0]))
        for one in values
    )


def _parts_of(held: ast.expr) -> list[ast.expr]:
    """What a list or a dict holds, or what a comprehension makes each of; itself of others."""
    if isinstance(held, (ast.List, ast.Tuple)):
        return held.elts
    if isinstance(held, ast.Dict):
        return held.values
    if isinstance(held, ast.DictComp):
        return [held.value]
    return [held.elt] if isinstance(held, _EACH) else [held]


def _path_of(place: Place, layer: ast.expr) -> str:
    items = _list_of(place, layer)
    named = ast.unparse(layer).partition(".")[2].replace("[", ".").rstrip("]")
    return f"{items}." if items else named


def _takes_each_row(place: Place, attribute: ast.expr) -> bool:
    """Whether an attribute is a linear layer, or an ``nn.Sequential`` of such and activations.

    What depends on the other rows, or is drawn anew for each, is none.
    """
    if _is_bound_to(place, attribute, _LINEAR):
        return True
    if not _begins_with_layer(place, attribute):
        return False
    values = [one for one in _bound_to(place, attribute) if isinstance(one, ast.Call)]
    return all(called_name(part) in _BY_ROW for one in values for part in one.args)


def _begins_with_layer(place: Place, attribute: ast.expr) -> bool:
    """Whether an attribute is an ``nn.Sequential`` whose first module is a linear layer."""
    values = _bound_to(place, attribute)
    return bool(values) and all(
        isinstance(one, ast.Call)
        and called_name(one) == "Sequential"
        and called_name(one.args[0] if one.args else one) == _LINEAR
        for one in values
    )


def _are_weights(place: Place, by: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is a parameter of the program's: by itself, turned, or one of several.

    A variable is what it is bound to, and a function's parameter what each of its calls gives it.
    """
    if isinstance(by, ast.Attribute) and by.attr in ("T", "mT"):
        return _are_weights(place, by.value, depth)
    if called_name(by) in ("t", *_SWAPPING) and isinstance(by, ast.Call):
        return isinstance(by.func, ast.Attribute) and _are_weights(place, by.func.value, depth)
    if isinstance(by, ast.Attribute) and by.attr == _WEIGHT:
        return _is_bound_to(place, by.value, _LINEAR) or _is_bound_to(place, by, _PARAMETER)
    if isinstance(by, ast.Subscript):
        return any(_is_bound_to(place, by.value, one) for one in _SEVERAL)
    if not isinstance(by, ast.Name) or depth > _DEEPEST:
        return _is_bound_to(place, by, _PARAMETER)
    function = place.function
    if function is None or by.id not in parameters(function):
        values = list(values_of(place, by.id))
        return len(values) == 1 and (
            values[0] is not None and _are_weights(place, values[0], depth + 1)
        )
    names = [one for one in parameters(function) if one not in ("self", "cls")]
    given = [(at, _given_by(call, names)) for at, call in calls_of(place)]
    return bool(given) and all(
        by.id in values and _are_weights(at, values[by.id], depth + 1) for at, values in given
    )


def _given_by(call: ast.Call, names: Sequence[str]) -> dict[str, ast.expr]:
    """What a call gives each parameter of a function."""
    given = dict(zip(names, call.args, strict=False))
    return given | {one.arg: one.value for one in call.keywords if one.arg is not None}


def _maps_rows(call: ast.Call) -> bool:
    """Whether an ``einsum`` multiplies each row of one operand by another: ``ed,do->eo``."""
    equation = call.args[0] if len(call.args) == len(("equation", "rows", "weights")) else None
    if not isinstance(equation, ast.Constant):
        return False
    operands, _, result = str(equation.value).replace(" ", "").partition("->")
    rows, _, weights = operands.partition(",")
    if not (rows.isalpha() and weights.isalpha() and rows[-1] in weights):
        return False
    return result == rows[:-1] + weights.replace(rows[-1], "") and rows[-1] not in rows[:-1]


class _Given:
    """What a call is given, followed through variables that nothing else reads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.gathered: list[ast.expr] = []
        """Of what rows are taken by an index."""
        self.statements: list[ast.stmt] = []
        self.parts = 1
        self.is_shared = False
        self._entered: set[int] = set()
        """What functions return, by identity, that was followed."""

    def follow(self, value: ast.expr) -> bool:
        """Whether nothing else reads it, and it is gathered, or joined of what is in part."""
        if isinstance(value, ast.Name):
            return self._follow_variable(value)
        if called_name(value) in _JOINING and isinstance(value, ast.Call) and value.args:
            joined = value.args[0]
            if not isinstance(joined, (ast.List, ast.Tuple)):
                return False
            self.parts = len(joined.elts)
            are_gathered = [self.follow(one) for one in joined.elts]  # each of them, to the last
            return any(are_gathered)
        pairs = _pairs_of_rows(value)
        if pairs is not None:
            self.gathered.append(pairs)
            self.parts = _ENDS_OF_EDGES
            return True
        rows_of = _rows_of(value)
        if rows_of is not None:
            self.gathered.append(rows_of)
            return True
        return self._follow_call(value)

    def _follow_call(self, value: ast.expr) -> bool:
        """The same of what a function of the file returns, which gathers it."""
        returned = returned_by(self._place, value)
        if len(returned) != 1 or id(returned[0][1]) in self._entered:
            return False
        caller, ((self._place, gathered),) = self._place, returned
        self._entered.add(id(gathered))
        self.statements.append(self._place.statement)
        is_gathered = self.follow(gathered)
        self._place = caller
        return is_gathered

    def _follow_variable(self, variable: ast.Name) -> bool:
        function, name = self._place.function, variable.id
        if function is None:
            return False
        reads, bindings = _reads_and_bindings(function, variable)
        is_shared = len(reads) != 1 and not self._are_mapped(function, reads)
        if is_shared and self.parts == 1:
            return False  # what is joined is another tensor: its parts may be read elsewhere
        self.is_shared |= is_shared
        if name in parameters(function) and not bindings:
            is_gathered = function.name == _MESSAGE and name.endswith(_ENDS)
            if is_gathered:
                self.gathered.append(ast.Name(name[:-2]))
            return is_gathered
        if len(bindings) != 1:
            return False
        (binding, value), *_ = bindings
        if value is None or not isinstance(binding, (ast.Assign, ast.AnnAssign)):
            return False
        if not is_shared:
            self.statements.append(binding)
        return self.follow(value)

    def _are_mapped(self, function: ast.AST, reads: Sequence[ast.Name]) -> bool:
        """Whether each read hands a value to a linear layer, of which any may come first."""
        maps = [_linear_map(self._place, node) for node in ast.walk(function)]
        given = [one[1] for one in maps if one is not None]
        return bool(reads) and all(any(read is one for one in given) for read in reads)


def _reads_and_bindings(
    function: ast.FunctionDef | ast.AsyncFunctionDef, variable: ast.Name
) -> tuple[list[ast.Name], list[tuple[ast.AST, ast.expr | None]]]:
    """The reads of a variable that see the same value as one of them, and what binds that.

    Where the function's own statements bind it one after the other each has reads of its own;
    else they are all of them.
    """
    reads = [node for node, _ in reads_of(function, variable.id)]
    bindings = [
        (node, value)
        for node in ast.walk(function)
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and target.id == variable.id
    ]
    numbers = {id(one): at for at, body in enumerate(function.body) for one in ast.walk(body)}
    if not all(any(node is one for one in function.body) for node, _ in bindings):
        return reads, bindings
    bound = [numbers[id(node)] for node, _ in bindings]

    def last_before(node: ast.AST) -> int:
        return max((at for at in bound if at < numbers.get(id(node), 0)), default=-1)

    own = last_before(variable)
    return (
        [one for one in reads if last_before(one) == own],
        [pair for pair in bindings if numbers[id(pair[0])] == own],
    )


def _pairs_of_rows(value: ast.expr) -> ast.expr | None:
    """``x`` in ``x[edges].permute(1, 0, 2).flatten(1)``: both ends of each edge in one row."""
    methods: list[str] = []
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if called_name(value) == _SELECTING:
            break
        methods.append(called_name(value))
        value = value.func.value
    joins = methods[:1] and methods[0] in ("flatten", *_RESHAPING)
    if not joins or not any(one in _SWAPPING for one in methods[1:]):
        return None
    return _rows_of(value) if {*methods} <= {"flatten", *_RESHAPING, *_SWAPPING} else None


def _rows_of(value: ast.expr) -> ast.expr | None:
    """``x`` in ``x[src]`` and ``x.index_select(0, src)``; None for slices, and numbers of rows."""
    if isinstance(value, ast.Subscript):
        is_index = isinstance(value.slice, (ast.Name, ast.Attribute, ast.Subscript))
        return value.value if is_index else None
    if called_name(value) != _SELECTING or not isinstance(value, ast.Call):
        return None
    if not isinstance(value.func, ast.Attribute):
        return None
    names, of_torch = ["input", "dim", "index"], ast.unparse(value.func.value) == "torch"
    given = dict(zip(names[not of_torch :], value.args, strict=False))
    given |= {one.arg: one.value for one in value.keywords if one.arg is not None}
    of, dim = given.get("input") if of_torch else value.func.value, given.get("dim")
    return of if isinstance(dim, ast.Constant) and dim.value == 0 else None


def _is_bound_to(place: Place, attribute: ast.expr, kind: str) -> bool:
    """Whether a class binds an attribute to what it makes of one kind, and to nothing else."""
    values = _bound_to(place, attribute)
    return bool(values) and all(
        isinstance(one, ast.Call) and called_name(one) == kind for one in values
    )


def _bound_to(place: Place, attribute: ast.expr) -> list[ast.expr | None]:
    """What the class around a statement, or one of the file that it is of, binds an attribute to.

    Also one by one in order: ``self.q, self.k = (nn.Linear(n, n) for _ in range(2))``.
    """
    classes = [place.class_] if place.class_ is not None else []
    for class_ in classes:  # which grows by those that they are of
        names = {ast.unparse(base) for base in class_.bases}
        classes += [c for c in place.program.classes() if c.name in names and c not in classes]
    text = ast.unparse(attribute)
    for class_ in classes:
        values = [
            value.elt if isinstance(value, _EACH) and len(bound_names(node)) > 1 else value
            for node in ast.walk(class_)
            for target, value in assigned(node)
            if ast.unparse(target) == text
        ]
        if values:
            return values  # what a class binds takes the place of what its base bound
    return []
