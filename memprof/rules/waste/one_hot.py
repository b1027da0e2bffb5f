"""one-hot: a table of zeros and ones picks values, weights or rows, where the indices would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import (
    LargeTensor,
    large_tensor,
    largest_with_kin,
    one_of_several,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.einsums import einsum_of
from memprof.source_code.encodings import (
    Encoding,
    encodings,
    is_returned,
    reads_besides,
    returned_to,
)
from memprof.source_code.idioms import CASTING, keyword, without_casts
from memprof.source_code.program import (
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
    place_of,
    root_name,
)
from memprof.source_code.smoothed_labels import SmoothedLabels, smoothed_labels
from memprof.source_code.values import values_of
from memprof.source_code.verbs import JOINING
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines
from memprof.views.window import Ints, Window

__all__ = ["RULE", "Use", "multiplying_product", "picking_statement", "weighing_statements"]

_MAKER = "one_hot"
_NARROWER = (1, 2, 4)
"""By which a copy in a floating type is smaller than the table of int64."""
_TURNING = frozenset(("T", "mT", "permute", "t", "transpose"))
"""Attributes and methods that turn a matrix, without a copy."""
_OF_BATCHES = frozenset(("mT", "permute"))
"""Those of them that may turn each matrix of a batch."""
_PRODUCTS = frozenset(("matmul", "mm"))
_ARGUMENTS = 2
"""Of `one_hot`: the indices, and how many classes there are; of a cross-entropy as well."""
_MULTIPLYING = frozenset(("mul", "multiply"))
_ENTROPY, _ENTROPY_LAYER = "cross_entropy", "CrossEntropyLoss"
_WEIGHT = "weight"
"""Setting of a cross-entropy that is not the same for a table and for indices."""
_OF_PRODUCTS = (
    _MULTIPLYING | _TURNING | _PRODUCTS | CASTING | {*(_MAKER, "einsum", "mean", "numel", "sum")}
)
"""Calls in a product that make no other factor as large."""
_OF_TABLES = frozenset(
    (
        *("arange", "eye", "index_select", "new_zeros", "reshape", "scatter", "scatter_", "size"),
        *("sum", "unsqueeze", "view", "zeros", "zeros_like", _ENTROPY),
    )
)
"""Calls that make a table, that shape its indices, or that read it."""
_LEAST_PART = 8
"""By which truth values are smaller than the table in double precision."""
_DIMENSIONS = 2
"""Of a table of one row for each index."""


@dataclass(frozen=True, slots=True)
class _Counting:
    """The statements that make two tables and multiply them."""

    statements: tuple[ast.stmt, ...]
    instead: str
    """What counts the same, as a person would type it."""


class Use(Enum):
    """What a program does with a one-hot table that the indices do as well."""

    PICKS = "picks one value of each row"
    """It is multiplied value by value, and summed."""
    SELECTS = "a product of matrices takes rows by"
    """``table @ x``: one row of x for each row of the table."""
    ADDS = "a product of matrices adds rows up by"
    """``table.T @ x``: the rows of x that have the same class."""
    SMOOTHS = "weighs log-probabilities of labels that are smoothed"
    """``(table * log_p).sum(-1)``, of a table that is no longer of zeros and ones; or `kl_div`."""
    COUNTS = "is multiplied with another one, to count pairs of classes"
    """``table.T @ other``: how often a row has each pair, as a confusion matrix has."""
    WEIGHS = "a linear layer takes its weights by"
    """``self.linear(table)``: a column of its weights for each class."""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """The product of matrices that reads a table."""

    statement: ast.stmt
    use: Use
    instead: str
    """What computes the same, as a person would type it; empty for a batch of matrices."""


@dataclass(frozen=True, slots=True, eq=False)
class _Operands:
    """Both sides of a product of matrices, of which the left may be a table."""

    left: ast.expr
    right: ast.expr
    is_turned: bool = False
    """The left side's first dimension is the one that is summed: `einsum` turns it."""
    is_plain: bool = True
    """The result is that of ``left @ right``, of a turned side of its turn."""


@dataclass(frozen=True, slots=True, eq=False)
class OneHotTable(Match):
    """What it is there for."""

    use: Use = Use.PICKS
    instead: str = ""


class OneHot(WasteRule[OneHotTable]):
    """`(F.one_hot(target, classes) * log_p).sum(-1)`: a dense table for one value of each row."""

    name = "one-hot"
    summary = "a dense one-hot table is multiplied, to pick values or rows or to add them up"
    fixes = ("class_indices",)

    def matches(self, window: Window) -> Iterator[OneHotTable]:
        """The large tensor of the peak, made by `one_hot` and read by a product alone."""
        several = one_of_several(window)
        smoothed = self._smoothed(window, several) if several is not None else None
        if smoothed is not None:
            yield smoothed
            return
        large = large_tensor(window) or largest_with_kin(window)
        if large is None:
            return
        for one in _each_made(window, large):
            match = self._of_place(window, one)
            if match is not None:
                yield match
                return

    def _of_place(self, window: Window, large: LargeTensor) -> OneHotTable | None:
        """What a tensor is there for, by the statement that made it."""
        if large.place is None:
            return None
        statements = weighing_statements(large.place)
        if statements:
            return self._match(window, large, _made_at(window, large, statements), Use.WEIGHS)
        counting = _counting_statements(large.place)
        if counting is not None:
            rows = _made_at(window, large, counting.statements)
            return self._match(window, large, rows, Use.COUNTS, counting.instead)
        for place, tables in _places_of_table(window, large):
            picking = picking_statement(place, tables)
            product = multiplying_product(place, tables) if picking is None else None
            reading = product.statement if product is not None else picking
            if reading is None:
                continue
            rows = _made_for(window, large, place, tables, reading)
            if product is None:
                return self._match(window, large, rows, Use.PICKS)
            return self._match(window, large, rows, product.use, product.instead)
        return None

    def _smoothed(self, window: Window, large: LargeTensor) -> OneHotTable | None:
        """The table of smoothed labels, where a tensor as large as the largest is one."""
        rows_of = {window.frame_of(row): row for row in large.there.tolist()}
        for frame, row in rows_of.items():
            place = place_of(frame)
            labels = smoothed_labels(place) if place is not None else None
            if place is None or labels is None:
                continue
            rows = _made_of_labels(window, large, place.program.filename, labels)
            if row in rows:
                return self._match(window, replace(large, row=row), rows, Use.SMOOTHS)
        return None

    def _match(
        self, window: Window, large: LargeTensor, rows: Ints, use: Use, instead: str = ""
    ) -> OneHotTable:
        there = rows[window.at_peak[rows]]
        return OneHotTable(
            row=large.row,
            rows=there,
            nbytes=int(window.lives.size[there].sum()),
            saving=window.replayed(window.whole(rows)),
            use=use,
            instead=instead,
        )

    def title(self, match: OneHotTable) -> str:
        """Say what they are, and what for."""
        if match.use is Use.PICKS:
            return "are a one-hot table that picks one value of each row, and what is made of it"
        if match.use is Use.SMOOTHS:
            return "are labels that are smoothed in a table of all classes, and what is made of it"
        return f"are a one-hot table that {match.use.value}"

    def advice(self, match: OneHotTable, case: Case) -> Iterator[Advice]:
        """Give the indices themselves."""
        nbytes = format_bytes(match.nbytes)
        if match.use is Use.PICKS:
            why = (
                f"{nbytes} of zeros and ones are made to pick one value of each row: "
                "`F.cross_entropy` takes the indices, and so does "
                "`x.gather(-1, index[..., None])`; `scatter_add` sums these for each class, and "
                "`bincount` counts."
            )
        elif match.use is Use.SMOOTHS:
            why = (
                f"{nbytes} hold a value for each class and row: `F.cross_entropy(logits, target, "
                "label_smoothing=…)` takes the indices, and makes no table."
            )
        elif match.use is Use.SELECTS:
            why = f"{nbytes} of zeros and ones take rows by a product: an index takes them."
        elif match.use is Use.COUNTS:
            why = (
                f"{nbytes} of zeros and ones are multiplied to count pairs of classes: "
                "`torch.bincount` counts them by their indices."
            )
        elif match.use is Use.WEIGHS:
            why = (
                f"{nbytes} of zeros and ones take weights of a linear layer: `nn.Embedding` of as "
                "many rows takes the indices, and the sum of several is that of their tables."
            )
        else:
            why = (
                f"{nbytes} of zeros and ones add up the rows of each class by a product: "
                "`index_add` adds them by their indices."
            )
        yield Advice("class_indices", why, case.site, typed=match.instead)


def _each_made(window: Window, large: LargeTensor) -> Iterator[LargeTensor]:
    """The large tensor, and those of its size at the peak that other statements have made.

    Of a statement that computes something else besides, its own operators cannot be told apart.
    """
    yield large
    rows_of = {window.frame_of(row): row for row in _made_by_operators(window, large)[::-1]}
    for frame, row in rows_of.items():
        place = place_of(frame)
        if place is not None and row != large.row and _makes_table_alone(place.statement):
            yield replace(large, row=row, place=place)


def _made_by_operators(window: Window, large: LargeTensor) -> list[int]:
    """Those of its size that an operator on the reported line made, and nothing called there."""
    return [row for row in large.there.tolist() if window.frame_of(row) in window.stack(row)[:1]]


def _makes_table_alone(statement: ast.stmt) -> bool:
    """Whether no operator of a statement makes anything but a table, its copies and products.

    What it calls of the program is made elsewhere.
    """
    known = _OF_PRODUCTS | _OF_TABLES
    calls = calls_in(statement)
    if calls_in(statement, _ENTROPY) and any(isinstance(n, ast.BinOp) for n in ast.walk(statement)):
        return False
    return all(
        called_name(call) in known
        or isinstance(call.func, ast.Name)
        or root_name(call.func) == "self"
        for call in calls
    )


def _places_of_table(
    window: Window, large: LargeTensor
) -> Iterator[tuple[Place, Sequence[Encoding]]]:
    """The statement that makes the tables, or that calls a function which returns one to it."""
    place = large.place
    tables = encodings(place) if place is not None else []
    if place is None or not tables:
        return
    yield place, tables
    line = window.frame_of(large.row)
    frames = window.user_frames(window.stack(large.row))
    outside = frames[frames.index(line) + 1 :] if line in frames else []
    caller = place_of(outside[0]) if outside else None
    if caller is None or place.function is None or len(tables) != 1:
        return
    table = returned_to(caller, tables[0], place.function)
    if table is not None and is_returned(place, tables[0]):
        yield caller, [table]


def weighing_statements(place: Place) -> tuple[ast.stmt, ...]:
    """Those that make a table which only a linear layer reads, join it of others, and read it.

    None where the statement at ``place`` is none of them.
    """
    for call in calls_in(place.scope):
        if not (call.args and _is_linear(place, call)):
            continue
        nodes = [call, *_table_nodes(place, call.args[0])]
        found = [place.program.place(node) for node in nodes]
        statements = tuple({id(one.statement): one.statement for one in found if one}.values())
        if len(nodes) > 1 and place.statement in statements:
            return statements
    return ()


def _is_linear(place: Place, call: ast.Call) -> bool:
    """Whether a call is that of a linear layer, by what its name was bound to in the file."""
    if called_name(call) == "linear" and len(call.args) > 1:
        return True
    return _is_made_by(place, call.func, "Linear")


def _is_made_by(place: Place, called: ast.expr, class_: str) -> bool:
    """Whether what is called is an object of a class, by what its name is bound to in the file."""
    name = ast.unparse(called)
    made = [
        value
        for node in place.program.nodes
        for target, value in assigned(node)
        if ast.unparse(target) == name
    ]
    return bool(made) and all(value is not None and called_name(value) == class_ for value in made)


def _table_nodes(place: Place, value: ast.expr | None) -> list[ast.expr]:
    """The calls that make and join a value's tables; none where it is anything else besides."""
    value = without_casts(value)
    if isinstance(value, ast.Name):
        reads = [n for n in ast.walk(place.scope) if isinstance(n, ast.Name) and n.id == value.id]
        if sum(isinstance(node.ctx, ast.Load) for node in reads) != 1:
            return []
        return _all_tables(place, list(values_of(place, value.id)))
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        return _all_tables(place, [value.elt])
    if isinstance(value, (ast.List, ast.Tuple)):
        return _all_tables(place, value.elts)
    if not isinstance(value, ast.Call):
        return []
    if called_name(value) == _MAKER:
        return [value]
    if called_name(value) in JOINING and value.args:
        parts = _table_nodes(place, value.args[0])
        return [value, *parts] if parts else []
    return []


def _all_tables(place: Place, values: Sequence[ast.expr | None]) -> list[ast.expr]:
    nodes = [_table_nodes(place, one) for one in values]
    return [node for part in nodes for node in part] if nodes and all(nodes) else []


def picking_statement(place: Place, tables: Sequence[Encoding] | None = None) -> ast.stmt | None:
    """The statement that sums a product with the table that a statement makes; None without.

    So does a cross-entropy whose target it is. Also none where the function reads the table
    anywhere else, but to count its rows by a sum. ``tables`` are those of the statement, where they
    are known.
    """
    tables = encodings(place) if tables is None else tables
    if not tables:
        return None
    makers = [table.made for table in tables]
    copies = [*_copying_statements(place), *(one.filling for one in tables if one.filling)]
    names = {
        target.id
        for statement in (place.statement, *copies)
        for target in bound_names(statement)
        if isinstance(target, ast.Name)
    }
    reads = reads_besides(place, names, copies)
    functions = [call.func for call in calls_in(place.scope, "sum")]
    counted = {id(one.value) for one in functions if isinstance(one, ast.Attribute)}
    picking = [node for node in reads if id(node) not in counted]
    for total in calls_in(place.scope):
        product = _product_in(total, place, makers)
        if product is None:
            continue
        inside = set(map(id, ast.walk(product)))
        # What a statement binds that has the product as well is no table.
        is_made_there = all(id(node) in inside for node in makers)
        is_read_there = bool(picking) and all(id(node) in inside for node in picking)
        if is_made_there or is_read_there:
            at = place.program.place(product)
            return at.statement if at is not None else None
    return None


def _product_in(call: ast.Call, place: Place, makers: Sequence[ast.expr]) -> ast.expr | None:
    """What a sum, an `einsum` or a cross-entropy multiplies value by value; None of other calls."""
    if called_name(call) == "sum":
        return _summed(call, place)
    return _sum_of_values(call) or _wanted(call, place, makers)


def _wanted(call: ast.Call, place: Place, makers: Sequence[ast.expr]) -> ast.expr | None:
    """The target of a cross-entropy, by the function or by an ``nn.CrossEntropyLoss``.

    None where it is no variable and not the table itself, as of labels that are mixed; nor with
    weights of the classes, which count otherwise for a table.
    """
    layers = calls_in(place.program.tree, _ENTROPY_LAYER)
    is_layer = _is_made_by(place, call.func, _ENTROPY_LAYER)
    if not (is_layer or called_name(call) == _ENTROPY) or len(call.args) > _ARGUMENTS:
        return None
    given = [one.arg for made in (call, *(layers if is_layer else ())) for one in made.keywords]
    if _WEIGHT in given or any(one.args for one in layers if is_layer):
        return None
    target = keyword(call, "target")
    target = call.args[1] if target is None and len(call.args) > 1 else target
    table = _without_turns(target)[0]
    return target if isinstance(table, ast.Name) or table in makers else None


def _copying_statements(place: Place) -> list[ast.Assign]:
    """Those that bind a statement's table anew, turned or in another type: ``y = y.float()``."""
    names = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    copies: list[ast.Assign] = []
    for node in ast.walk(place.scope):
        if not isinstance(node, ast.Assign) or node.lineno <= place.statement.lineno:
            continue
        value = _without_turns(node.value)[0]
        if value is not node.value and isinstance(value, ast.Name) and value.id in names:
            names |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
            copies.append(node)
    return copies


def multiplying_product(place: Place, tables: Sequence[Encoding] | None = None) -> Product | None:
    """The one product of matrices that reads the table which a statement makes, as its left side.

    None where the function reads the table anywhere else. ``tables`` as in `picking_statement`.
    """
    tables = encodings(place) if tables is None else tables
    if len(tables) != 1:
        return None
    made, filling = tables[0].made, tables[0].filling
    bound = bound_names(place.statement) if _is_plain(place, made) else []
    names = {target.id for target in bound if isinstance(target, ast.Name)}
    products: list[Product] = []
    for node in ast.walk(place.scope):
        for operands in _operands(node):
            table, is_turned = _without_turns(operands.left)
            of_name = isinstance(table, ast.Name) and table.id in names
            at = place.program.at(getattr(node, "lineno", 0))
            if at is not None and (of_name or table is made):
                adds = is_turned ^ operands.is_turned ^ tables[0].is_turned
                use = Use.ADDS if adds else Use.SELECTS
                is_known = operands.is_plain and not (is_turned and _turns_a_batch(operands.left))
                instead = _instead(tables[0], operands.right, use) if is_known else ""
                products.append(Product(at.statement, use, instead))
    filled = set(map(id, ast.walk(filling))) if filling is not None else set()
    loads = [
        node
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name)
        and node.id in names
        and isinstance(node.ctx, ast.Load)
        and id(node) not in filled
    ]
    return products[0] if len(products) == 1 and len(loads) == bool(names) else None


def _counting_statements(place: Place) -> _Counting | None:
    """The product of two tables that the statement at ``place`` makes, or makes one of.

    None where anything else reads one of them.
    """
    for node in ast.walk(place.scope):
        operands = next(iter(_operands(node)), None)
        if operands is None:
            continue
        ours, theirs = _table_of(place, operands.left), _table_of(place, operands.right)
        if ours is None or theirs is None or theirs[1] or not ours[1] ^ operands.is_turned:
            continue
        tables = ours[0], theirs[0]
        nodes: list[ast.AST] = [node, *tables]
        at = [place.program.at(getattr(one, "lineno", 0)) for one in nodes]
        statements = tuple({id(one.statement): one.statement for one in at if one}.values())
        if place.statement in statements:
            return _Counting(statements, _count(*tables))
    return None


def _table_of(place: Place, value: ast.expr | None) -> tuple[ast.Call, bool] | None:
    """The call that makes an operand's table, also by a name that is read once; is it turned?"""
    value, is_turned = _without_turns(value)
    if isinstance(value, ast.Name):
        name = value.id
        reads = [n for n in ast.walk(place.scope) if isinstance(n, ast.Name) and n.id == name]
        values = list(values_of(place, name))
        if len(values) != 1 or sum(isinstance(node.ctx, ast.Load) for node in reads) != 1:
            return None
        value, was_turned = _without_turns(values[0])
        is_turned ^= was_turned
    is_table = isinstance(value, ast.Call) and called_name(value) == _MAKER
    return (value, is_turned) if is_table and isinstance(value, ast.Call) else None


def _count(rows: ast.Call, columns: ast.Call) -> str:
    """``torch.bincount(a * n + b, minlength=n * n).view(n, n)``, in the program's own words."""
    given = [[*one.args, *(k.value for k in one.keywords)] for one in (rows, columns)]
    if any(len(one) != _ARGUMENTS for one in given):
        return ""
    (a, n), (b, m) = ([ast.unparse(one) for one in arguments] for arguments in given)
    return f"torch.bincount({a} * {m} + {b}, minlength={n} * {m}).view({n}, {m})"


def _instead(table: Encoding, rows: ast.expr, use: Use) -> str:
    """``x[index]``, or ``x.new_zeros(…).index_add(0, index, x)``, in the program's own words."""
    index, classes = table.index or "index", table.classes or "classes"
    is_one = isinstance(rows, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    x = ast.unparse(rows) if is_one else f"({ast.unparse(rows)})"
    if use is Use.SELECTS:
        return f"{x}[{index}]"
    return f"{x}.new_zeros({classes}, {x}.size(-1)).index_add(0, {index}, {x})"


def _is_plain(place: Place, maker: ast.expr) -> bool:
    """Whether a statement binds a name to the table itself, in another type perhaps."""
    statement = place.statement
    value = statement.value if isinstance(statement, ast.Assign) else None
    return _without_turns(value)[0] is maker


def _operands(node: ast.AST) -> Iterator[_Operands]:
    """``a`` and ``b`` of ``a @ b``, ``a.mm(b)`` or ``torch.mm(a, b)``; nothing of others.

    Of an `einsum` both ways, as which of the two is the table is not known.
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield _Operands(node.left, node.right)
        return
    whole = einsum_of(node)
    if whole is not None and whole.is_product:
        for ours, theirs in ((0, 1), (1, 0)):
            letters, others = whole.inputs[ours], whole.inputs[theirs]
            if len(letters) == _DIMENSIONS:
                is_turned = letters[-1] in whole.output
                between, left = (letters[0], letters[1]) if is_turned else (letters[1], letters[0])
                is_plain = others[:1] == between and whole.output == left + others[1:]
                yield _Operands(
                    whole.operands[ours], whole.operands[theirs], is_turned, is_plain=is_plain
                )
        return
    if not isinstance(node, ast.Call) or called_name(node) not in _PRODUCTS:
        return
    if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        yield _Operands(node.func.value, node.args[0])
    elif len(node.args) > 1:
        yield _Operands(node.args[0], node.args[1])


def _without_turns(value: ast.expr | None) -> tuple[ast.expr | None, bool]:
    """A value without what turns it or gives it another type; whether it was turned."""
    is_turned = False
    while True:
        function = value.func if isinstance(value, ast.Call) else value
        if not isinstance(function, ast.Attribute):
            return value, is_turned
        if function.attr in _TURNING:
            is_turned = not is_turned
        elif function.attr not in CASTING:
            return value, is_turned
        value = function.value


def _turns_a_batch(value: ast.expr) -> bool:
    """Whether it may be a batch of matrices that is turned: ``x.mT``, ``x.transpose(1, 2)``."""
    turned = (node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute))
    dimensions = (
        sorted(map(ast.unparse, call.args)) != ["0", "1"] for call in calls_in(value, "transpose")
    )
    return not _OF_BATCHES.isdisjoint(turned) or any(dimensions)


def _summed(total: ast.Call, place: Place) -> ast.expr | None:
    """The product that ``(a * b).sum(-1)`` or ``torch.sum(torch.mul(a, b), -1)`` sums.

    By a name, too.
    """
    receiver = total.func.value if isinstance(total.func, ast.Attribute) else None
    for summed in (receiver, *total.args[:1]):
        value = summed
        if isinstance(summed, ast.Name):
            bound = (
                value
                for node in ast.walk(place.scope)
                for target, value in assigned(node)
                if isinstance(target, ast.Name) and target.id == summed.id
            )
            value = next(bound, None)
        while isinstance(value, ast.UnaryOp):
            value = value.operand
        is_product = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)
        if value is not None and (is_product or called_name(value) in _MULTIPLYING):
            return value
    return None


def _sum_of_values(call: ast.Call) -> ast.Call | None:
    """A call of `einsum` that sums, along their last dimension, what it multiplies one by one."""
    whole = einsum_of(call)
    if whole is None or not whole.is_sum_of_values:
        return None
    return call if whole.summed >= {one[-1] for one in whole.inputs} else None


def _made_at(window: Window, large: LargeTensor, statements: Sequence[ast.stmt]) -> Ints:
    """What the statements make in every step; of what reads tables only what is as large as one."""
    if large.place is None:
        return np.zeros(0, dtype=np.int64)
    lives, filename = window.lives, large.place.program.filename
    is_made = np.zeros(len(lives), dtype=bool)
    for statement in statements:
        own = [
            row
            for row, frame in enumerate(window.owners.sites.frames)
            if frame.filename == filename
            and statement.lineno <= frame.line <= (statement.end_lineno or statement.lineno)
        ]
        makes = bool(calls_in(statement, _MAKER))
        of_size = makes | (lives.requested >= lives.requested[large.row])
        is_made |= np.isin(window.site, own) & of_size & ~window.has_owner
    return np.flatnonzero(is_made)


def _made_of_labels(
    window: Window, large: LargeTensor, filename: str, labels: SmoothedLabels
) -> Ints:
    """The table and its product in every step, but not the log-probabilities.

    If the reading statement computes them, and the logits perhaps, the product is the last of their
    size that it makes.
    """
    lives, sites = window.lives, window.owners.sites.frames
    size = int(lives.requested[large.row])
    narrow = (
        np.isin(lives.requested, [size, *(size * by for by in _NARROWER)]) | large.in_every_step
    )

    def of(statement: ast.stmt) -> Ints:
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        own = [
            row for row, one in enumerate(sites) if one.filename == filename and one.line in lines
        ]
        is_own = np.isin(window.site, own) & narrow & ~window.has_owner
        return np.flatnonzero(is_own & (window.phase != Phase.BACKWARD))

    read = of(labels.reading)
    if labels.computes_logarithms:
        read = read[np.argsort(-lives.alloc[read], kind="stable")]
        _, last = np.unique(window.made_in[read], return_index=True)
        read = read[last]
    return np.unique(np.concatenate([read, *map(of, labels.making)]))


def _made_for(
    window: Window,
    large: LargeTensor,
    place: Place,
    tables: Sequence[Encoding],
    reading: ast.stmt,
) -> Ints:
    """The table, its copy in a floating type and the product, in every step.

    Where the other factor is computed in the same statement the copies cannot be told from it:
    then only the table counts. ``place`` is that of the statement that has the ``tables``.
    """
    lives, made_at = window.lives, large.place
    table = lives.stack == lives.stack[large.row]
    table &= lives.requested == lives.requested[large.row]
    products = [
        node
        for node in ast.walk(reading)
        if isinstance(node, ast.BinOp)
        or called_name(node) in _MULTIPLYING
        or einsum_of(node) is not None
    ]
    own = set(map(id, (one.made for one in tables)))
    computes = any(
        called_name(call) not in _OF_PRODUCTS and id(call) not in own
        for product in products
        for call in ast.walk(product)
        if isinstance(call, ast.Call)
    )
    if made_at is None:
        return np.flatnonzero(table)
    is_entropy = not products
    if is_entropy and place.statement is reading:
        table = lives.stack == lives.stack[large.row]  # what the loss makes itself has others
    sizes = [int(lives.requested[large.row]) // by for by in _NARROWER]
    if any(one.makes_more for one in tables) and _makes_table_alone(made_at.statement):
        made = made_at_lines(window, made_at.program.filename, _lines([made_at.statement]))
        made &= (window.phase != Phase.BACKWARD) & ~window.has_owner
        made &= lives.requested >= lives.requested[large.row] // _LEAST_PART
        if not is_entropy or place.statement is not reading:
            sizes += np.unique(lives.requested[made]).tolist()
            table |= made
    if computes or (is_entropy and place.statement is reading):
        return np.flatnonzero(table)
    statements = [place.statement, *_copying_statements(place)]
    statements += [reading] if products else []  # a loss makes others of that size
    copies = made_at_lines(window, place.program.filename, _lines(statements))
    return np.flatnonzero(table | (copies & np.isin(lives.requested, sizes)))


def _lines(statements: Sequence[ast.stmt]) -> set[int]:
    return {
        line for one in statements for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)
    }


RULE = OneHot()
