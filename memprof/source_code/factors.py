"""Matrices that are filled by pairs of indices, and are only factors of products from there on.

A flow follows such a matrix through what leaves it a matrix of the same few values: scaling, a
diagonal that is added, casts, transposes, attributes and buffers, functions and modules of the
program. It ends at products and at sums of rows. Every other use counts against it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from memprof.source_code.dataflow import Flow, FlowOf
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
from memprof.source_code.scopes import BINDING, COMPREHENSIONS, LOOPING, Scopes, Syntax, syntax_of
from memprof.source_code.verbs import FILLING, SAME_VALUES

__all__ = ["Factor", "factors_of", "is_called_of_batch", "matrices_of_pairs"]

_ADJACENCY = "to_dense_adj"
"""PyG's function: of a batch of graphs without ``batch``, one matrix for all of them."""
_DENSE = "to_dense"
_NAMES = (ast.Name, ast.Attribute)
_PAIR = 2
_CONVERTING = frozenset(("FloatTensor", "Tensor", "array", "as_tensor", "from_numpy", "tensor"))
_UNCHANGED = (
    SAME_VALUES
    | {"astype", "detach", "div", "div_", "fill_diagonal_", "index_put_", "index_put", "mul"}
    | {"clamp", "clamp_", "clamp_max", "mul_", "requires_grad_", "t", "triu", "tril"}
)
"""Methods whose result is zero where the matrix is, but on its diagonal."""
_TWO = frozenset(("div", "maximum", "mul", "multiply"))
"""Functions of two matrices, likewise."""
_VIEWS = frozenset(("T", "data", "mT"))
_OF_SHAPE = frozenset(("device", "dim", "dtype", "element_size", "ndim", "nelement", "numel"))
_TELLING = _OF_SHAPE | {"shape", "size", "is_cuda", "is_sparse", "layout"}
_REDUCING = frozenset(("any", "count_nonzero", "max", "mean", "sum"))
"""What is taken of rows for their degrees."""
_PRODUCTS = frozenset(("addmm", "baddbmm", "bmm", "dot", "einsum", "matmul", "mm", "mv"))
_ASKING = frozenset(("isinstance", "len", "print"))
_DIAGONAL = frozenset(("diag", "diag_embed", "diagflat", "eye"))
_BROADCAST = frozenset(("unsqueeze", "meshgrid", "ix_", "combinations", "cartesian_prod"))

_ALL_PAIRS = frozenset(
    (
        *("cartesian_prod", "combinations", "combinations_with_replacement", "meshgrid"),
        *("ndindex", "permutations", "product", "tril_indices", "tril_indices_from"),
        *("triu_indices", "triu_indices_from"),
    )
)
"""Functions of which half of all pairs come, or more."""


@dataclass(eq=False)
class Factor(Flow):
    """A matrix that was filled by pairs of indices, followed through a program."""

    origins: frozenset[int] = frozenset()
    """Calls that made it, by identity."""
    name: str = ""
    """As the program writes it where it is filled; the call that makes it."""
    _forwards: dict[int, list[ast.FunctionDef | ast.AsyncFunctionDef]] = field(default_factory=dict)

    @cached_property
    def is_only_factor(self) -> bool:
        """Whether it is a factor of a product somewhere, and used in no other way."""
        if self.is_lost or "forward" in self.returning:
            return False
        try:
            uses = [
                use for node, scopes in self.source.nodes for use in self._uses_in(node, scopes)
            ]
        except RecursionError:
            return False
        return _PRODUCT in uses and _OTHER not in uses and not self.is_lost

    def key_filled(self, node: ast.AST, scopes: Scopes) -> tuple[int, str] | None:
        """The name of zeros that a node fills by pairs of indices."""
        key = self._key(_filled(node), scopes)
        return key if any(map(_is_zeros, self._bound_to(key))) else None

    def begins_at(self, node: ast.AST, scopes: Scopes) -> bool:
        """Whether a node fills a matrix by pairs of indices, or makes a sparse one dense."""
        if isinstance(node, ast.Call) and _makes_dense(node):
            self.origins, self.name = frozenset((id(node),)), ast.unparse(node)
            return True
        filled = _filled(node)
        key = self.key_filled(node, scopes)
        if filled is None or key is None:
            return False
        pair = _pair_of(node)
        if any(_is_counted(self.source.nodes, index, scopes) for index in pair):
            return False
        if self._goes_over_all(node, pair, scopes) or self._is_trained(node, scopes):
            return False
        self.keys.add(key)
        self.name = ast.unparse(filled)
        return True

    def is_made_by(self, place: Place) -> bool:
        """Whether a statement makes the matrix, or another one of the same few values."""
        scopes = tuple(node for node in place.around if isinstance(node, FUNCTIONS))
        statement = place.statement
        if isinstance(statement, BINDING):
            return any(
                self.carries(value, scopes)
                or (_is_zeros(value) and self._key(target, scopes) in self.keys)
                for target, value in assigned(statement)
            )
        if isinstance(statement, ast.Return):
            return self.carries(statement.value, scopes)
        if isinstance(statement, ast.Expr):
            calls = calls_in(statement, "register_buffer")
            return any(self.carries(one, scopes) for call in calls for one in call.args[1:])
        return False

    def carries(self, node: ast.expr | None, scopes: Scopes) -> bool:
        """Whether an expression is the matrix, or one that has no other values than it."""
        if isinstance(node, ast.Attribute) and node.attr in _VIEWS:
            return self.carries(node.value, scopes)
        if isinstance(node, ast.Subscript):
            return isinstance(node.ctx, ast.Load) and self._is_of_all(node, scopes)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self.carries(node.operand, scopes)
        if isinstance(node, ast.BinOp):
            return self._combines(node, scopes)
        return super().carries(node, scopes)

    def _is_of_all(self, node: ast.Subscript, scopes: Scopes) -> bool:
        """``adj[0]`` of a batch of one, ``adj[None]``."""
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        is_whole = all(isinstance(one, ast.Constant) or _is_whole(one) for one in indices)
        return is_whole and self.carries(node.value, scopes)

    def _combines(self, node: ast.BinOp, scopes: Scopes) -> bool:
        left, right = self.carries(node.left, scopes), self.carries(node.right, scopes)
        if not (left or right):
            return False
        other = node.right if left else node.left
        if isinstance(node.op, (ast.Mult, ast.Div)):
            return left or isinstance(node.op, ast.Mult)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return (left and right) or self._is_diagonal(other, scopes)
        return isinstance(node.op, ast.MatMult) and self._is_diagonal(other, scopes)

    def _is_diagonal(self, node: ast.expr, scopes: Scopes) -> bool:
        """``torch.eye(n)``, or a name that its function binds to such alone."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return any(self._is_diagonal(one, scopes) for one in (node.left, node.right))
        if isinstance(node, ast.Call):
            receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
            inner = called_name(node) in SAME_VALUES and receiver is not None
            return called_name(node) in _DIAGONAL or (
                inner and receiver is not None and self._is_diagonal(receiver, scopes)
            )
        key = self._key(node, scopes) if isinstance(node, ast.Name) else None
        values = self._bound_to(key)
        return bool(values) and all(
            isinstance(value, ast.Call) and called_name(value) in _DIAGONAL for value in values
        )

    def _bound_to(self, key: tuple[int, str] | None) -> list[ast.expr | None]:
        """What a name is bound to, in all of the program."""
        return self._bindings.get(key, []) if key is not None else []

    @property
    def _bindings(self) -> dict[tuple[int, str] | None, list[ast.expr | None]]:
        return _bindings_of(self.source)

    def _goes_over_all(self, node: ast.AST, pair: list[ast.expr], scopes: Scopes) -> bool:
        """Whether the indices are pairs of all numbers, or half of them: no list of edges."""
        inside = [
            one
            for one, around in self.source.nodes
            if isinstance(one, (*LOOPING, ast.While))
            and around[: len(scopes)] == scopes
            and any(each is node for each in ast.walk(one))
        ]
        names = {name for one in pair for name in loaded_names(one)}
        for loop in inside:
            if isinstance(loop, ast.While) and names & _stepped_in(loop):
                return True
        loops = [one for one in inside if isinstance(one, LOOPING)]
        first, second = (self._written_out(one, scopes, loops) for one in pair)
        if any(calls_in(one, *_ALL_PAIRS) for one in (*first, *second)):
            return True
        bound = [_innermost(loops, written) for written in (first, second)]
        if None in bound or bound[0] is bound[1]:
            return False
        outer, inner = sorted((loop for loop in bound if loop), key=loops.index)
        targets = {_last_name(one) for one in bound_names(_as_assignment(outer))}
        parts = self._written_out(inner.iter, scopes, ())
        is_sliced = any(isinstance(one, ast.Slice) for one in ast.walk(inner.iter))
        return is_sliced or not any(targets & loaded_names(one) for one in parts)

    def _written_out(
        self, node: ast.expr, scopes: Scopes, loops: Sequence[ast.AST]
    ) -> list[ast.expr]:
        """An expression, with those that its names are bound to, and what loops take them of."""
        parts, waiting, known = [], [node], set()
        while waiting:
            part = waiting.pop()
            parts.append(part)
            for one in ast.walk(part):
                key = self._key(one, scopes) if isinstance(one, _NAMES) else None
                if key is None or key in known:
                    continue
                known.add(key)
                waiting += [value for value in self._bound_to(key) if value is not None]
                waiting += [
                    loop.iter
                    for loop in loops
                    if isinstance(loop, LOOPING)
                    and key in {self._key(each, scopes) for each in _targets_of(loop)}
                ]
        return parts

    def _is_trained(self, node: ast.AST, scopes: Scopes) -> bool:
        """Whether it is filled with what comes of a parameter."""
        flow = _of_parameters(self.source)
        return any(flow.carries(value, scopes) for value in _values_of(node))

    def _returns(self, call: ast.Call, scopes: Scopes) -> bool:
        name, function = called_name(call), call.func
        if id(call) in self.origins or name in self.returning:
            return True
        if isinstance(function, ast.Attribute) and self.carries(function.value, scopes):
            return name in _UNCHANGED
        passed = [one for one in call.args if self.carries(one, scopes)]
        if name in _CONVERTING | _UNCHANGED:
            return bool(call.args) and call.args[0] in passed
        return bool(passed) and name in _TWO

    def _pass_to(self, call: ast.Call, scopes: Scopes) -> None:
        """Also into a buffer, and into the `forward` of a module that is called."""
        carried = [one for one in arguments(call) if self.carries(one, scopes)]
        if not carried:
            return
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if called_name(call) == "register_buffer":
            named = call.args[0] if call.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                self.give(ast.Attribute(ast.Name("self"), named.value), scopes)
        elif receiver is not None and called_name(call) in FILLING:
            self.give(receiver, scopes)
        for function in self._called(call, scopes):
            self._hand_to(function, call, carried)

    def _hand_to(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        call: ast.Call,
        carried: list[ast.expr],
    ) -> None:
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        into = dict(zip(map(id, call.args), names[names[:1] == ["self"] :], strict=False))
        into |= {id(one.value): one.arg for one in call.keywords if one.arg}
        known = {*names, *(a.arg for a in function.args.kwonlyargs)}
        for one in carried:
            if into.get(id(one)) in known:
                self.keys.add((id(function), into[id(one)]))
            else:
                self.is_lost = True

    def _called(
        self, call: ast.Call, scopes: Scopes
    ) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """The functions that a call may be of; of a module, the `forward` of its class."""
        functions = self.source.functions.get(called_name(call))
        if functions:
            return functions
        if id(call) not in self._forwards:
            self._forwards[id(call)] = self._forwards_of(call, scopes)
        return self._forwards[id(call)]

    def _forwards_of(
        self, call: ast.Call, scopes: Scopes
    ) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Those of the classes of what is called; of a parameter that nothing tells of, all."""
        keys = {self._key(call.func, scopes)} - {None}
        for node, around in self.source.passing:
            if isinstance(node, LOOPING):
                targets = {self._key(one, around) for one in bound_names(_as_assignment(node))}
                names = [one for one in ast.walk(node.iter) if isinstance(one, _NAMES)]
                keys |= {self._key(one, around) for one in names} if targets & keys else set()
        values = [value for key in keys for value in self._bound_to(key)]
        # A parameter, or an attribute that is given one: by the name that the caller has for it.
        if not any(calls_in(value) for value in values if value is not None):
            names_of = {key[1] for key in keys if key is not None}
            values = [
                value
                for key, bound in self._bindings.items()
                if key is not None and key[1] in names_of
                for value in bound
            ]
        made = {
            called_name(one) for value in values if value is not None for one in calls_in(value)
        }
        forwards = [
            (one.name, method)
            for program in self.source.programs
            for one in program.classes()
            for method in one.body
            if isinstance(method, FUNCTIONS) and method.name == "forward"
        ]
        if not values and isinstance(call.func, ast.Name):
            return [method for _, method in forwards if _takes(method, call)]
        return [method for name, method in forwards if name in made]

    def _uses_in(self, node: ast.AST, scopes: Scopes) -> Iterator[int]:
        """What a node does with the matrix, for each time that it has it as an operand."""
        if isinstance(node, ast.keyword):
            return  # of the call that it is part of
        inner = (*scopes, node) if isinstance(node, COMPREHENSIONS) else scopes
        if isinstance(node, FUNCTIONS):
            children: list[ast.AST] = []
        elif isinstance(node, ast.Call):
            children = list(arguments(node))
        else:
            children = list(ast.iter_child_nodes(node))
        for child in children:
            if isinstance(child, ast.expr) and self.carries(child, inner):
                yield self._use(node, child, scopes)

    def _use(self, node: ast.AST, child: ast.expr, scopes: Scopes) -> int:
        if isinstance(node, ast.expr) and self.carries(node, scopes):
            return _PASSING
        if isinstance(node, ast.Call):
            return self._use_of_call(node, scopes)
        if isinstance(node, ast.Attribute):
            if node.attr in _PRODUCTS:
                return _PRODUCT
            is_known = node.attr in _UNCHANGED | _TELLING | _REDUCING
            return _PASSING if is_known else _OTHER
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            both = self.carries(node.left, scopes) and self.carries(node.right, scopes)
            return _OTHER if both else _PRODUCT
        if isinstance(node, ast.Subscript):
            return _OTHER if isinstance(node.ctx, ast.Load) else _PASSING
        if isinstance(node, ast.AugAssign):
            scaled = isinstance(node.op, (ast.Mult, ast.Div)) and child is node.target
            added = self._is_diagonal(node.value, scopes) or self.carries(node.value, scopes)
            return _PASSING if scaled or added else _OTHER
        if isinstance(node, ast.Compare):
            is_asked = all(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops)
            return _PASSING if is_asked else _OTHER
        passing = (*BINDING, ast.Return, ast.Yield, ast.Expr, ast.Delete)
        return _PASSING if isinstance(node, passing) else _OTHER

    def _use_of_call(self, call: ast.Call, scopes: Scopes) -> int:
        name = called_name(call)
        if name in _PRODUCTS:
            return _PRODUCT
        is_container = isinstance(call.func, ast.Attribute) and name in FILLING
        is_known = is_container or name in _REDUCING | _ASKING | {"register_buffer"}
        return _PASSING if is_known or self._called(call, scopes) else _OTHER


_PASSING, _PRODUCT, _OTHER = range(3)
"""What is done with a matrix: it is handed on, multiplied, or used in another way."""


def factors_of(programs: Sequence[Program]) -> Iterator[Factor]:
    """The matrices that the program fills by pairs of indices, or makes dense, and multiplies."""
    return (flow for flow in matrices_of_pairs(programs) if flow.is_only_factor)


def matrices_of_pairs(programs: Sequence[Program]) -> Iterator[Factor]:
    """The matrices that the program fills by pairs of indices, or makes dense, whatever for."""
    source = syntax_of(tuple(sorted(programs, key=lambda program: program.filename)))
    known: set[tuple[int, str]] = set()
    for node, scopes in source.nodes:
        if not (_pair_of(node) or (isinstance(node, ast.Call) and _makes_dense(node))):
            continue
        flow = Factor(source, through=False)
        key = flow.key_filled(node, scopes)
        if key in known:
            continue  # followed, or filled in full by another line
        known |= {key} if key is not None else set()
        is_begun = flow.begins_at(node, scopes)
        known |= flow.keys
        if is_begun:
            flow.follow()
            yield flow


@lru_cache(maxsize=4)
def _bindings_of(source: Syntax) -> dict[tuple[int, str] | None, list[ast.expr | None]]:
    """What each name of a program is bound to, and what containers and buffers are given."""
    plain = Factor(source, through=False)
    bindings: dict[tuple[int, str] | None, list[ast.expr | None]] = {}
    for node, scopes in source.passing:
        for target, value in _given_in(node):
            bindings.setdefault(plain._key(target, scopes), []).append(value)
    return bindings


def _given_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(node, BINDING):
        yield from assigned(node)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in FILLING:
        yield from ((node.func.value, value) for value in node.args)
    named = node.args[0] if node.args else None
    if node.func.attr == "register_buffer" and isinstance(named, ast.Constant):
        buffer = ast.Attribute(node.func.value, str(named.value))
        yield from ((buffer, value) for value in node.args[1:2])


@lru_cache(maxsize=4)
def _of_parameters(source: Syntax) -> Flow:
    """The parameters that a program makes itself, and what is computed from them."""
    made = {id(node) for node, _ in source.passing if called_name(node) == "Parameter"}
    flow = FlowOf(source, through=True, origins=frozenset(made))
    return flow.follow() if made else flow


def is_called_of_batch(place: Place, programs: Sequence[Program]) -> bool:
    """Whether a statement makes one matrix of all graphs of a batch: ``to_dense_adj(edge_index)``.

    What it is given comes of a batch that PyG puts together, by its loader or its `Batch`.
    """
    calls = [call for call in calls_in(place.statement, _ADJACENCY) if not _has_batch(call)]
    if not calls:
        return False
    source = syntax_of(tuple(sorted(programs, key=lambda program: program.filename)))
    batches = {id(call) for program in programs for call in _batches_made(program)}
    flow = FlowOf(source, through=True, origins=frozenset(batches)).follow()
    scopes = tuple(node for node in place.around if isinstance(node, FUNCTIONS))
    edges = [one for call in calls for one in call.args[:1]]
    return any(flow.carries(one, scopes) for one in edges) and not flow.is_lost


def _batches_made(program: Program) -> Iterator[ast.Call]:
    """Calls of PyG's `DataLoader`, and of the methods of its `Batch`, as a file imports them."""
    names = {
        one.asname or one.name
        for node in program.nodes
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("torch_geometric.")
        and node.module != "torch_geometric.utils"
        for one in node.names
        if one.name in ("Batch", "DataLoader")
    }
    for call in calls_in(program.tree) if names else ():
        if root_name(call.func) in names:
            yield call


def _has_batch(call: ast.Call) -> bool:
    given = next((one.value for one in call.keywords if one.arg == "batch"), None)
    given = given or next(iter(call.args[1:]), None)
    return given is not None and not (isinstance(given, ast.Constant) and given.value is None)


def _makes_dense(call: ast.Call) -> bool:
    if called_name(call) == _ADJACENCY:
        return not _has_batch(call)
    return called_name(call) == _DENSE and isinstance(call.func, ast.Attribute) and not call.args


def _filled(node: ast.AST) -> ast.expr | None:
    """What ``adj[src, dst] = 1.0`` or ``adj.index_put_((src, dst), ones)`` fills."""
    if not _pair_of(node):
        return None
    if isinstance(node, ast.Call):
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    (target,) = bound_names(node)
    return target.value if isinstance(target, ast.Subscript) else None


def _pair_of(node: ast.AST) -> list[ast.expr]:
    """The two indices; empty where it is not filled by such."""
    pair: ast.expr | None = None
    if isinstance(node, ast.Call) and called_name(node) in ("index_put", "index_put_"):
        pair = node.args[0] if node.args else None
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = bound_names(node)
        if len(targets) == 1 and isinstance(targets[0], ast.Subscript):
            pair = targets[0].slice
    if not isinstance(pair, ast.Tuple) or len(pair.elts) != _PAIR:
        return []
    return pair.elts if all(map(_is_index, pair.elts)) else []


def _values_of(node: ast.AST) -> list[ast.expr]:
    """What a statement, or a call of `index_put_`, fills with."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        return [node.value]
    return list(arguments(node))[1:] if isinstance(node, ast.Call) else []


def _targets_of(loop: ast.For | ast.AsyncFor | ast.comprehension) -> list[ast.expr]:
    return bound_names(_as_assignment(loop))


def _innermost(
    loops: Sequence[ast.For | ast.AsyncFor | ast.comprehension], written: list[ast.expr]
) -> ast.For | ast.AsyncFor | ast.comprehension | None:
    """The loop that an index changes with."""
    names = {name for one in written for name in loaded_names(one)}
    of_loops = [loop for loop in loops if names & {_last_name(one) for one in _targets_of(loop)}]
    return of_loops[-1] if of_loops else None


def _stepped_in(loop: ast.While) -> set[str]:
    """Variables that a loop counts up: ``i += 1``, ``i = i + 1``."""
    return {
        target.id
        for node in ast.walk(loop)
        for target, value in assigned(node)
        if isinstance(target, ast.Name)
        and (isinstance(node, ast.AugAssign) or (value and target.id in loaded_names(value)))
    }


def _is_index(node: ast.expr) -> bool:
    """A tensor of indices, or a number that comes of one: ``src``, ``edges[0]``, ``edge.src``.

    Also one of its columns, ``edges[:, 0]``, and what lies behind others, ``users + item``.
    """
    if isinstance(node, ast.Subscript):
        entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        numbers = [one for one in entries if not _is_whole(one)]
        return len(numbers) == 1 and all(
            isinstance(one, ast.Constant) and type(one.value) is int for one in numbers
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = node.left, node.right
        return all(isinstance(one, ast.Constant) or _is_index(one) for one in sides)
    return isinstance(node, (ast.Name, ast.Attribute))


def _is_whole(entry: ast.expr) -> bool:
    """``:`` or ``...`` of an index."""
    if isinstance(entry, ast.Slice):
        return entry.lower is entry.upper is entry.step is None
    return isinstance(entry, ast.Constant) and entry.value is Ellipsis


def _is_counted(nodes: Sequence[tuple[ast.AST, Scopes]], index: ast.expr, scopes: Scopes) -> bool:
    """Whether an index goes over all numbers, or is spread out: so a matrix is filled in full."""
    if isinstance(index, ast.BinOp):
        return any(_is_counted(nodes, one, scopes) for one in (index.left, index.right))
    if not isinstance(index, ast.Name):
        return False
    for node, around in nodes:
        if around[: len(scopes)] != scopes:
            continue
        if isinstance(node, LOOPING) and calls_in(node.iter, "range", "enumerate"):
            if index.id in {_last_name(one) for one in ast.walk(node.target)}:
                return True
            continue
        for target, value in assigned(node):
            if _last_name(target) == index.id and value is not None and _is_spread(value):
                return True
    return False


def _is_spread(value: ast.expr) -> bool:
    """``index[:, None]``, ``index.unsqueeze(1)``: with another one, all pairs of both."""
    slices = [one.slice for one in ast.walk(value) if isinstance(one, ast.Subscript)]
    constants = [one for each in slices for one in ast.walk(each) if isinstance(one, ast.Constant)]
    return bool(calls_in(value, *_BROADCAST)) or any(one.value is None for one in constants)


def _is_zeros(value: ast.expr | None) -> bool:
    """``torch.zeros(n, m)``, ``np.zeros((n, m))``, also on its way to a device or a type."""
    while isinstance(value, ast.Call) and called_name(value) in SAME_VALUES | {"astype"}:
        value = value.func.value if isinstance(value.func, ast.Attribute) else None
    if not isinstance(value, ast.Call) or called_name(value) != "zeros":
        return False
    sizes = value.args
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    return len(sizes) == _PAIR


def _takes(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> bool:
    """Whether a method has parameters enough for a call."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][1:]
    words = {one.arg for one in call.keywords}
    return len(call.args) <= len(names) and words <= {
        *names,
        *(a.arg for a in function.args.kwonlyargs),
    }


def _as_assignment(node: ast.For | ast.AsyncFor | ast.comprehension) -> ast.Assign:
    return ast.Assign(targets=[node.target], value=node.iter)


def _last_name(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return getattr(node, "attr", "") or getattr(node, "id", "")
