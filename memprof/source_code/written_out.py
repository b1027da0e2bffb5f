"""Functions of torch that a program writes out: an activation or a norm, operator by operator."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    assigned,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.source_code.scopes import parameters

__all__ = ["WrittenOut", "written_out"]

_DEEPEST = 8
"""Variables that stand for one another."""
_ROOTS = frozenset(("rsqrt", "sqrt", "std", "std_mean", "var", "var_mean"))
"""What a value that was made free of its mean is divided by, or made of."""
_CURVES = {"erf": "F.gelu(x)", "tanh": 'F.gelu(x, approximate="tanh")'}
"""Functions in a GELU, and how it is called."""
_NAMESPACES = frozenset(("F", "functional", "math", "nn", "np", "numpy", "special", "torch"))
_TORCH, _PAIR = "torch", 2
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add,
    "div": ast.Div,
    "divide": ast.Div,
    "mul": ast.Mult,
    "multiply": ast.Mult,
    "sub": ast.Sub,
    "subtract": ast.Sub,
    "true_divide": ast.Div,
}
"""Functions of torch, and methods of tensors, that an operator is written for."""
_OF_DIMENSIONS = {
    (-1,): "F.layer_norm(x, x.shape[-1:])",
    (1,): "F.layer_norm",
    (0,): "F.batch_norm(x, None, None, training=True)",
    (-2, -1): "F.instance_norm",
    (0, 2, 3): "F.batch_norm",
    (1, 2, 3): "F.group_norm",
    (2, 3): "F.instance_norm",
}
"""Which norm has which dimensions in one mean."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenOut:
    """An expression, the function that computes the same, and the statements it consists of."""

    instead: str
    """The function, as it is called."""
    steps: tuple[ast.AST, ...]
    """Statements and expressions, the last of which makes the result."""
    keeps_input: bool = True
    """Whether what is written out keeps its input, as the function does."""

    @property
    def lines(self) -> frozenset[int]:
        """The lines of all of them."""
        return frozenset(
            line
            for node in self.steps
            for line in range(
                getattr(node, "lineno", 0), (getattr(node, "end_lineno", None) or 0) + 1
            )
        )


def written_out(place: Place) -> WrittenOut | None:
    """What a statement is a step of; None where it is of nothing that torch has a function for."""
    here = set(place.lines)
    return next((one for one in _all_in(place.scope) if here & one.lines), None)


class _AsOperators(ast.NodeTransformer):
    """Makes ``x * y`` of ``torch.mul(x, y)`` and ``x.mul(y)``, and so of the other operators."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the operator that a call is, with its operands; other calls as they are."""
        self.generic_visit(node)
        operator, function = _OPERATORS.get(called_name(node)), node.func
        if operator is None or node.keywords or not isinstance(function, ast.Attribute):
            return node
        is_method = ast.unparse(function.value) != _TORCH
        operands = [*([function.value] if is_method else []), *node.args]
        if len(operands) != _PAIR or isinstance(operands[-1], ast.Starred):
            return node
        left, right = operands
        return ast.copy_location(ast.BinOp(left, operator(), right), node)


@lru_cache(maxsize=256)
def _all_in(scope: ast.AST) -> tuple[WrittenOut, ...]:
    rebound = _bound_in_turn(scope)
    if calls_in(scope, *_OPERATORS) or rebound:  # of a copy: others read the file's own tree
        scope = _AsOperators().visit(copy.deepcopy(scope))
        _number_bindings(scope, rebound)
    names = _bound_once(scope)
    inside: set[int] = set()
    results = []
    for node in ast.walk(scope):  # what is around comes first
        if id(node) in inside or not isinstance(node, (ast.BinOp, ast.Call)):
            continue
        result = _Expression(node, names).function()
        if result is not None:
            inside |= {id(part) for step in result.steps for part in ast.walk(step)}
            results.append(result)
    return tuple(results)


def _bound_in_turn(scope: ast.AST) -> set[str]:
    """Variables that statements of a function's own body bind one after the other, and none else.

    So that each read sees what the last statement before it binds: ``x = x.div(2).erf()``.
    """
    own, others = Counter[str](), set[str]()
    for statement in getattr(scope, "body", []):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        is_plain = isinstance(target, ast.Name) and len(statement.targets) == 1
        is_inside = False
        for node in ast.walk(statement):
            is_inside |= isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef))
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                others.update(node.names)
            if not isinstance(node, ast.Name) or (node is target and is_plain):
                continue
            if is_inside or not isinstance(node.ctx, ast.Load):
                others.add(node.id)
        if is_plain:
            own[target.id] += 1  # type: ignore[union-attr]
    given = set(parameters(scope))
    return {name for name, times in own.items() if times > 1 or name in given} - others


def _number_bindings(scope: ast.AST, names: set[str]) -> None:
    """Give variables another name with each statement that binds them, and their reads as well."""
    now: dict[str, str] = {}
    for number, statement in enumerate(getattr(scope, "body", [])):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node is not target:
                node.id = now.get(node.id, node.id)
        if isinstance(target, ast.Name) and target.id in names:
            now[target.id] = f"{target.id}@{number}"
            target.id = now[target.id]


def _bound_once(scope: ast.AST) -> dict[str, tuple[ast.expr, ast.stmt]]:
    """Variables that one statement binds, each with its value."""
    values: dict[str, list[tuple[ast.expr | None, ast.stmt]]] = {}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target, value in assigned(node):
                own = None if isinstance(node, ast.AugAssign) else value
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append((own, node))
    return {
        name: (bound[0][0], bound[0][1])
        for name, bound in values.items()
        if len(bound) == 1 and bound[0][0] is not None
    }


@dataclass(slots=True, eq=False)
class _Expression:
    """An expression, and the variables of its function by which it is read."""

    node: ast.BinOp | ast.Call
    names: dict[str, tuple[ast.expr, ast.stmt]]
    used: dict[int, ast.stmt] = field(default_factory=dict)
    """Statements that bind the variables that were looked behind."""

    def function(self) -> WrittenOut | None:
        """Say which function of torch computes the same."""
        if isinstance(self.node, ast.Call):
            instead, keeps = self._softplus(self.node), True
        elif isinstance(self.node.op, (ast.Mult, ast.Div)):
            factors = list(self._factors(self.node))
            divisors = list(self._divisors(self.node))
            instead = self._activation(factors) or self._softmax(factors, divisors)
            keeps = not instead.startswith("torch.softmax")
            if not instead:
                instead, keeps = self._norm(factors, divisors), False
        else:
            return None
        if not instead:
            return None
        steps = sorted((*self.used.values(), self.node), key=lambda one: one.lineno)
        return WrittenOut(instead, tuple(steps), keeps)

    def _value(self, node: ast.expr, depth: int = _DEEPEST) -> ast.expr:
        """What a variable stands for; anything else as it is."""
        while isinstance(node, ast.Name) and node.id in self.names and depth:
            value, statement = self.names[node.id]
            if node.id in loaded_names(value):  # `x = x - …` is of another x
                break
            self.used[id(statement)] = statement
            node, depth = value, depth - 1
        return node

    def _peek(self, node: ast.expr) -> ast.expr:
        """The same without a note that the variable's statement is a step."""
        before = dict(self.used)
        value = self._value(node)
        self.used = before
        return value

    def _factors(self, node: ast.expr, depth: int = _DEEPEST) -> Iterator[ast.expr]:
        """What is multiplied: variables themselves, and the factors of what they stand for."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from self._factors(node.left, depth)
            yield from self._factors(node.right, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield from self._factors(node.left, depth)
        elif not isinstance(node, ast.Constant):
            yield node
            value = self._peek(node)
            is_product = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div))
            if depth and value is not node and is_product:
                yield from self._factors(value, depth - 1)

    def _divisors(self, node: ast.expr) -> Iterator[ast.expr]:
        """What it is divided by."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            yield from self._divisors(node.left)
            if isinstance(node.op, ast.Div):
                yield node.right
            else:
                yield from self._divisors(node.right)
        elif isinstance(node, ast.Name):
            value = self._peek(node)
            if value is not node and isinstance(value, ast.BinOp):
                yield from self._divisors(value)

    def _activation(self, factors: list[ast.expr]) -> str:
        """A value times a function of it: SiLU, Mish or GELU."""
        texts = {ast.unparse(one) for one in factors}
        for factor in factors:
            value = self._peek(factor)
            name, operand = called_name(value), _operand(value)
            if name == "sigmoid" and operand is not None:
                scaled = [one for one in self._factors(operand) if ast.unparse(one) in texts]
                plain = not isinstance(operand, ast.BinOp)
                if scaled:
                    self._note(factor, factors)
                    return "F.silu(x)" if plain else "F.silu(scale * x) / scale"
            elif name == "tanh" and operand is not None:
                inner = self._value(operand)
                of = _operand(inner) if called_name(inner) == "softplus" else None
                if of is not None and ast.unparse(of) in texts:
                    self._note(factor, factors)
                    return "F.mish(x)"
            elif curve := self._gelu(value, texts):
                self._note(factor, factors)
                return _CURVES[curve]
        return ""

    def _note(self, factor: ast.expr, factors: list[ast.expr]) -> None:
        """Take the statements behind a factor for steps, and those of products that have it."""
        for one in factors:
            inner = self._peek(one)
            if one is factor or (inner is not one and factor in self._factors(inner)):
                self._value(one)

    def _gelu(self, value: ast.expr, texts: set[str]) -> str:
        """``erf`` or ``tanh``, where a value is one and that function of a factor."""
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return ""
        for one, other in ((value.left, value.right), (value.right, value.left)):
            curve = self._peek(other)
            name, operand = called_name(curve), _operand(curve)
            is_one = isinstance(one, ast.Constant) and one.value in (1, 1.0)
            if is_one and name in _CURVES and operand is not None:
                before = dict(self.used)
                self._value(other)
                if texts & self._texts_below(operand, texts):
                    return name
                self.used = before
        return ""

    def _texts_below(self, node: ast.expr, stop: set[str], depth: int = _DEEPEST) -> set[str]:
        """Every expression that a value is made of, down to some, with what variables stand for."""
        texts = set()
        for part in ast.walk(node):
            if not isinstance(part, ast.expr):
                continue
            text = ast.unparse(part)
            texts.add(text)
            value = self._value(part) if text not in stop and depth else part
            if value is not part:
                texts |= self._texts_below(value, stop, depth - 1)
        return texts

    def _softmax(self, factors: list[ast.expr], divisors: list[ast.expr]) -> str:
        """Exponentials over their sum."""
        for factor in factors:
            if called_name(self._peek(factor)) != "exp":
                continue
            for divisor in divisors:
                total = self._peek(divisor)
                of = _operand(total) if called_name(total) == "sum" else None
                if of is not None and ast.unparse(of) == ast.unparse(factor):
                    self._value(factor)
                    self._value(divisor)
                    return "torch.softmax(x, dim)"
        return ""

    def _norm(self, factors: list[ast.expr], divisors: list[ast.expr]) -> str:
        """A value without its mean, over its deviation."""
        roots = [one for one in divisors if self._is_root(one)]
        roots += [one for one in factors if called_name(self._peek(one)) == "rsqrt"]
        if not roots:
            return ""
        for factor in factors:
            centred = self._peek(factor)
            if not isinstance(centred, ast.BinOp) or not isinstance(centred.op, ast.Sub):
                continue
            mean = self._peek(centred.right)
            of = _operand(mean) if called_name(mean) == "mean" else None
            if of is None or ast.unparse(of) != ast.unparse(centred.left):
                continue
            instead = _OF_DIMENSIONS.get(_dimensions(mean), "")
            if instead:
                self._note(factor, factors)
                self._value(centred.right)
                for root in roots:
                    self._texts_below(root, {ast.unparse(centred.left)})
                return instead
        return ""

    def _is_root(self, node: ast.expr) -> bool:
        value = self._peek(node)
        return any(called_name(part) in _ROOTS for part in ast.walk(value)) or any(
            called_name(self._peek(part)) in _ROOTS
            for part in ast.walk(value)
            if isinstance(part, ast.Name)
        )

    def _softplus(self, call: ast.Call) -> str:
        """The logarithm of one and an exponential."""
        operand = _operand(call)
        if operand is None:
            return ""
        value = self._peek(operand)
        if called_name(call) == "log1p" and called_name(value) == "exp":
            self._value(operand)
            return "F.softplus(x)"
        if called_name(call) != "log" or not isinstance(value, ast.BinOp):
            return ""
        sides = (value.left, value.right)
        has_one = any(isinstance(one, ast.Constant) and one.value in (1, 1.0) for one in sides)
        exponential = [one for one in sides if called_name(self._peek(one)) == "exp"]
        if isinstance(value.op, ast.Add) and has_one and exponential:
            self._value(operand)
            self._value(exponential[0])
            return "F.softplus(x)"
        return ""


def _operand(call: ast.expr) -> ast.expr | None:
    """What a function or method is called on: ``x`` of ``torch.exp(x)`` and of ``x.exp()``."""
    if not isinstance(call, ast.Call):
        return None
    function = call.func
    if isinstance(function, ast.Attribute):
        receiver = function.value
        last = receiver.attr if isinstance(receiver, ast.Attribute) else ""
        name = receiver.id if isinstance(receiver, ast.Name) else last
        if name not in _NAMESPACES and not (name == "self" and call.args):
            return receiver
    return call.args[0] if call.args else None


def _dimensions(mean: ast.expr) -> tuple[int, ...]:
    """Those that a mean is of; empty where they are not written down."""
    assert isinstance(mean, ast.Call)
    given = keyword(mean, "dim")
    if given is None:
        own = mean.args if _operand(mean) not in mean.args else mean.args[1:]
        given = own[0] if own else None
    try:
        value = ast.literal_eval(given) if given is not None else ()
    except ValueError:
        return ()
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(one for one in values if isinstance(one, int))
