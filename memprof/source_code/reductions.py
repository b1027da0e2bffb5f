"""Whether all that a function does with a joined tensor is to reduce it, and over which parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    called_name,
    loaded_names,
    own_calls,
)
from memprof.source_code.scopes import (
    bound_in_turn,
    nodes_around,
    parameters,
    reads_of,
    reads_of_binding,
)
from memprof.source_code.verbs import JOINING

__all__ = [
    "Reduced",
    "Reduction",
    "computed_by_value",
    "needs_more",
    "picking",
    "reducing",
    "reduction_of",
    "reductions_of",
    "summed_indices",
]

_PICKING = frozenset(
    (
        *("all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "index_select"),
        *("logsumexp", "max", "mean", "median", "min", "mode", "narrow", "norm", "nansum"),
        *("nanmean", "prod", "select", "std", "std_mean", "sum", "topk", "var", "var_mean"),
    )
)
"""Methods of tensors, and functions of torch, that reduce a dimension or take a part of it."""
_ADDING = frozenset(
    (
        *("all", "amax", "amin", "any", "count_nonzero", "logsumexp", "max", "mean", "min", "norm"),
        *("nansum", "nanmean", "prod", "std", "std_mean", "sum", "var", "var_mean"),
    )
)
"""Those of them that can be told from values that come one after the other."""
_ELEMENTWISE = frozenset(
    (
        *("abs", "clamp", "cpu", "double", "exp", "float", "log", "log_softmax", "neg", "pow"),
        *("relu", "sigmoid", "softmax", "sqrt", "square", "tanh", "to"),
    )
)
"""Those that compute a value for each value, or along a dimension within each row."""
_OF_SEVERAL = frozenset(("atan2", "fmax", "fmin", "hypot", "maximum", "minimum", "where"))
"""Those that compute a value of the values that several tensors have at one place."""
_LOSSES = frozenset(
    (
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"),
        *("gaussian_nll_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss"),
        *("smooth_l1_loss",),
    )
)
"""Functions of torch that return one number, the mean of what each row gives."""
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "numel", "shape", "size"))
_DEEPEST = 3
"""Names that are bound one after the other, before what they stand for is reduced."""
_RESHAPING = ("reshape", "view")


class Reduced(Enum):
    """Along what a joined tensor is reduced."""

    EACH_PART = "each part"
    """Within each part: the parts could be reduced before they are joined."""
    OVER_PARTS = "over the parts"
    """Over the parts: what is needed could be added up as they come."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """How a joined tensor is reduced."""

    along: Reduced
    """Over the parts, where one of several reductions is."""
    texts: tuple[str, ...]
    """The reductions, as written: ``samples.var(0)``."""
    lines: tuple[int, ...]
    """Of those within each part, whose results remain."""
    joined_at: Place | None = None
    """The statement that joins; None where parts are reduced one by one."""


def reduction_of(
    place: Place, programs: Sequence[Program] = (), number: int = 0
) -> Reduction | None:
    """The reductions that are all a function does with the tensor that a statement joins.

    None where it is read in another way as well, or where that cannot be told.

    Args:
        place: the statement.
        programs: files with functions that the joined tensor may be handed to.
        number: of a statement that joins several, which of them is meant.
    """
    joins = own_calls(place.statement, *JOINING)
    joins.sort(key=lambda call: (call.lineno, call.col_offset))
    if not number < len(joins):
        return None
    dim = _dimension(joins[number], 1, 0)
    calls = reductions_of(place, joins[number], programs)
    kinds = [_along(call, dim) if call is not None else None for call in calls]
    if not kinds or None in kinds:
        return None
    along = Reduced.OVER_PARTS if Reduced.OVER_PARTS in kinds else Reduced.EACH_PART
    in_order = sorted(filter(None, calls), key=lambda call: (call.lineno, call.col_offset))
    texts = tuple(dict.fromkeys(map(ast.unparse, in_order)))
    within = {call.lineno for call in in_order if _along(call, dim) is Reduced.EACH_PART}
    return Reduction(along, texts, tuple(sorted(within)), place)


def reductions_of(
    place: Place, value: ast.expr, programs: Sequence[Program] = ()
) -> list[ast.Call | None]:
    """The calls that reduce what an expression of a statement computes.

    Where it is handed to a function of the file or of ``programs``, those that reduce it there.
    None stands for each read of another kind, and for what it is not known of.
    """
    targets = bound_names(place.statement)
    around = nodes_around(place.statement, value)
    handed = _parameter_given(value, around, (place.program, *programs))
    if handed is not None:
        function, name = handed
        return list(_reductions_in(function, name))
    if not isinstance(place.statement, ast.Assign) or not _is_bound(value, around):
        return [reducing(value, around)]
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        return list(_reductions_of(place, targets[0].id))
    name = _name_of_part(place.statement, value, around)
    return list(_reductions_of(place, name)) if name else [None]


def _name_of_part(assign: ast.Assign, value: ast.expr, around: list[ast.AST]) -> str:
    """The name that one of several values is bound to: ``x, y = torch.cat(xs), torch.cat(ys)``."""
    targets, values = assign.targets[0], assign.value
    if len(assign.targets) != 1 or not isinstance(targets, ast.Tuple):
        return ""
    if not isinstance(values, ast.Tuple) or len(targets.elts) != len(values.elts):
        return ""
    inside = {id(value), *map(id, around)}
    at = next((at for at, one in enumerate(values.elts) if id(one) in inside), None)
    target = targets.elts[at] if at is not None else None
    return target.id if isinstance(target, ast.Name) else ""


def _parameter_given(
    value: ast.expr, around: list[ast.AST], programs: Sequence[Program]
) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, str] | None:
    """The parameter that a call hands a value to, of the only function of that name."""
    call = around[-1] if around and not isinstance(around[-1], ast.keyword) else None
    keyword = around[-1] if around and isinstance(around[-1], ast.keyword) else None
    call = around[-2] if keyword is not None and len(around) > 1 else call
    if not isinstance(call, ast.Call) or value is call.func:
        return None
    is_of_self = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self"
    is_spread = any(isinstance(one, ast.Starred) for one in call.args)
    if is_spread or not (is_of_self or isinstance(call.func, ast.Name)):
        return None  # a method of another object may be a library's
    files = {id(one.tree): one for one in programs}.values()
    functions = [one for each in files for one in each.functions(called_name(call))]
    if len(functions) != 1:
        return None
    if keyword is not None:
        return functions[0], keyword.arg or ""
    names = [one for one in parameters(functions[0]) if one not in ("self", "cls")]
    given = dict(zip(map(id, call.args), names, strict=False))
    return (functions[0], given[id(value)]) if id(value) in given else None


def _reductions_of(place: Place, name: str, depth: int = 0) -> Iterator[ast.Call | None]:
    """The calls that reduce a variable, or what is bound to what it gives value by value.

    None for each read of another kind. Of a list that is joined under its own name, ``scores =
    torch.cat(scores)``, what the function reads up to there is none of the joined tensor.
    """
    own = {id(node) for node in ast.walk(place.statement)}
    end = place.statement.end_lineno or place.line
    reads = list(reads_of(place.scope, name))
    is_reshaped = any(_is_reshaped(load, around) for load, around in reads)
    in_turn = [] if is_reshaped else bound_in_turn(place.scope, name)
    if in_turn:
        reads = list(reads_of_binding(place.scope, name, place.line))
    for load, around in reads:
        if place.loop is None and (id(load) in own or load.lineno <= end):
            continue
        further = _bound_by_value(place, load, around)
        is_other = further is not None and (further[1] != name or further[0].statement in in_turn)
        if further is not None and is_other and depth < _DEEPEST and not is_reshaped:
            yield from _reductions_of(*further, depth + 1)
        else:
            yield from _reduction_at(load, around, is_reshaped=is_reshaped)


def _bound_by_value(
    place: Place, load: ast.Name, around: list[ast.AST]
) -> tuple[Place, str] | None:
    """The statement and the one name it binds to what it computes of a variable value by value."""
    at = next((at for at, node in enumerate(around) if isinstance(node, ast.Assign)), -1)
    statement = around[at] if at >= 0 else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    where = place.program.place(statement)
    if where is None or not isinstance(target, ast.Name) or not _is_bound(load, around[at:]):
        return None
    return where, target.id


def _reductions_in(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[ast.Call | None]:
    """The same of a parameter of a function."""
    reads = list(reads_of(function, name))
    is_reshaped = any(_is_reshaped(load, around) for load, around in reads)
    for load, around in reads:
        yield from _reduction_at(load, around, is_reshaped=is_reshaped)


def _keeps_rows(call: ast.Call) -> bool:
    """Whether it is a loss, or goes along the last dimension, which a reshape has left alone."""
    at = int(_is_of_module(call)) + int(called_name(call) in ("norm", "topk"))
    given = [one.value for one in call.keywords if one.arg == "dim"] or call.args[at : at + 1]
    return called_name(call) in _LOSSES or [ast.unparse(one) for one in given] == ["-1"]


def _reduction_at(
    load: ast.Name, around: list[ast.AST], *, is_reshaped: bool = False
) -> Iterator[ast.Call | None]:
    if any(isinstance(node, (*FUNCTIONS, ast.Lambda)) for node in around[1:]):
        yield None
    elif _is_of_shape(around) or _is_reshaped(load, around):
        return
    else:
        call = reducing(load, around)
        # A reshape numbers the dimensions anew: only what goes over all rows means the same.
        yield call if call is None or not is_reshaped or _keeps_rows(call) else None


def _is_of_shape(around: list[ast.AST]) -> bool:
    return isinstance(around[-1], ast.Attribute) and around[-1].attr in _OF_SHAPE


def _is_reshaped(load: ast.Name, around: list[ast.AST]) -> bool:
    """``logits = logits.view(-1, logits.size(-1))``: the same values under the same name."""
    statement = next((node for node in around[::-1] if isinstance(node, ast.stmt)), None)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0], statement.value
    return (
        isinstance(target, ast.Name)
        and target.id == load.id
        and isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.value is load
        and _leaves_last(value, load.id)
    )


def _leaves_last(call: ast.Call, name: str) -> bool:
    """``x.view(-1, x.size(-1))``, ``x.contiguous()``: what is in a row stays in one."""
    if called_name(call) == "contiguous":
        return True
    if called_name(call) not in _RESHAPING or [*map(ast.unparse, call.args[:1])] != ["-1"]:
        return False
    last = (f"{name}.size(-1)", f"{name}.shape[-1]")
    return len(call.args) == len(last) and ast.unparse(call.args[1]) in last


def _is_bound(node: ast.AST, around: list[ast.AST]) -> bool:
    """Whether an assignment binds a value, or what is computed of it value by value."""
    waiting = [*around]
    if len(waiting) > 1 and isinstance(waiting[1], ast.Tuple):
        del waiting[1]  # one of several that it binds
    while len(waiting) > 1:
        call = computed_by_value(node, waiting)
        if call is None:
            return False
        node = call
    return True


def reducing(node: ast.AST, around: list[ast.AST]) -> ast.Call | None:
    """The call that reduces a value, after nothing but what is done value by value."""
    waiting = [*around]
    while waiting:
        parents = [*waiting]
        computing = computed_by_value(node, waiting)
        if computing is None:
            call = _called_with(node, parents)
            is_loss = call is not None and called_name(call) in _LOSSES
            return call if is_loss else picking(node, parents)
        node = computing
    return None


def needs_more(place: Place, call: ast.Call, item: str) -> bool:
    """Whether a reduction reads another variable of the function: it may not be known before."""
    own = {
        node.id
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return bool(loaded_names(call) & (own | {*parameters(place.scope)}) - {item})


def picking(node: ast.AST, around: list[ast.AST]) -> ast.Call | None:
    """The innermost call around a value, where it reduces that or takes one value of each row."""
    call = _called_with(node, around)
    if call is None or _operand(call) is not node:
        return None
    is_reducing = called_name(call) in _PICKING or bool(summed_indices(call))
    return call if is_reducing or _picks_one(call) else None


def summed_indices(call: ast.Call) -> tuple[int, ...]:
    """The dimensions that an ``einsum`` of one operand adds up, counted from the last: ``(-2,)``.

    Empty for any other call, and where the others do not stay in their order.
    """
    equation = call.args[0] if called_name(call) == "einsum" and call.args else None
    if len(call.args) != len(("equation", "operand")) or not isinstance(equation, ast.Constant):
        return ()
    operand, arrow, result = str(equation.value).replace(" ", "").partition("->")
    is_plain = operand.isalpha() and len(set(operand)) == len(operand)
    if not arrow or not is_plain or result != "".join(one for one in operand if one in result):
        return ()
    return tuple(at - len(operand) for at, one in enumerate(operand) if one not in result)


def computed_by_value(node: ast.AST, waiting: list[ast.AST]) -> ast.expr | None:
    """What the innermost of the nodes around a value computes value by value; takes it off them.

    None where they compute something else. ``log_softmax`` and the like count, which compute along
    a dimension within each row.
    """
    parent = waiting.pop()
    if isinstance(parent, (ast.BinOp, ast.Compare, ast.UnaryOp)):
        return None if isinstance(getattr(parent, "op", None), ast.MatMult) else parent
    call = _called_with(node, [*waiting, parent])
    if call is None or not _is_by_value(call, node):
        return None
    if call is not parent:
        waiting.pop()
    return call


def _is_by_value(call: ast.Call, node: ast.AST) -> bool:
    """Whether a call computes a value for each of those that one of its operands has."""
    if called_name(call) in _OF_SEVERAL:
        return isinstance(call.func, ast.Attribute)
    return called_name(call) in _ELEMENTWISE and _operand(call) is node


def _called_with(node: ast.AST, around: list[ast.AST]) -> ast.Call | None:
    """The call of a value's method, or with it as an argument."""
    parent = around[-1]
    call = around[-2] if isinstance(parent, ast.Attribute) and len(around) > 1 else parent
    if not isinstance(call, ast.Call):
        return None
    return call if call.func is parent or any(one is node for one in call.args) else None


def _picks_one(call: ast.Call | None) -> bool:
    """Whether a call takes one value of each row: ``x.gather(-1, index.unsqueeze(-1))``."""
    if call is None or called_name(call) != "gather":
        return False
    index = call.args[-1] if call.args else None
    if isinstance(index, ast.Subscript):
        entries = index.slice.elts if isinstance(index.slice, ast.Tuple) else [index.slice]
        return isinstance(entries[-1], ast.Constant) and entries[-1].value is None
    return isinstance(index, ast.Call) and called_name(index) == "unsqueeze"


def _operand(call: ast.Call) -> ast.expr | None:
    """What a call computes with: ``x`` of ``x.mean(0)`` and of ``torch.mean(x, 0)``."""
    if not isinstance(call.func, ast.Attribute):
        return None
    if _is_of_module(call):
        at = int(called_name(call) == "einsum")  # after its equation
        return call.args[at] if len(call.args) > at else None
    return call.func.value


def _is_of_module(call: ast.Call) -> bool:
    """Whether a function of torch's is called, not a method: ``torch.mean``, ``F.softmax``."""
    assert isinstance(call.func, ast.Attribute)
    return ast.unparse(call.func.value) in ("F", "nn.functional", "torch", "torch.nn.functional")


def _along(call: ast.Call, dim: int | None) -> Reduced | None:
    """Along what a reduction goes of a tensor that was joined along ``dim``; None: not known."""
    name = called_name(call)
    if name in _LOSSES:
        return Reduced.OVER_PARTS
    at = int(_is_of_module(call)) + int(name in ("norm", "topk"))
    is_whole = len(call.args) <= at and all(one.arg != "dim" for one in call.keywords)
    if is_whole and name != "topk":
        return Reduced.OVER_PARTS if name in _ADDING else None
    reduced = _dimensions(call, at, -1)
    if dim is None or not reduced:
        return None
    if dim not in reduced:
        return Reduced.EACH_PART
    return Reduced.OVER_PARTS if name in _ADDING else None


def _dimensions(call: ast.Call, at: int, default: int) -> tuple[int, ...]:
    """The numbers given as ``dim``; empty where they are not written out."""
    one = _dimension(call, at, default)
    if one is not None:
        return (one,)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
    given += call.args[at : at + 1]
    try:
        values = ast.literal_eval(given[0])
    except ValueError:
        return ()
    is_numbers = isinstance(values, (tuple, list)) and all(type(value) is int for value in values)
    return tuple(values) if is_numbers else ()


def _dimension(call: ast.Call, at: int, default: int) -> int | None:
    """The number given as ``dim``; None where it is no number that is written out."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
    given += call.args[at : at + 1]
    if not given:
        return default
    try:
        value = ast.literal_eval(given[0])
    except ValueError:
        return None
    return value if type(value) is int else None
