"""Scopes and names of the user's files: whose variable a name is, and what an import stands for.

Python's own compiler says which names are local to a function (`symtable`); nothing is guessed.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from memprof.source_code.program import FUNCTIONS, Place, Program, assigned, called_name

__all__ = [
    "BINDING",
    "COMPREHENSIONS",
    "LOOPING",
    "Scopes",
    "Syntax",
    "bound_in_turn",
    "enclosing_function",
    "nodes_around",
    "parameters",
    "qualified_name",
    "reads_of",
    "reads_of_binding",
    "syntax_of",
]

Scopes = tuple[ast.AST, ...]
"""The functions, lambdas and comprehensions around a node, outermost first."""
LOOPING = (ast.For, ast.AsyncFor, ast.comprehension)
BINDING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ASSIGNING = (ast.Assign, ast.AnnAssign)
_WITH = (ast.With, ast.AsyncWith)
_SCOPES = (*FUNCTIONS, ast.Lambda, *COMPREHENSIONS)
_DEEPEST = 8
"""Names that stand for one another, until a qualified name is given up."""


@dataclass(eq=False)
class Syntax:
    """The syntax of some files, as many flows look at it."""

    programs: Sequence[Program]

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, Scopes]]:
        """Every node with the scopes around it, outermost first."""
        return [pair for program in self.programs for pair in _walk(program.tree, ())]

    @cached_property
    def passing(self) -> list[tuple[ast.AST, Scopes]]:
        """The nodes that may hand a value on."""
        kinds = (*BINDING, *LOOPING, ast.Return, ast.Yield, ast.YieldFrom, ast.Call)
        return [pair for pair in self.nodes if isinstance(pair[0], kinds)]

    @cached_property
    def functions(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Functions by name; a class stands for its ``__init__``."""
        by_name: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for node, _ in self.nodes:
            if isinstance(node, FUNCTIONS):
                by_name.setdefault(node.name, []).append(node)
            if isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, FUNCTIONS)]
                by_name.setdefault(node.name, []).extend(n for n in methods if n.name == "__init__")
        return by_name

    def may_call_object(self, call: ast.Call) -> bool:
        """Whether a call may be of an object, as a module: of a variable or attribute it binds."""
        if isinstance(call.func, ast.Attribute):
            name, variables = call.func.attr, self._attributes
        elif isinstance(call.func, ast.Name):
            name, variables = call.func.id, self._variables
        else:
            return False
        return name in variables and name not in self.functions

    @cached_property
    def _attributes(self) -> set[str]:
        """Attributes that the files assign."""
        return {
            node.attr
            for node, _ in self.nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }

    @cached_property
    def _variables(self) -> set[str]:
        """Variables that the files assign, and parameters of their functions."""
        assigned = {
            node.id
            for node, _ in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return assigned | {node.arg for node, _ in self.nodes if isinstance(node, ast.arg)}

    @cached_property
    def called_names(self) -> set[str]:
        """The last names of all that is called."""
        return {called_name(node) for node, _ in self.passing}

    @cached_property
    def of_torch(self) -> set[str]:
        """Names that torch or a part of it is imported by."""
        names = {"torch"}
        for node, _ in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None)
                for alias in node.names:
                    if (module or alias.name).startswith("torch"):
                        names.add((alias.asname or alias.name).split(".")[0])
        return names

    @cached_property
    def bound(self) -> dict[int, set[str]]:
        """The variables of every scope, by its identity."""
        names: dict[int, set[str]] = {}
        for program in self.programs:
            names |= _locals(program)
        return names


@lru_cache(maxsize=4)
def syntax_of(programs: tuple[Program, ...]) -> Syntax:
    """The syntax of these files, read once for all flows through them."""
    return Syntax(programs)


def _walk(node: ast.AST, scopes: Scopes) -> Iterator[tuple[ast.AST, Scopes]]:
    waiting = [(node, scopes)]
    while waiting:
        node, scopes = waiting.pop()
        yield node, scopes
        inner = (*scopes, node) if isinstance(node, _SCOPES) else scopes
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]


def reads_of(scope: ast.AST, name: str) -> Iterator[tuple[ast.Name, list[ast.AST]]]:
    """Where a variable is read inside a node, with the nodes around each read, outermost first."""
    waiting: list[tuple[ast.AST, list[ast.AST]]] = [(scope, [])]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node, around
        below = [*around, node]
        waiting += [(child, below) for child in ast.iter_child_nodes(node)]


def bound_in_turn(scope: ast.AST, name: str) -> list[ast.stmt]:
    """The statements that bind a variable of a function one after the other, in their order.

    Empty where they stand in different blocks, as in branches, or bind it otherwise.
    """
    nodes = [
        node
        for node in ast.walk(scope)
        if isinstance(node, (*BINDING, *LOOPING, *_WITH))
        and any(isinstance(one, ast.Name) and one.id == name for one in _targets(node))
    ]
    for block in _blocks(scope):
        own = [one for one in block if any(one is node for node in nodes)]
        if own:
            is_all = len(own) == len(nodes)
            return own if is_all and all(isinstance(one, _ASSIGNING) for one in own) else []
    return []


def reads_of_binding(
    scope: ast.AST, name: str, line: int
) -> Iterator[tuple[ast.Name, list[ast.AST]]]:
    """The reads of a variable of a function that see what it is bound to at a line.

    Where statements of one block bind it, one after the other; else they are all of its reads.
    """
    bound = bound_in_turn(scope, name)
    block = next((one for one in _blocks(scope) if bound and bound[0] in one), [])
    numbers = {id(node): at for at, one in enumerate(block) for node in ast.walk(one)}
    places = [numbers[id(one)] for one in bound]
    own = next((numbers[id(one)] for one in bound if one.lineno == line), None)
    # In a loop, and behind it, the last one is seen until the first has run again.
    is_of_scope = block is getattr(scope, "body", None)
    at_first = -1 if is_of_scope or not places else places[-1]
    for read, around in reads_of(scope, name):
        before = [one for one in places if one < numbers.get(id(read), -1)]
        if own is None or (before[-1] if before else at_first) == own:
            yield read, around


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of what an assignment, a loop or a ``with`` binds."""
    targets = list(getattr(node, "targets", [getattr(node, "target", None)]))
    targets += [item.optional_vars for item in getattr(node, "items", ())]
    for target in targets:
        yield from ast.walk(target) if target is not None else ()


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """The bodies of a function, and of its loops, branches and the like."""
    for node in ast.walk(scope):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def nodes_around(statement: ast.AST, wanted: ast.AST) -> list[ast.AST]:
    """The nodes around one of a statement, outermost first."""
    around: list[ast.AST] = []
    node = statement
    while node is not wanted:
        around.append(node)
        node = next(
            child
            for child in ast.iter_child_nodes(node)
            if child is wanted or any(one is wanted for one in ast.walk(child))
        )
    return around


def enclosing_function(scopes: Scopes) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function with a name of its own; None at the top of a file."""
    return next((scope for scope in reversed(scopes) if isinstance(scope, FUNCTIONS)), None)


@lru_cache(maxsize=256)
def _locals(program: Program) -> dict[int, set[str]]:
    """The local names of every function, lambda and comprehension of a file, by its identity."""
    tables = _tables(program)
    names: dict[int, set[str]] = {}
    for node in program.nodes:
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            name = getattr(node, "name", "lambda")
            local = tables.get((name, node.lineno), set())
            names[id(node)] = local | set(parameters(node))
        elif isinstance(node, COMPREHENSIONS):
            targets = [one for part in node.generators for one in ast.walk(part.target)]
            names[id(node)] = {one.id for one in targets if isinstance(one, ast.Name)}
    return names


def _tables(program: Program) -> dict[tuple[str, int], set[str]]:
    """The local names by the name and the line of their function; of none where it cannot run."""
    tables: dict[tuple[str, int], set[str]] = {}
    try:
        waiting = [symtable.symtable(program.text, program.filename, "exec")]
    except (SyntaxError, ValueError, RecursionError):
        return tables
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        if isinstance(table, symtable.Function):
            local = tables.setdefault((table.get_name(), table.get_lineno()), set())
            local.update(s.get_name() for s in table.get_symbols() if s.is_local())
    return tables


def parameters(function: ast.AST) -> Iterator[str]:
    """The names of a function's parameters."""
    if not isinstance(function, (*FUNCTIONS, ast.Lambda)):
        return
    spec = function.args
    named_parameters = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg)
    yield from (one.arg for one in named_parameters if one is not None)


def qualified_name(place: Place, expression: ast.expr) -> str:
    """``torch.optim.AdamW`` for what a file imports or names otherwise; empty for other values.

    Names are looked up where the statement at ``place`` would find them; a name that is assigned
    an import once (``optim = torch.optim``) stands for that.
    """
    functions = [node for node in place.around if isinstance(node, FUNCTIONS)]
    local = _locals(place.program)
    names: list[str] = []
    for _ in range(_DEEPEST):
        while isinstance(expression, ast.Attribute):
            names.insert(0, expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return ""
        name = expression.id
        scope = next((f for f in reversed(functions) if name in local[id(f)]), None)
        bindings = _meanings(place.program)
        meanings = bindings[id(scope) if scope is not None else 0].get(name, [])
        if not meanings and scope is None and not hasattr(builtins, name):
            meanings = [
                f"{one.removesuffix('*')}{name}" for one in map(str, bindings[0].get("*", []))
            ]
        if len(meanings) != 1:
            return ""
        meaning = meanings[0]
        if isinstance(meaning, str):
            return ".".join([meaning, *names])
        expression = meaning
    return ""


@lru_cache(maxsize=256)
def _meanings(program: Program) -> dict[int, dict[str, list[str | ast.expr]]]:
    """Meanings of the names in each scope (0: the file): a dotted import, or an expression.

    A name that is bound in another way as well has two meanings, and so none.
    """
    meanings: dict[int, dict[str, list[str | ast.expr]]] = {0: {}}
    members = {id(node) for class_ in program.classes() for node in class_.body}
    for node, scopes in _walk(program.tree, ()):
        function = enclosing_function(scopes)
        names = meanings.setdefault(id(function) if function is not None else 0, {})
        if isinstance(node, FUNCTIONS):
            meanings.setdefault(id(node), {})
            for name in parameters(node):
                meanings[id(node)].setdefault(name, []).append(ast.Constant(name))
        for name, meaning in _bound_by(node) if id(node) not in members else ():
            if meaning not in names.setdefault(name, []):
                names[name].append(meaning)
    return meanings


def _bound_by(node: ast.AST) -> Iterator[tuple[str, str | ast.expr]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.split(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name, ast.Constant(node.name)
    elif isinstance(node, BINDING):
        for target, value in assigned(node):
            if isinstance(target, ast.Name):
                yield target.id, value if value is not None else target
    elif isinstance(node, LOOPING):
        targets = [one for one in ast.walk(node.target) if isinstance(one, ast.Name)]
        yield from ((one.id, ast.Constant(None)) for one in targets)
