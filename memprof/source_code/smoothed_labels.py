"""Labels that a function smooths by a table of a value for each class, for a loss that sums it.

Names and attributes go by their texts: the table may be both, ``self.wanted = wanted``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from memprof.source_code.call_sites import calls_of
from memprof.source_code.idioms import keyword, without_casts
from memprof.source_code.program import Place, assigned, bound_names, called_name, calls_in
from memprof.source_code.values import values_of

__all__ = ["SmoothedLabels", "smoothed_labels"]

_FILLED = frozenset(("full", "full_like", "new_full", "new_zeros", "zeros", "zeros_like"))
"""What makes a table of one value, into which `scatter_` writes another for each row."""
_WRITING = frozenset(("scatter", "scatter_"))
_BLANK = frozenset(("clone", "empty", "empty_like", "new_empty"))
"""What makes a tensor that `fill_` gives one value."""
_FILLING = frozenset(("fill_", "zero_"))
_CORRECTING = frozenset(("index_fill_", "masked_fill_"))
"""Writes the rows or the column of padding."""
_COPIES = frozenset(("clone", "detach"))
_VARIABLE = "Variable"
"""What wraps a tensor and is the same one, as old programs have it."""
_ENTROPY, _ENTROPY_LAYER = "cross_entropy", "CrossEntropyLoss"
_LOSSES = frozenset((_ENTROPY, "kl_div"))
"""Of logits or log-probabilities and the table, in this order."""
_LOSS_LAYERS = frozenset((_ENTROPY_LAYER, "KLDivLoss"))
_MOVING = frozenset(("flip", "index_select", "roll"))
"""Puts the rows of a table into another order."""
_PAIR = 2
_LOG_PROBABILITIES = "log_softmax"
_SMOOTHING = (ast.Mult, ast.Add, ast.Sub, ast.Div)


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedLabels:
    """The statements that make the table, and the one that weighs log-probabilities by it."""

    making: tuple[ast.stmt, ...]
    reading: ast.stmt
    computes_logarithms: bool
    """The reading statement makes the log-probabilities itself, of logits."""


@dataclass(slots=True, eq=False)
class _Tables:
    """What is known of a function's tensors, statement by statement."""

    tables: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)
    """Of one value, into which nothing was scattered yet."""
    blank: dict[str, ast.stmt] = field(default_factory=dict)
    """Not yet filled."""
    making: dict[int, ast.stmt] = field(default_factory=dict)
    returned: bool = False
    """By the function that makes one."""
    is_smoothed: bool = False

    def read(self, statement: ast.stmt) -> None:
        """Take in what a statement makes, if that is a table or part of one."""
        bound = bound_names(statement)
        names = {ast.unparse(one) for one in bound if isinstance(one, (ast.Name, ast.Attribute))}
        inner = _plain(_value(statement))
        if isinstance(statement, ast.Return):
            if not self._is_returned(inner):
                return
        elif names and _is_table(inner, self.filled):
            self.tables |= names
            self.is_smoothed |= inner is not None and called_name(inner) in _WRITING
        elif names and _is_filled(inner):
            self.filled |= names
        elif names and _smooths(inner, self.tables):
            self.tables |= names
            self.is_smoothed |= isinstance(inner, ast.BinOp)
        elif names and _is_blank(_value(statement)):
            self.blank |= dict.fromkeys(names, statement)
            return
        elif not self._writes(statement, inner):
            return
        self.making[id(statement)] = statement

    def _is_returned(self, value: ast.expr | None) -> bool:
        """Whether what a function returns is a table, also one that is made on the spot."""
        if _is_table(value, self.filled):
            self.is_smoothed |= value is not None and called_name(value) in _WRITING
            self.returned = True
        elif _smooths(value, self.tables):
            self.is_smoothed |= isinstance(value, ast.BinOp)
            self.returned = True
        return self.returned

    def _writes(self, statement: ast.stmt, value: ast.expr | None) -> bool:
        """Whether a statement writes into one of them, and nothing more."""
        parts = [one for one in bound_names(statement) if isinstance(one, ast.Subscript)]
        if parts:
            is_number = isinstance(_value(statement), ast.Constant)
            return is_number and all(ast.unparse(one.value) in self._all for one in parts)
        if not isinstance(statement, ast.Expr) or not isinstance(value, ast.Call):
            return False
        receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
        method = called_name(value)
        if method in _WRITING and _names(receiver) & self.filled:
            self.tables |= self.filled & _names(value)
            self.is_smoothed = True
            return True
        name = ast.unparse(receiver) if receiver is not None else ""
        if method in _FILLING and name in self.blank:
            blank = self.blank.pop(name)
            self.making[id(blank)] = blank
            self.filled.add(name)
            return True
        return method in (_FILLING | _CORRECTING) and name in self._all

    @property
    def _all(self) -> set[str]:
        return self.tables | self.filled


def smoothed_labels(place: Place) -> SmoothedLabels | None:
    """``wanted = one_hot(y) * (1 - e) + e / n; (wanted * x.log_softmax(-1)).sum(-1)``.

    Also by ``torch.full(…).scatter_(1, y, 1 - e)``, for ``F.kl_div(log_p, wanted)`` and
    ``F.cross_entropy(x, wanted)``, and where a function returns the table to one that does so. None
    where the function around ``place`` does no such thing, or the table is read at another place as
    well.
    """
    known = _Tables()
    reading = _reading(place, known)
    if not known.returned:
        return _labels(place, known, reading) if reading is not None else None
    calls = calls_of(place)
    if reading is not None or not known.is_smoothed or len(calls) != 1:
        return None
    ((caller, call),) = calls
    handed = _Tables({ast.unparse(call)}, making=known.making, is_smoothed=True)
    reading = _reading(caller, handed)
    return _labels(caller, handed, reading) if reading is not None else None


def _labels(place: Place, known: _Tables, reading: ast.stmt) -> SmoothedLabels:
    computes = any(
        called_name(call) in (_LOG_PROBABILITIES, _ENTROPY)
        or _is_loss_layer(place, call, frozenset((_ENTROPY_LAYER,)))
        for call in calls_in(reading)
    )
    return SmoothedLabels(tuple(known.making.values()), reading, computes)


def _reading(place: Place, known: _Tables) -> ast.stmt | None:
    """The one statement of a function that reads its tables, if that is for a loss of them."""
    statements = sorted(_simple_statements(place), key=lambda one: one.lineno)
    for statement in statements:
        known.read(statement)
    tables = known.tables
    if not known.is_smoothed or not tables or _is_read_elsewhere(place, tables):
        return None
    reading = [one for one in statements if id(one) not in known.making and tables & _names(one)]
    if len(reading) != 1:
        return None
    is_for_loss = _weighs_log_probabilities(place, reading[0], tables) or _is_target(
        place, reading[0], tables
    )
    return reading[0] if is_for_loss else None


def _is_read_elsewhere(place: Place, tables: set[str]) -> bool:
    """Whether another function of the file reads an attribute that has a table."""
    names = {one.rpartition(".")[2] for one in tables if "." in one}
    own = {id(node) for node in ast.walk(place.scope)} if names else set()
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.ctx, ast.Load)
        and id(node) not in own
        for node in (place.program.nodes if names else ())
    )


def _simple_statements(place: Place) -> list[ast.stmt]:
    nodes = (node for node in ast.walk(place.scope) if isinstance(node, ast.stmt))
    return [node for node in nodes if isinstance(node, (ast.Assign, ast.Expr, ast.Return))]


def _value(statement: ast.stmt) -> ast.expr | None:
    pairs = list(assigned(statement))
    if len(pairs) == 1:
        return pairs[0][1]
    return statement.value if isinstance(statement, (ast.Expr, ast.Return)) else None


def _plain(value: ast.expr | None) -> ast.expr | None:
    """A value without casts and copies: ``wanted`` of ``wanted.clone().detach()``."""
    while True:
        value = without_casts(value)
        if not isinstance(value, ast.Call):
            return value
        if isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES:
            inner = value.func.value
            if value.args or not isinstance(inner, (ast.Name, ast.Attribute, ast.Call)):
                return value
            value = inner
        elif called_name(value) == _VARIABLE and value.args:
            value = value.args[0]
        else:
            return value


def _is_blank(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and called_name(value) in _BLANK


def _is_table(value: ast.expr | None, filled: set[str]) -> bool:
    if not isinstance(value, ast.Call):
        return False
    receiver = without_casts(value.func.value) if isinstance(value.func, ast.Attribute) else None
    if called_name(value) in _WRITING:
        is_own = isinstance(receiver, (ast.Name, ast.Attribute)) and ast.unparse(receiver) in filled
        return _is_filled(receiver) or is_own
    return called_name(value) == "one_hot"


def _is_filled(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and called_name(value) in _FILLED


def _smooths(value: ast.expr | None, tables: set[str]) -> bool:
    """Whether a value is a table, or what numbers make of one."""
    value = _plain(value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, _SMOOTHING):
        sides = [_smooths(one, tables) for one in (value.left, value.right)]
        if not _is_of_one(value, tables):
            return False
        if isinstance(value.op, (ast.Add, ast.Sub)):  # ``y * (1 - e) + (1 - y) * e / (n - 1)``
            return any(sides)
        return sides[0] != sides[1]
    return _is_own(value, tables) or _is_table(value, set())


def _is_own(value: ast.expr | None, tables: set[str]) -> bool:
    is_nameable = isinstance(value, (ast.Name, ast.Attribute, ast.Call))
    return is_nameable and value is not None and ast.unparse(value) in tables


def _is_of_one(value: ast.expr, tables: set[str]) -> bool:
    """Whether at most one table goes into an expression: of two labels are mixed, not smoothed.

    Nor is that one mixed with its own rows in another order, ``y * a + y[order] * (1 - a)``.
    """
    made = {ast.unparse(call) for call in calls_in(value) if _is_table(call, set())}
    names = tables & _names(value)
    moved = any(
        (isinstance(one, ast.Subscript) and names & _names(one.value))
        or (isinstance(one, ast.Call) and called_name(one) in _MOVING and names & _names(one))
        for one in ast.walk(value)
    )
    return len(made | names) <= 1 and not moved


def _weighs_log_probabilities(place: Place, statement: ast.stmt, tables: set[str]) -> bool:
    """Whether ``(table * log_p).sum(…)`` is what a statement does with a table."""
    for total in calls_in(statement, "sum"):
        receiver = total.func.value if isinstance(total.func, ast.Attribute) else None
        for summed in (receiver, *total.args[:1]):
            product = summed.operand if isinstance(summed, ast.UnaryOp) else summed
            if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
                continue
            sides = [_without_sign(one) for one in (product.left, product.right)]
            weights = [one for one in sides if ast.unparse(one) in tables]
            others = [one for one in sides if not any(one is weight for weight in weights)]
            if len(weights) == 1 and _is_log_probability(place, others[0]):
                return True
    return False


def _is_target(place: Place, statement: ast.stmt, tables: set[str]) -> bool:
    """Whether a table is the target of a cross-entropy, or of a divergence of log-probabilities."""
    for call in calls_in(statement):
        target = next((one.value for one in call.keywords if one.arg == "target"), None)
        if target is None and len(call.args) >= _PAIR:
            target = call.args[1]
        if target is None or any(one.arg == "log_target" for one in call.keywords):
            continue
        is_loss = called_name(call) in _LOSSES or _is_loss_layer(place, call, _LOSS_LAYERS)
        if _is_own(_plain(target), tables) and is_loss:
            return True
    return False


def _is_loss_layer(place: Place, call: ast.Call, layers: frozenset[str]) -> bool:
    """Whether what is called is bound to ``KLDivLoss(…)`` alone, in its class or in the file."""
    name = ast.unparse(call.func)
    own = place.class_ if name.startswith("self.") else None
    values = [
        value
        for node in ast.walk(own if own is not None else place.program.tree)
        for target, value in assigned(node)
        if ast.unparse(target) == name
    ]
    if isinstance(call.func, ast.Call):  # nn.KLDivLoss()(x, table)
        values = [call.func]
    return bool(values) and all(
        isinstance(one, ast.Call)
        and called_name(one) in layers
        and keyword(one, "log_target") is None
        for one in values
    )


def _without_sign(value: ast.expr) -> ast.expr:
    return value.operand if isinstance(value, ast.UnaryOp) else value


def _is_log_probability(place: Place, value: ast.expr) -> bool:
    values = list(values_of(place, value.id)) if isinstance(value, ast.Name) else [value]
    return bool(values) and all(
        isinstance(one, ast.Call) and called_name(one) == _LOG_PROBABILITIES for one in values
    )


def _names(node: ast.AST | None) -> set[str]:
    parts = ast.walk(node) if node is not None else ()
    kinds = (ast.Name, ast.Attribute, ast.Call)
    return {ast.unparse(one) for one in parts if isinstance(one, kinds)}
