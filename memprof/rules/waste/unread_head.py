"""unread-head: a model's head computes scores, and only the states before it are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import is_of_library
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, Program, assigned, calls_in
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.owners import common_module
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_STATES = frozenset(("decoder_hidden_states", "encoder_last_hidden_state", "hidden_states"))
"""Fields of what models of transformers with a head return that are made before it."""
_OF_TUPLE = "hidden_states"
_SCORES = frozenset(("logits", "prediction_logits", "seq_relationship_logits", "loss"))
"""And those that the head fills, by itself or for a loss."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadHead(Match):
    """The head, and the states that are read."""

    head: str = ""
    """The path of the module that computes the scores."""
    field: str = ""


class UnreadHeadRule(WasteRule[UnreadHead]):
    """`AutoModelForMaskedLM…(**batch, output_hidden_states=True).hidden_states[-1]`."""

    name = "unread-head"
    summary = "a model's head computes scores, and only the states before it are read"
    fixes = ("drop_outputs",)

    def matches(self, window: Window) -> Iterator[UnreadHead]:
        """The large tensor of the peak, if a library makes it in a head that nothing reads."""
        large = large_tensor(window)
        if large is None or large.place is None or not is_of_library(window.stack(large.row)):
            return
        field = _states_read(large.place)
        if not field or any(map(_names_scores, window.programs)):
            return
        head = _head(window, large.row)
        if not head:
            return
        names = window.owners.module.names
        inside = np.array([f"{name}.".startswith(f"{head}.") for name in names], dtype=bool)
        made = inside[window.module] & ~window.has_owner & (window.lives.alloc >= 0)
        rows = np.flatnonzero(made & window.at_peak)
        yield UnreadHead(
            row=large.row,
            rows=rows,
            nbytes=int(window.lives.size[rows].sum()),
            saving=window.replayed(window.whole(np.flatnonzero(made))),
            head=head,
            field=field,
        )

    def title(self, match: UnreadHead) -> str:
        """Say what makes them."""
        return f"are made by the head `{match.head}`, of which nothing is read"

    def advice(self, match: UnreadHead, case: Case) -> Iterator[Advice]:
        """Call the model without its head."""
        yield Advice(
            "drop_outputs",
            f"All that is read of the model's output is `{match.field}`, which is there before its "
            f"head makes {format_bytes(match.nbytes)} of scores: call the model without it, whose "
            "`last_hidden_state` is the last of them.",
            case.site,
            typed="states = model.base_model(**inputs).last_hidden_state",
        )


def _states_read(place: Place) -> str:
    """The one field of a call's result that its function reads, if states are; else empty.

    A tuple has the scores first, and last the states that a call has asked for.
    """
    if _reads_last(place):
        return _OF_TUPLE
    fields = {
        node.attr if isinstance(node, ast.Attribute) else str(_key(node))
        for node in _reads_of_result(place)
    }
    return fields.pop() if len(fields) == 1 and fields <= _STATES else ""


def _reads_last(place: Place) -> bool:
    """Whether a call asks for states, and only the last entry of the tuple that it returns is read.

    ``*_, states = model(ids, output_hidden_states=True)``.
    """
    calls = {id(call) for call in calls_in(place.statement) if _asks_for_states(call)}
    if not calls:
        return False
    statement = place.statement
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, (ast.Tuple, ast.List)) and id(getattr(statement, "value", 0)) in calls:
        names = [one.value if isinstance(one, ast.Starred) else one for one in target.elts]
        read = {
            node.id
            for node in ast.walk(place.scope)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        is_read = [isinstance(one, ast.Name) and one.id in read for one in names]
        return len(names) > 1 and is_read[-1] and not any(is_read[:-1])
    reads = [*_reads_of_result(place)]
    return bool(reads) and all(_index(node) == -1 for node in reads)


def _asks_for_states(call: ast.Call) -> bool:
    value = keyword(call, "output_hidden_states")
    return isinstance(value, ast.Constant) and value.value is True


def _index(node: ast.AST) -> object:
    """The number by which an entry is read; None for others."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    try:
        return ast.literal_eval(index) if index is not None else None
    except ValueError:
        return None


def _reads_of_result(place: Place) -> Iterator[ast.AST]:
    """What reads the result of a statement's call, or the name that this binds to it."""
    calls = {id(call) for call in calls_in(place.statement)}
    bound = {
        target.id
        for target, value in assigned(place.statement)
        if isinstance(target, ast.Name) and id(value) in calls
    }
    parents = {
        id(child): node for node in ast.walk(place.scope) for child in ast.iter_child_nodes(node)
    }
    if not bound:
        for call in calls_in(place.statement):
            parent = parents[id(call)]
            if isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is call:
                yield parent
        return
    for node in ast.walk(place.scope):
        if isinstance(node, ast.Name) and node.id in bound and isinstance(node.ctx, ast.Load):
            yield parents[id(node)]


def _key(node: ast.AST) -> object:
    index = node.slice if isinstance(node, ast.Subscript) else None
    return index.value if isinstance(index, ast.Constant) else None


def _names_scores(program: Program) -> bool:
    """Whether a program reads a field that a head fills."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _SCORES) or _key(node) in _SCORES
        for node in program.nodes
    )


def _head(window: Window, row: int) -> str:
    """The part of a model, right below it, that makes a tensor, if each pass ends in it.

    The model is what the line of the program calls: also a part of a module of the program's.
    """
    path = window.module_name(row)
    model = _called(window, row)
    if not path.startswith(f"{model}.") or not model:
        return ""
    part = path[len(model) + 1 :].partition(".")[0]
    head = f"{model}.{part}"
    labels = [label.module for label in window.trace.tables.labels]
    in_model = np.array([f"{name}.".startswith(f"{model}.") for name in labels], dtype=bool)
    in_head = np.array([f"{name}.".startswith(f"{head}.") for name in labels], dtype=bool)
    ends: Ints = np.array([last for _, last, _ in runs_within(window, in_model)], dtype=np.int64)
    of_ends = in_head[window.trace.events.label[ends]] if len(ends) else np.zeros(0, dtype=bool)
    return head if len(of_ends) and bool(of_ends.all()) else ""


def _called(window: Window, row: int) -> str:
    """The module around all that is made in passes below the line of the program that made a row.

    Empty where there is no such line.
    """
    frames = window.user_frames(window.stack(row))
    if not frames:
        return ""
    stacks = [
        at for at in range(len(window.trace.tables.stacks)) if frames[0] in window.trace.stack(at)
    ]
    below = np.isin(window.lives.stack, stacks) & (window.phase == Phase.FORWARD)
    labels = window.trace.tables.labels
    paths = {labels[at].module for at in np.unique(window.lives.label[below]).tolist()} - {""}
    return common_module(sorted(paths))


RULE = UnreadHeadRule()
