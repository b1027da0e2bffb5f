"""What is read of a value that a stack of calls returns: all of it, or one part that is written."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import dropwhile

from memprof.source_code.branches import never_run
from memprof.source_code.einsums import einsum_of
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    FUNCTIONS,
    LOOPS,
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
    source_of,
)
from memprof.source_code.reductions import computed_by_value
from memprof.source_code.scopes import COMPREHENSIONS, nodes_around, parameters, reads_of
from memprof.source_code.values import values_of
from memprof.source_code.verbs import CONVERTING, JOINING
from memprof.trace import Frame

__all__ = [
    "ComputedPart",
    "Followed",
    "Instead",
    "PartRead",
    "computed_part",
    "followed",
    "gathered_part",
    "joined_part",
    "newest_read",
    "overwritten",
    "part_read",
]

_OF_SHAPE = frozenset(("device", "dtype", "ndim", "requires_grad", "shape", "size"))
"""Attributes and methods that read none of a tensor's values."""
_TO_KEEP = ("logits_to_keep", "num_logits_to_keep")
"""Parameters by which models of transformers are told for how many positions to compute logits."""


_OBJECT_OF_FIELDS = frozenset(("ModelOutput", "NamedTuple", "dataclass"))
"""What makes a class whose objects have what they are given."""
_OF_MODULES = "/torch/nn/modules/module.py"
_DIAGONALS = frozenset(("diag", "diagonal", "trace"))
_PRODUCTS = frozenset(("cdist", "matmul", "mm"))
"""Functions that compute a value for each pair of rows."""
_COVARIANCE = "covariance_matrix"
"""Attribute of `torch.distributions.MultivariateNormal`, and of classes derived from it."""
_REPEATING = (*LOOPS, *COMPREHENSIONS)
_PAIR = 2
_NUMBERS = "arange"
_ENLARGING = frozenset(("grid_sample", "interpolate", "upsample"))
_CHOOSING = frozenset(("argmax", "batched_nms", "nms", "topk"))
_OF_ROWS = frozenset(("softmax", "log_softmax", "cross_entropy"))
"""Functions of each row's values: of one value for each row nobody asks them."""
_NAMESPACES = frozenset(("F", "torch", "torch.nn.functional", "nn.functional"))
_SELECTING = frozenset(("narrow", "select"))
_OF_POSITIONS = ("1", "-2")
"""The dimension behind that of the batch, or before that of a layer's features."""
_OVERWRITING = frozenset(("copy_", "fill_", "zero_"))
_STACKING = "stack"
_SORTS = frozenset(("argsort", "sort"))


class Instead(Enum):
    """What computes a part by itself."""

    ROWS = "the rows of a product"
    """For the diagonal of a product of matrices."""
    VARIANCE = "the variance of a distribution"
    """For the diagonal of its covariance matrix."""
    FIRST = "topk"
    """For the first of sorted values."""
    EACH = "the part of each that is stacked"
    """For a part of what is joined of a list."""
    ONE = "the one that is read"
    """For one of what is joined of a list."""
    OPERANDS = "the part of the operands"
    """For a part of what is computed value by value."""
    LOGITS = "the logits that are meant, less the logarithm of the sum of each row"
    """For the logarithms of probabilities of which some are gathered."""
    LARGEST = "the largest of the logits"
    """For the most probable: a softmax changes no order."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputedPart:
    """The one part that is read of what a statement computes itself, and what would compute it."""

    text: str
    """As it is written: ``scores.diagonal()``."""
    instead: Instead
    """What would compute it."""


@dataclass(frozen=True, slots=True, eq=False)
class PartRead:
    """The one part of a value that is read."""

    place: Place
    """The statement that reads it."""
    text: str
    """As it is written there: ``logits[:, -1]``."""
    switch: str
    """The parameter of a function on the way that says how much is computed; empty without one."""
    count: str = ""
    """How many of the last places are read, as it is written; empty where others are."""


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """Where a value that functions return as it is was bound to a name, or one of its fields."""

    place: Place
    name: str
    field: str
    """The field of the name that it is; empty where the name is the value."""
    switch: str
    at: int
    """Place of the statement's frame in the stack."""


@dataclass(frozen=True, slots=True, eq=False)
class _Unbound:
    """The statement that computes with a value, or a field of it, at once."""

    place: Place
    field: str
    switch: str


def part_read(stack: Sequence[Frame]) -> PartRead | None:
    """The only part that is read of what the innermost call of a stack returns.

    ``stack`` is innermost first. The value is followed from function to function: each has to
    return it as it is, or as a field of what it returns. None where it is read whole, where parts
    of several kinds are read, or where that cannot be told from the source.
    """
    end = _followed(stack, shifted=False)
    if isinstance(end, Followed):
        return _only_part(end.place, end.name, end.field, end.switch)
    return (_part_of_field(end) if end is not None else None) or _part_of_call(stack)


def _part_of_field(end: _Unbound) -> PartRead | None:
    """The part of a field that a statement takes at once: ``model(ids).logits[:, -1]``."""
    parts = _parts_of_field(end.place.statement, end.field)
    if len(parts) != 1 or not _is_one_part(parts[0].slice):
        return None
    return PartRead(end.place, _in_short(parts[0]), end.switch, _last_places(parts[0]))


def _parts_of_field(statement: ast.stmt, field: str) -> list[ast.Subscript]:
    """Subscripts of a field of what a call returns, in a statement."""
    return [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Subscript) and _is_field_of_call(node.value, field)
    ]


def _is_field_of_call(value: ast.expr, field: str) -> bool:
    call, taken = _without_field(value)
    return bool(taken) and taken == field and _is_the_call(call)


def _in_short(part: ast.Subscript) -> str:
    """``model(…).logits[:, -1]``: the call without what it is given."""
    call, _ = _without_field(part.value)
    if not isinstance(call, ast.Call):
        call = part.value
    given = ast.unparse(call)
    function = ast.unparse(call.func) if isinstance(call, ast.Call) else given
    return ast.unparse(part).replace(given, f"{function}(…)", 1)


def _part_of_call(stack: Sequence[Frame]) -> PartRead | None:
    """The part that a statement takes of a call at once: ``logits = model(ids)[:, -1]``."""
    switch = ""
    for frame in stack:
        if frame_kind(frame.filename) is FrameKind.TORCH:
            continue
        place = _place_of(frame)
        if place is None or not isinstance(place.statement, (ast.Assign, ast.Return)):
            return None
        names = set(parameters(place.function)) if place.function is not None else set()
        switch = switch or next((one for one in _TO_KEEP if one in names), "")
        value = place.statement.value
        if isinstance(place.statement, ast.Return) and _is_the_call(value):
            continue
        if not isinstance(value, ast.Subscript) or not _is_the_call(value.value):
            return None
        if not _is_one_part(value.slice):
            return None
        return PartRead(place, _in_short(value), switch, _last_places(value))
    return None


def followed(stack: Sequence[Frame], *, shifted: bool = False) -> Followed | None:
    """Where the value that the innermost call of a stack returns is bound to be read.

    None where that cannot be told from the source. ``shifted``: also without some of its places,
    as ``model(ids).logits[:, :-1]`` is without the last.
    """
    end = _followed(stack, shifted=shifted)
    return end if isinstance(end, Followed) else None


def _followed(stack: Sequence[Frame], *, shifted: bool) -> Followed | _Unbound | None:
    """Where the value is bound, or the statement that binds it to no name."""
    field, switch = "", ""
    for at, frame in enumerate(stack):
        kind = frame_kind(frame.filename)
        if kind is FrameKind.TORCH:
            continue  # a module's call passes on what its forward returns
        place = _place_of(frame)
        if place is None:
            return None
        if place.function is not None:
            names = set(parameters(place.function))
            switch = switch or next((one for one in _TO_KEEP if one in names), "")
        statement = place.statement
        if isinstance(statement, ast.Return):
            if field and _parts_of_field(statement, field):
                return _Unbound(place, field, switch)
            if _is_the_call(statement.value) and not _values_in(place, statement.value):
                continue
            taken = _field_of_call(place, statement.value)
            if field or not taken:
                return _Unbound(place, field, switch)
            field = taken
            continue
        name, taken = _name_bound(statement, field, shifted=shifted)
        if not name or (taken and taken != field):
            return _Unbound(place, field, switch)
        if taken:  # ``logits = model(ids).logits``
            return Followed(place, name, "", switch, at)
        dead = _never_run(place, stack[at + 1 :])
        if _is_returned(place, name, dead):
            continue
        in_field = _field_returned(place, name, dead)
        if in_field and not field:
            field = in_field
            continue
        return Followed(place, name, field, switch, at)
    return None


def _place_of(frame: Frame) -> Place | None:
    program = None if frame.changed else source_of(frame.filename)
    return program.at(frame.line) if program is not None else None


def _never_run(place: Place, outer: Sequence[Frame]) -> set[ast.AST]:
    """What of the function around a statement does not run, as those ``outer`` frames call it."""
    by_module = dropwhile(lambda frame: frame.filename.endswith(_OF_MODULES), outer)
    caller = next(by_module, None)
    calling = _place_of(caller) if caller is not None else None
    value = getattr(calling.statement, "value", None) if calling is not None else None
    if isinstance(value, (ast.Attribute, ast.Subscript)):
        value = value.value
    if place.function is None or not isinstance(value, ast.Call):
        return set()
    return never_run(place.function, value, is_method=place.class_ is not None)


def computed_part(place: Place) -> ComputedPart | None:
    """The only part that is read of what a statement computes.

    That is a product of matrices, sorted values, or what is computed value by value. None where it
    computes none of these, where it is read whole, or where that is not known.
    """
    chosen = _chosen_part(place)
    if chosen is not None:
        return chosen
    for node in ast.walk(place.statement):
        instead = _way_of(node)
        if instead is not None:
            assert isinstance(node, ast.expr)
            parts = _parts_of(place, node, instead)
            texts = [ast.unparse(part) for part in parts if part is not None]
            # Of sorted values and of their places the same few.
            alike = [part.slice for part in parts if isinstance(part, ast.Subscript)]
            same = set(map(ast.unparse, alike)) if instead is Instead.FIRST else set(texts)
            if None not in parts and len(same) == 1:
                return ComputedPart(min(texts), instead)
    return None


def joined_part(place: Place, programs: Sequence[Program]) -> ComputedPart | None:
    """The one item that is read of what a statement stacks of a list: ``torch.stack(states)[-1]``.

    Where it returns that, each call of its function takes the same item: ``solve(f, x)[-1]``.
    """
    joins = [one for one in calls_in(place.statement, _STACKING) if _joins_list(one)]
    if len(joins) != 1:
        return None
    (join,) = joins
    if not isinstance(place.statement, ast.Return) or place.statement.value is not join:
        parts = _parts_of(place, join, Instead.ONE)
        texts = {ast.unparse(part) if part is not None else "" for part in parts}
        return (
            ComputedPart(texts.pop(), Instead.ONE) if len(texts) == 1 and "" not in texts else None
        )
    function = place.function
    named = [f for one in programs for f in one.functions(function.name)] if function else []
    if function is None or any(one is not function for one in named):
        return None
    taken = {one for use in _uses_of(function.name, programs) for one in _taken_of_call(*use)}
    if len(taken) != 1 or "" in taken:
        return None
    return ComputedPart(f"{function.name}(…)[{taken.pop()}]", Instead.ONE)


def _uses_of(
    name: str, programs: Sequence[Program]
) -> Iterator[tuple[Place | None, ast.expr, list[ast.AST]]]:
    """Where a function's name stands, and the nodes around it in its statement; imports apart."""
    for program in {id(one.tree): one for one in programs}.values():
        for node in program.nodes:
            if (isinstance(node, ast.Name) and node.id == name) or (
                isinstance(node, ast.Attribute) and node.attr == name
            ):
                where = program.place(node)
                around = nodes_around(where.statement, node) if where is not None else []
                yield where, node, around


def _taken_of_call(place: Place | None, name: ast.expr, around: list[ast.AST]) -> Iterator[str]:
    """The numbers of the items that are taken of what a call returns; empty where all is read.

    Of a name that it is bound to, by each read of that.
    """
    call, above = around[-1] if around else None, around[-2] if len(around) > 1 else None
    if place is None or not isinstance(call, ast.Call) or call.func is not name:
        yield ""
        return
    reads: list[tuple[ast.expr, ast.AST | None]] = [(call, above)]
    if isinstance(above, ast.Assign) and all(isinstance(one, ast.Name) for one in above.targets):
        bound = [ast.unparse(one) for one in above.targets]
        loads = [one for name_bound in bound for one in reads_of(place.scope, name_bound)]
        reads = [(load, parents[-1] if parents else None) for load, parents in loads]
        if not reads:
            yield ""
    for read, parent in reads:
        if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
            continue
        is_item = isinstance(parent, ast.Subscript) and parent.value is read
        is_one = is_item and isinstance(parent, ast.Subscript) and _is_one(parent.slice)
        yield ast.unparse(parent.slice) if is_one and isinstance(parent, ast.Subscript) else ""


def _is_one(index: ast.expr) -> bool:
    """Whether a subscript takes one item of the first dimension, by a number."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return not isinstance(first, ast.Slice) and _is_number(first)


def _chosen_part(place: Place) -> ComputedPart | None:
    """The few that are chosen by other values of what a statement enlarges: ``masks[keep]``.

    The next statement that reads it binds its name to these, and the best few are what an index
    names that `topk` or a relative of it gave.
    """
    statement = place.statement
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if not isinstance(statement, ast.Assign) or len(names) != 1:
        return None
    if not any(called_name(node) in _ENLARGING for node in ast.walk(statement.value)):
        return None
    end = statement.end_lineno or statement.lineno
    later = [one for one in reads_of(place.scope, names[0]) if one[0].lineno > end]
    load, around = min(later, key=lambda one: one[0].lineno, default=(None, []))
    part = around[-1] if around else None
    if load is None or not isinstance(part, ast.Subscript) or part.value is not load:
        return None
    reading = place.program.place(part)
    rebinds = reading is not None and any(
        isinstance(one, ast.Name) and one.id == names[0] for one in bound_names(reading.statement)
    )
    if reading is None or not rebinds or not _names_few(place, part.slice):
        return None
    reads = [one for one, _ in later if one.lineno == load.lineno]
    return ComputedPart(ast.unparse(part), Instead.OPERANDS) if len(reads) == 1 else None


def _names_few(place: Place, index: ast.expr) -> bool:
    """Whether an index is a variable that the best few places were bound to."""
    return isinstance(index, ast.Name) and any(
        called_name(node) in _CHOOSING
        for value in values_of(place, index.id)
        if value is not None
        for node in ast.walk(value)
    )


def gathered_part(place: Place) -> ComputedPart | None:
    """What is gathered of the logarithms of probabilities that a statement computes.

    Or, of probabilities, which is the most probable. None where they are read in another way, too,
    or no statement computes any.
    """
    for node in ast.walk(place.statement):
        if called_name(node) not in ("log_softmax", "softmax"):
            continue
        assert isinstance(node, ast.Call)
        around = nodes_around(place.statement, node)
        reads: list[tuple[ast.expr, list[ast.AST]]] = [(node, around)]
        if around and isinstance(around[-1], ast.Assign):
            names = [one.id for one in bound_names(around[-1]) if isinstance(one, ast.Name)]
            reads = list(reads_of(place.scope, names[0])) if len(names) == 1 else []
        for instead, name in ((Instead.LARGEST, "argmax"), (Instead.LOGITS, "gather")):
            if name == "gather" and not (called_name(node) == "log_softmax" and _keeps_rows(node)):
                continue
            calls = [_called(load, above, name) for load, above in reads]
            if name == "argmax":  # along another dimension the sums of the rows matter
                along = _along(node)
                calls = [one if one and _along(one) == along != "" else None for one in calls]
            texts = [ast.unparse(call) for call in calls if call is not None]
            if texts and len(texts) == len(calls):
                return ComputedPart(texts[0], instead)
    return None


def _along(call: ast.Call) -> str:
    """The dimension that a function of torch, or a method, is told; empty for none."""
    given = keyword(call, "dim")
    if given is None:
        function = call.func
        receiver = ast.unparse(function.value) if isinstance(function, ast.Attribute) else "F"
        own = call.args[1:] if receiver in _NAMESPACES else call.args
        given = own[0] if own else None
    return ast.unparse(given) if given is not None else ""


def _called(value: ast.expr, around: list[ast.AST], name: str) -> ast.Call | None:
    """The call of a function or method on a value: ``x.gather(-1, i)``, ``torch.gather(x, …)``."""
    parent = around[-1] if around else None
    call = around[-2] if isinstance(parent, ast.Attribute) and len(around) > 1 else parent
    if not isinstance(call, ast.Call) or called_name(call) != name:
        return None
    return call if call.func is parent or call.args[:1] == [value] else None


def _way_of(node: ast.AST) -> Instead | None:
    """What could compute a part of an expression by itself; None for other expressions."""
    if isinstance(node, ast.Attribute) and node.attr == _COVARIANCE:
        return Instead.VARIANCE
    if _is_product(node):
        return Instead.ROWS
    if _is_sorted(node):
        return Instead.FIRST
    if called_name(node) in JOINING and _joins_list(node):
        return Instead.EACH
    return Instead.OPERANDS if _is_by_value(node) else None


def _joins_list(node: ast.AST) -> bool:
    """Whether a call joins what a variable holds, along the first dimension."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    along = keyword(node, "dim") or next(iter(node.args[1:]), None)
    is_first = along is None or (isinstance(along, ast.Constant) and along.value == 0)
    return is_first and isinstance(node.args[0], ast.Name)


def _is_by_value(node: ast.AST) -> bool:
    """Whether each value of the result comes of one value of each operand: ``x.float() / 255``."""
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.MatMult)
    return called_name(node) in CONVERTING and isinstance(
        getattr(node, "func", None), ast.Attribute
    )


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    whole = einsum_of(node)
    return called_name(node) in _PRODUCTS or (whole is not None and whole.is_product)


def _is_sorted(node: ast.AST) -> bool:
    return called_name(node) in _SORTS and isinstance(getattr(node, "func", None), ast.Attribute)


def _parts_of(place: Place, value: ast.expr, instead: Instead) -> list[ast.expr | None]:
    """The part that each read of a value takes; None for one that reads another part, or all."""
    around = nodes_around(place.statement, value)
    statement = place.statement
    if instead is Instead.ROWS:  # the diagonal of a sum is that of its terms
        while around and isinstance(outer := around[-1], (ast.BinOp, ast.UnaryOp)):
            if isinstance(outer.op, ast.MatMult):
                break
            value = outer
            around.pop()
    if not isinstance(statement, ast.Assign) or statement.value is not value:
        return [_part_of(place, value, around, instead)]
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if len(names) != len(bound_names(statement)):
        return [None]
    parts: list[ast.expr | None] = []
    for name in names:
        for load, parents in reads_of(place.scope, name):
            if isinstance(parents[-1], ast.Attribute) and parents[-1].attr in _OF_SHAPE:
                continue
            is_earlier = load.lineno <= (statement.end_lineno or 0) and place.loop is None
            if is_earlier and any(one.id == name for one in _names(value)):
                continue  # what the name had before, as in ``states = torch.stack(states)``
            in_loop_of_its_own = any(
                isinstance(node, _REPEATING) and node not in place.around for node in parents
            )
            part = None if in_loop_of_its_own else _part_of(place, load, parents, instead)
            parts.append(part)
    return parts


def _part_of(
    place: Place, value: ast.expr, around: list[ast.AST], instead: Instead
) -> ast.expr | None:
    """The expression around a value that takes its diagonal, its first few, or another part."""
    parent = around[-1] if around else None
    if instead not in (Instead.ROWS, Instead.VARIANCE):
        takes: Callable[[ast.expr], bool] = _is_narrower
        if instead is Instead.FIRST:
            takes = _are_first_few
        elif instead is Instead.EACH:
            takes = partial(_is_part_of_each, place)
        elif instead is Instead.ONE:
            takes = _is_one
        if isinstance(parent, ast.Subscript) and parent.value is value and takes(parent.slice):
            return parent
        return None
    call = around[-2] if isinstance(parent, ast.Attribute) and len(around) > 1 else parent
    if not isinstance(call, ast.Call) or called_name(call) not in _DIAGONALS:
        return None
    is_operand = call.func is parent or any(one is value for one in call.args)
    return call if is_operand else None


def _names(value: ast.expr) -> Iterator[ast.Name]:
    return (node for node in ast.walk(value) if isinstance(node, ast.Name))


def _is_part_of_each(place: Place, index: ast.expr) -> bool:
    """Whether a subscript takes all of the first dimension, and one place of another one."""
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    return _is_whole(entries[0]) and any(
        _is_number(one) or _names_number(place, one) for one in entries
    )


def _names_number(place: Place, entry: ast.expr) -> bool:
    """Whether a name stands for a number that the file itself gives it: ``DEPTH = 4``."""
    return isinstance(entry, ast.Name) and any(
        isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id == entry.id for one in node.targets)
        and _is_number(node.value)
        for node in place.program.tree.body
    )


def _is_narrower(index: ast.expr) -> bool:
    """Whether a subscript takes some places of a dimension, without a tensor that says which."""
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    places = [one for one in entries if not _is_whole(one)]
    numbers = [one for one in places if not isinstance(one, ast.Slice)]
    return bool(places) and all(map(_is_number, numbers))


def _are_first_few(index: ast.expr) -> bool:
    """Whether a subscript takes the first few of one dimension: ``[:, :k]``."""
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    places = [one for one in entries if not _is_whole(one)]
    if len(places) != 1 or not isinstance(places[0], ast.Slice):
        return False
    first = places[0]
    return first.lower is None and first.step is None and first.upper is not None


def _name_bound(statement: ast.stmt, field: str, *, shifted: bool = False) -> tuple[str, str]:
    """``y`` of ``y = f(x)``, and ``out`` of ``y = f(x).out``; empty for other statements.

    Where the value is one of several, ``[0]``, also ``y`` and ``[0]`` of ``y, _ = f(x)``.
    """
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return "", ""
    (target,) = statement.targets
    whole = statement.value
    if shifted and isinstance(whole, ast.Subscript) and _is_of_slices(whole.slice):
        whole = whole.value
    value, taken = _without_field(whole)
    if not _is_the_call(value):
        return "", ""
    if isinstance(target, ast.Tuple) and not taken:
        elements = {f"[{at}]": one for at, one in enumerate(target.elts)}
        if any(isinstance(one, ast.Starred) for one in target.elts):
            return "", ""
        target, taken = elements.get(field, target), field
    return (target.id, taken) if isinstance(target, ast.Name) else ("", "")


def _is_of_slices(index: ast.expr) -> bool:
    """Whether a subscript takes stretches alone, of two dimensions or more: ``[:, :-1]``."""
    return isinstance(index, ast.Tuple) and all(isinstance(one, ast.Slice) for one in index.elts)


def _without_field(value: ast.expr) -> tuple[ast.expr, str]:
    """``f(x)`` and how one of its values is taken, ``logits`` of ``f(x).logits``; else empty."""
    if isinstance(value, ast.Attribute):
        return value.value, value.attr
    if isinstance(value, ast.Subscript):
        return value.value, f"[{ast.unparse(value.slice)}]"
    return value, ""


def _is_the_call(value: ast.expr | None) -> bool:
    """Whether an expression is a call, and no more: what runs within it returns its value."""
    return isinstance(value, ast.Call)


def _field_of_call(place: Place, value: ast.expr | None) -> str:
    """``[0]`` of ``f(x), state``: the one value that a call makes; empty where there are more.

    ``['logits']`` of ``{"logits": f(x)}``, likewise.
    """
    made = [
        (field, one)
        for field, one in _values_in(place, value)
        if any(isinstance(node, ast.Call) for node in ast.walk(one))
    ]
    return made[0][0] if len(made) == 1 and _is_the_call(made[0][1]) else ""


def _values_in(place: Place, value: ast.expr | None) -> list[tuple[str, ast.expr]]:
    """The values of a tuple, a dictionary or an object, each with how it is taken of that.

    Of an object's class the file says that it has no more than what it is given: a data class or a
    named tuple.
    """
    if isinstance(value, ast.Call):
        names = _fields_of(place.program, called_name(value))
        given = [*zip(names, value.args, strict=False)]
        return given + [(one.arg, one.value) for one in value.keywords if one.arg in names]
    if isinstance(value, ast.Tuple):
        return [(f"[{at}]", one) for at, one in enumerate(value.elts)]
    if not isinstance(value, ast.Dict) or None in value.keys:
        return []
    pairs = zip(value.keys, value.values, strict=True)
    return [(f"[{ast.unparse(key)}]", one) for key, one in pairs if key is not None]


def _fields_of(program: Program, name: str) -> list[str]:
    """The fields of a data class or a named tuple of a file; empty for other classes."""
    for one in program.classes():
        marks = [*one.decorator_list, *one.bases]
        if one.name == name and any(_OBJECT_OF_FIELDS & set(_words_of(mark)) for mark in marks):
            targets = [node.target for node in one.body if isinstance(node, ast.AnnAssign)]
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def _words_of(mark: ast.expr) -> list[str]:
    """The names in a decorator or a base: ``dataclasses``, ``dataclass``."""
    return [
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(mark)
        if isinstance(node, (ast.Name, ast.Attribute))
    ]


def _is_returned(place: Place, name: str, dead: set[ast.AST]) -> bool:
    """Whether the function around a statement returns a variable as it is, and does no more.

    What a library's function computes of it besides depends on arguments, as its loss does.
    """
    values = _returned(place, dead)
    if not any(isinstance(value, ast.Name) and value.id == name for value in values):
        return False
    return _is_library(place) or _is_read_once(place, name, dead)


def _field_returned(place: Place, name: str, dead: set[ast.AST]) -> str:
    """How a function returns a variable among others; empty where it does not.

    ``logits`` of a library's ``return Output(logits=logits)``, ``[0]`` of ``return logits, loss``,
    and ``['logits']`` of ``return {"logits": logits}``.
    """
    for value in _returned(place, dead):
        if isinstance(value, ast.Call) and _is_library(place):
            for keyword in value.keywords:
                if isinstance(keyword.value, ast.Name) and keyword.value.id == name:
                    return keyword.arg or ""
        fields = [] if _is_library(place) else _values_in(place, value)
        for field, one in fields:
            if isinstance(one, ast.Name) and one.id == name and _is_read_once(place, name, dead):
                return field
    return ""


def _returned(place: Place, dead: set[ast.AST]) -> Iterator[ast.expr | None]:
    for node in _own_nodes(place.scope, dead):
        if isinstance(node, ast.Return):
            yield node.value


def _is_library(place: Place) -> bool:
    return frame_kind(place.program.filename) is not FrameKind.USER


def _is_read_once(place: Place, name: str, dead: set[ast.AST]) -> bool:
    reads = reads_of(place.scope, name)
    return sum(dead.isdisjoint((load, *around)) for load, around in reads) == 1


def _only_part(place: Place, name: str, field: str, switch: str) -> PartRead | None:
    """The part of a variable, or of its field, that every read of it in the function takes."""
    parts = list(_parts_in(place, name, field, set()))
    texts = {ast.unparse(part) for part in parts if part is not None}
    if None in parts or len(texts) != 1 or parts[0] is None:
        return None
    reading = place.program.place(parts[0])
    if reading is None:
        return None
    return PartRead(reading, texts.pop(), switch, _last_places(parts[0]))


def _last_places(part: ast.expr) -> str:
    """``1`` of ``x[:, -1]`` and of ``x.select(1, -1)``, ``n`` of ``x[:, -n:]``; else empty."""
    entry: ast.expr | None = None
    if isinstance(part, ast.Subscript):
        entries = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
        entry = next((one for one in entries if not _is_whole(one)), None)
    elif isinstance(part, ast.Call) and len(part.args) > 1:
        entry = part.args[1]
    return _from_end(entry.lower if isinstance(entry, ast.Slice) else entry)


def _from_end(index: ast.expr | None) -> str:
    """``n`` of ``-n``, and ``n + 1`` of ``-n - 1``; empty for what is not counted from the end."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        return ast.unparse(index.operand)
    if not isinstance(index, ast.BinOp) or not isinstance(index.op, ast.Sub):
        return ""
    first = _from_end(index.left)
    return f"{first} + {ast.unparse(index.right)}" if first else ""


def _parts_in(place: Place, name: str, field: str, followed: set[str]) -> Iterator[ast.expr | None]:
    """The part that each read of a variable takes; None for one that reads more.

    Also of what is computed of it row by row, ``scores = logits.log_softmax(-1)``.
    """
    followed.add(name)
    later = _behind_rebinding(place, name)
    for load, around in reads_of(place.scope, name):
        if not later.isdisjoint(around):
            continue
        node: ast.expr = load
        waiting = [*around]
        if field:
            parent = waiting.pop()
            taken = _without_field(parent)[1] if isinstance(parent, ast.expr) else ""
            if not taken:
                yield None
                continue
            if taken != field:
                continue
            assert isinstance(parent, ast.expr)
            node = parent
        if isinstance(waiting[-1], ast.Attribute) and waiting[-1].attr in _OF_SHAPE:
            continue
        node, parent = _computed_by_rows(node, waiting)
        if isinstance(parent, ast.Subscript) and parent.value is node:
            is_part = _is_one_part(parent.slice) or _is_of_each_row(place, parent)
            yield parent if is_part else None
            continue
        selecting = waiting[-2] if isinstance(parent, ast.Attribute) else None
        if isinstance(selecting, ast.Call) and _selects_part(selecting):
            yield selecting
            continue
        bound = bound_names(parent) if isinstance(parent, ast.Assign) else []
        is_named = len(bound) == 1 and isinstance(bound[0], ast.Name) and node is not load
        if is_named and bound[0].id not in followed:  # type: ignore[attr-defined]
            yield from _parts_in(place, bound[0].id, "", followed)  # type: ignore[attr-defined]
        else:
            yield None


def _behind_rebinding(place: Place, name: str) -> set[ast.AST]:
    """The statements behind one that binds the name anew, in the block where it was bound.

    ``logits = logits[:, -1]``: what reads the name from there on reads the part.
    """
    for node in reversed(place.around):
        for block in (getattr(node, "body", []), getattr(node, "orelse", [])):
            if not isinstance(block, list) or place.statement not in block:
                continue
            behind = block[block.index(place.statement) + 1 :]
            for at, one in enumerate(behind):
                if _takes_part(one, name):
                    return set(behind[at + 1 :])
    return set()


def _takes_part(statement: ast.stmt, name: str) -> bool:
    """Whether it binds a variable to what is computed of a part of what that had."""
    if not isinstance(statement, ast.Assign) or [*map(ast.unparse, statement.targets)] != [name]:
        return False
    parts = [
        node.slice
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == name
    ]
    reads = len(list(reads_of(statement.value, name)))
    return len(parts) == reads > 0 and all(map(_is_one_part, parts))


def _computed_by_rows(node: ast.expr, waiting: list[ast.AST]) -> tuple[ast.expr, ast.AST]:
    """The outermost expression that computes each row of a value by itself, and what is around."""
    while waiting:
        rest = [*waiting]
        computing = computed_by_value(node, rest)
        if computing is None or not _keeps_rows(computing):
            break
        node, waiting = computing, rest
    return node, waiting[-1]


def _keeps_rows(node: ast.AST) -> bool:
    """Whether what is computed along a dimension goes along the last one."""
    if called_name(node) not in ("log_softmax", "softmax"):
        return True
    assert isinstance(node, ast.Call)
    given = [one.value for one in node.keywords if one.arg == "dim"] or node.args[-1:]
    return [ast.unparse(one) for one in given] == ["-1"]


def _is_one_part(index: ast.expr) -> bool:
    """Whether a subscript takes one place that it writes out, of a whole: ``[:, -1]``.

    Or some of that place's values: ``[:, -1, letters]``.
    """
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    places = [one for one in entries if not _is_whole(one)]
    if len(entries) < 2 or not places or not _is_number(places[0]):
        return False
    return len(places) == 1 or _is_whole(entries[0])


def _selects_part(call: ast.Call) -> bool:
    """Whether a method takes one place that is written out, not along the first dimension.

    ``logits.select(1, -1)``, ``logits.narrow(1, -1, 1)``.
    """
    given = [*call.args, *(one.value for one in call.keywords)]
    if called_name(call) not in _SELECTING or not given or not all(map(_is_number, given)):
        return False
    return ast.unparse(given[0]) in _OF_POSITIONS


def _is_of_each_row(place: Place, part: ast.Subscript) -> bool:
    """Whether one position of each row is taken: ``x[torch.arange(n), lengths - 1]``.

    Only where what is taken is a matrix, by what is done with it. Else the numbers may be those of
    classes, ``log_probs[torch.arange(n), labels]``, and all that goes into the layer is needed.
    """
    entries = part.slice.elts if isinstance(part.slice, ast.Tuple) else []
    if len(entries) != _PAIR or not _numbers_rows(place, entries[0]):
        return False
    where = place.program.place(part)
    statement = where.statement if where is not None else None
    if not isinstance(statement, ast.Assign) or statement.value is not part:
        return False
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    reads = [around[-1] for name in names for _, around in reads_of(place.scope, name)]
    return any(_takes_matrix(parent) for parent in reads)


def _numbers_rows(place: Place, entry: ast.expr) -> bool:
    """Whether an entry of a subscript is ``torch.arange(n)``, or a variable that is that."""
    if isinstance(entry, ast.Name):
        values = list(values_of(place, entry.id, place.statement))
        return bool(values) and all(
            one is not None and called_name(one) == _NUMBERS for one in values
        )
    return called_name(entry) == _NUMBERS


def _takes_matrix(parent: ast.AST) -> bool:
    """Whether an expression takes a part of each row of a matrix, or weighs each row's values."""
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.slice, ast.Tuple) and len(parent.slice.elts) == _PAIR
    return called_name(parent) in _OF_ROWS


def _is_whole(entry: ast.expr) -> bool:
    """Whether an entry of a subscript takes all: ``:``, ``...``."""
    if isinstance(entry, ast.Slice):
        return entry.lower is None and entry.upper is None and entry.step is None
    return isinstance(entry, ast.Constant) and entry.value is ...


def _is_number(entry: ast.expr) -> bool:
    """Whether an entry is a number that is written out, or the last few places: ``-1:``.

    Or those before the last, ``-k:-1``: what the places of a target are predicted by.
    """
    if isinstance(entry, ast.Slice):
        is_to_end = entry.upper is None or ast.unparse(entry.upper) == "-1"
        return is_to_end and bool(_from_end(entry.lower))
    if isinstance(entry, ast.UnaryOp):
        entry = entry.operand
    return isinstance(entry, ast.Constant) and type(entry.value) is int


def _own_nodes(scope: ast.AST, dead: set[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions within it and without ``dead`` ones."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if node in dead:
            continue
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def newest_read(programs: Sequence[Program], joining: Place, name: str) -> ast.Subscript | None:
    """The slice from the end that every read of what a statement joins takes: ``bank[-n:]``.

    The statement's own read is what is joined; what asks for the shape alone, or overwrites a part,
    reads nothing. An attribute goes by its last name, in all files of the program. None where
    anything else is read.
    """
    last = name.rpartition(".")[2]
    trees = [one.tree for one in programs] if "." in name else [joining.scope]
    own = set(map(id, ast.walk(joining.statement)))
    parts: dict[str, ast.Subscript] = {}
    for tree in trees:
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        passed = own | overwritten(tree)
        for node, above in parents.items():
            if id(node) in passed or not _is_read(node, name, last):
                continue
            if isinstance(above, ast.Attribute) and above.attr in _OF_SHAPE:
                continue
            if not isinstance(above, ast.Subscript) or not _is_from_end(above.slice, tree):
                return None
            parts[ast.unparse(above.slice)] = above
    return next(iter(parts.values())) if len(parts) == 1 else None


def newest_read_by_name(
    programs: Sequence[Program], joining: Place, name: str
) -> ast.Subscript | None:
    """The same where a statement joins into a variable, which is stored then: ``self.keys = keys``.

    All else that is read of the variable is the slice. None where what it is stored in is read
    anywhere but in the statement.
    """
    targets = bound_names(joining.statement)
    if len(targets) != 1 or not isinstance(targets[0], ast.Name) or "." not in name:
        return None
    last = name.rpartition(".")[2]
    own = set(map(id, ast.walk(joining.statement)))
    for program in programs:
        called = {id(node.func) for node in program.nodes if isinstance(node, ast.Call)}
        for node in program.nodes:
            is_read = isinstance(node, ast.Attribute) and _is_read(node, name, last)
            if is_read and id(node) not in own | called:
                return None
    stored = {
        id(value)
        for node in ast.walk(joining.scope)
        for target, value in assigned(node)
        if value is not None and ast.unparse(target) == name
    }
    parts: dict[str, ast.Subscript] = {}
    for load, around in reads_of(joining.scope, targets[0].id):
        above = around[-1]
        if id(load) in stored | own:
            continue
        if isinstance(above, ast.Attribute) and above.attr in _OF_SHAPE:
            continue
        trees = (joining.scope, joining.program.tree)  # the number may be one of the file
        if not isinstance(above, ast.Subscript) or not any(
            _is_from_end(above.slice, tree) for tree in trees
        ):
            return None
        parts[ast.unparse(above.slice)] = above
    return next(iter(parts.values())) if len(parts) == 1 else None


def overwritten(tree: ast.AST) -> set[int]:
    """Identities of expressions of which parts are overwritten: ``bank[-n:] = x``, or by methods.

    ``bank`` of ``bank[-n:].copy_(x)``.
    """
    parts = [one for one in ast.walk(tree) if isinstance(one, ast.Subscript)]
    written = {id(one.value) for one in parts if isinstance(one.ctx, ast.Store)}
    receivers = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _OVERWRITING
    }
    return written | {id(one.value) for one in parts if id(one) in receivers}


def _is_read(node: ast.AST, name: str, last: str) -> bool:
    if isinstance(node, ast.Attribute):
        return "." in name and node.attr == last and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _is_from_end(index: ast.expr, tree: ast.AST) -> bool:
    """``-n:`` as the one index, or after ones that take everything: ``:, -n:``.

    With a number, an attribute, or a name that the file binds once: as many at each read.
    """
    *before, last = index.elts if isinstance(index, ast.Tuple) else [index]
    if not all(isinstance(one, ast.Slice) and one.lower is one.upper is None for one in before):
        return False
    if not isinstance(last, ast.Slice) or last.upper is not None or last.step is not None:
        return False
    if not isinstance(last.lower, ast.UnaryOp) or not isinstance(last.lower.op, ast.USub):
        return False
    count = last.lower.operand
    if not isinstance(count, ast.Name):
        return isinstance(count, (ast.Constant, ast.Attribute))
    bound = (
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == count.id and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.arg) and node.arg == count.id)
    )
    return len(list(bound)) == 1
