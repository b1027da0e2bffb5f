"""lingering: values live on after their last use: until replaced, or through another pass."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, says
from memprof.rules.references import advice_on_exceptions, advice_on_views
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.exception_handlers import exception_store
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import alias_of, read_by_itself
from memprof.source_code.lasting_names import Binding, binding_of, handed_on
from memprof.source_code.patch import before, diff
from memprof.source_code.program import Place, bound_names, calls_in, place_of
from memprof.source_code.scopes import qualified_name
from memprof.trace import Action, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "is_stored"]

_LEAST_SHARE_OF_STEPS = 0.4
"""Of what one stack makes: some of its tensors are made once, or go at the end of an epoch."""
_LEAST_TIMES = 2
"""Once is no habit."""
_LEAST_GAIN = 1.5
"""Times the bytes that dropping the old value before the new one saves: only then is dropping it
at the step's end advised, for something may read it until then."""
_MOST_STACKS = 200
"""Stacks of the largest tensors in which a binding is looked for."""
_INHERENT = (Category.GRADIENT,)
"""What autograd replaces by itself."""
_INIT = "__init__"
_OF_PIPELINES = ("diffusers.", "transformers.")
_CHANGING = (
    *("bfloat16", "float", "fuse_lora", "half", "load_lora_weights", "load_state_dict"),
    *("load_textual_inversion", "to", "unload_lora_weights"),
)
_EXCEPTIONS = frozenset({LinkKind.TRACEBACK, LinkKind.EXCEPTION})


@dataclass(frozen=True, slots=True, eq=False)
class Lingering(Match):
    """Values of an earlier round, and the name that they are bound to."""

    binding: Binding | None = None
    """The statement that binds them; None where the source is not here, or binds no name."""
    raises: bool = False
    """They were made in a ``try`` whose handler stores the exception: its frames hold them."""
    of_model: bool = False
    """Most of them are part of a model or an optimizer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Replacements:
    """Lifetimes that ended only after the same line had made their replacement."""

    rows: Ints
    next_alloc: Ints


class LingeringValues(WasteRule[Lingering]):
    """`x = build()` in a loop: the old value goes only when the new one is complete."""

    name = "lingering"
    summary = "old values live on until their replacement is there"
    fixes = ("evaluate_itself", "del_ref", "clear_traceback", "clone_view", "cpu_offload")
    yields_to = (
        *("retained-graph", "deep-copies"),
        *("unvisited-graph", "old-graphs", "logged-graph", "shuffled-copy", "resting-model"),
    )
    names_holders = True

    def matches(self, window: Window) -> Iterator[Lingering]:
        """Values that live on in a name until the name is bound again."""
        replacements = _replacements(window)
        if len(replacements.rows):
            matches = [*_through_other_pass(window, replacements)]
            matches.append(_by_rebinding(window, replacements))
            yield from (one for one in matches if not is_stored(window, one))

    def title(self, match: Lingering) -> str:
        """Say in what, where a name is known."""
        name = f" in `{match.binding.target}`" if match.binding is not None else ""
        return f"live on{name} until their replacement is there"

    def advice(self, match: Lingering, case: Case) -> Iterator[Advice]:
        """Drop the old value first; but where an exception holds it, that is to go."""
        yield from advice_on_exceptions(case, raises=match.raises)
        yield from advice_on_views(case)
        if match.raises or case.links & _EXCEPTIONS:
            return
        target = match.binding.target if match.binding is not None else ""
        binding = _statement(match.binding, case)
        # A variable is let go of where it is bound; what has an object, where that is filled.
        variable = binding if target.isidentifier() else None
        filled = next((one for one in case.places if not _is_in_init(one)), None)
        place = variable or filled or binding or case.site
        nbytes = format_bytes(match.nbytes)
        what = f"`{target}`" if target else says(next(iter(case.finding.holders), None))
        alias = alias_of(binding, target) if binding is not None and target else None
        if alias is not None:
            name = ast.unparse(bound_names(alias.statement)[0])
            yield Advice(
                "del_ref",
                f"`{name}` holds the old {what} until the function returns, {nbytes} at the peak: "
                f"`del {name}` after its last use.",
                alias,
            )
        copied = _copied_for_pipeline(binding, target) if binding is not None else ""
        if copied:
            yield Advice(
                "evaluate_itself",
                f"A pipeline only reads the model that it is given: hand it `{copied}` itself, in "
                f"`eval()` while it runs, and no copy ({nbytes} at a time).",
                binding,
                typed=f"{copied}.eval()",
            )
        yield Advice(
            "del_ref",
            f"{what} keeps {nbytes} of the last round until the next is there: set it to None "
            "first.",
            place,
            patch=_drop_text(match, case) if place is binding else "",
        )
        if match.of_model:
            later = f"If {what} is needed later, keep it on the host."
            yield Advice("cpu_offload", later, place)


def _copied_for_pipeline(place: Place, target: str) -> str:
    """The model of which a pipeline of a library is given a copy; empty where none is.

    ``DDPMPipeline(unet=copy.deepcopy(unet).eval(), scheduler=scheduler)``. Nor where the copy, or
    the pipeline, is moved, converted or loaded into: that is to change the copy alone.
    """
    changing = calls_in(place.program.tree, *_CHANGING)
    own = {id(call) for call in calls_in(place.statement)}
    receivers = (one.func.value for one in changing if isinstance(one.func, ast.Attribute))
    if any(id(one) in own for one in changing) or any(ast.unparse(r) == target for r in receivers):
        return ""
    for call in calls_in(place.statement):
        name = qualified_name(place, call.func)
        if not (name.startswith(_OF_PIPELINES) and name.endswith("Pipeline")):
            continue
        for copy in calls_in(call, "deepcopy"):
            if copy.args and isinstance(copy.args[0], (ast.Attribute, ast.Name)):
                return ast.unparse(copy.args[0])
    return ""


def is_stored(window: Window, match: Lingering) -> bool:
    """Whether the job's search has found them in containers of other names alone.

    The variable goes and they stay: a store of sessions has them, say.
    """
    stack = int(window.lives.stack[match.row])
    holders = [one for search in window.searches if search.stack == stack for one in search.holders]
    if match.binding is None or not holders:
        return False
    own = set(match.binding.target.partition("[")[0].split("."))
    return all(_is_in_other_container(holder, own) for holder in holders)


def _is_in_other_container(holder: Holder, own: Collection[str]) -> bool:
    kinds = {link.kind for link in holder.links}
    names = {part for link in holder.links for part in link.name.split(".")}
    return LinkKind.ITEM in kinds and not (kinds & _EXCEPTIONS or names.intersection(own))


def _statement(binding: Binding | None, case: Case) -> Place | None:
    """The statement of a binding; None where its file is not what ran."""
    if binding is None:
        return None
    return case.place_at(binding.place.program.filename, binding.place.line)


def _drop_text(match: Lingering, case: Case) -> str:
    """``self.model = None`` above ``self.model = build()``, where that very line builds it."""
    place = _statement(match.binding, case)
    if place is None or not isinstance(place.statement, ast.Assign):
        return ""
    builds = any(other.statement is place.statement for _, other in case.frames)
    if not builds or match.binding is None or match.binding.needs_old:
        return ""
    targets = bound_names(place.statement)
    if not targets or not all(isinstance(target, ast.Attribute) for target in targets):
        return ""
    text = " = ".join(ast.unparse(target) for target in targets) + " = None"
    return diff(place.program, before(place.program, place.line, text))


def _successors(window: Window) -> tuple[Ints, Ints]:
    """Rows made in steps, and the row that the same stack made in its next step; -1 for none.

    Where a stack makes several in a step, the n-th one is followed by the n-th one.
    """
    lives = window.lives
    rows = np.flatnonzero((lives.alloc >= 0) & (window.made_in >= 0))
    if not len(rows):
        return rows, rows
    stack, step = lives.stack[rows].astype(np.int64), window.made_in[rows]
    order = np.lexsort((lives.alloc[rows], step, stack))
    rows, stack, step = rows[order], stack[order], step[order]
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (stack[1:] != stack[:-1]) | (step[1:] != step[:-1])
    start = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
    number = np.arange(len(rows)) - start
    by_number = np.lexsort((step, number, stack))
    following = np.full(len(rows), -1, dtype=np.int64)
    a, b = by_number[:-1], by_number[1:]
    same = (stack[a] == stack[b]) & (number[a] == number[b])
    following[a[same]] = rows[b[same]]
    return rows, following


def _replacements(window: Window) -> _Replacements:
    """What was freed in the step that made its successor, and after that; in most such steps."""
    rows, following = _successors(window)
    rows, following = rows[following >= 0], following[following >= 0]
    lives = window.lives
    next_alloc = lives.alloc[following]
    same_step = window.freed_in[rows] == window.made_in[following]
    at_boundary = lives.free[rows] < _next_made(window, window.made_in[following])
    # Where a step is one forward pass, its result is bound to a name when the step is over.
    late = same_step | (at_boundary & (window.phase[rows] == Phase.FORWARD))
    late &= lives.free[rows] > next_alloc
    late &= ~np.isin(window.category[rows], _INHERENT)
    late &= _usually(lives.stack[rows], late)
    return _Replacements(rows[late], next_alloc[late])


def _next_made(window: Window, steps: Ints) -> Ints:
    """The event that makes the first tensor after each of these steps."""
    made = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    over = np.searchsorted(window.step_of_event, steps, side="right")
    following: Ints = np.append(made, window.events)[np.searchsorted(made, over)]
    return following


def _usually(stack: Ints, late: Bools) -> Bools:
    """Whether it happens to most of what the same stack makes, and more than once."""
    times = np.bincount(stack, weights=late)
    of = np.bincount(stack)
    usual: Bools = ((times >= _LEAST_TIMES) & (times >= _LEAST_SHARE_OF_STEPS * of))[stack]
    return usual


def _by_rebinding(window: Window, replacements: _Replacements) -> Lingering:
    """Ended when the replacement began to exist, and if nothing reads it, at the step's end."""
    rows = replacements.rows
    # Both are there for a moment even in ``x = f(x)``: that much is needed.
    over = replacements.next_alloc + 1
    saving, tentative = window.replayed(window.ended_at(rows, over)), False
    useless = rows[(over <= window.peak.event) & (window.lives.free[rows] > window.peak.event)]
    anchor = window.main_site(_mask(window, useless if len(useless) else rows))
    binding = _binding(window, useless if len(useless) else rows, anchor)
    if binding is not None:
        ours = _bound_by(window, rows, binding)
        if not ours.all():
            return _by_rebinding(window, _Replacements(rows[ours], replacements.next_alloc[ours]))
    starts = [window.first_event.get(int(step) + 1, -1) for step in window.made_in[rows]]
    if min(starts) >= 0 and not (binding is not None and binding.needs_old):
        at_end = window.replayed(window.ended_at(rows, np.array(starts, dtype=np.int64) - 1))
        if at_end.bytes > _LEAST_GAIN * saving.bytes:
            saving, tentative = at_end, binding is None
    # Of several that a statement binds, what it is given again is needed until then.
    tentative |= binding is not None and any(read_by_itself(binding.place))
    return _match(window, rows, anchor, saving, binding, tentative=tentative)


def _bound_by(window: Window, rows: Ints, binding: Binding) -> Bools:
    """Which rows that binding keeps, or none that is known: not what another name does."""
    stacks, of_row = np.unique(window.lives.stack[rows], return_inverse=True)
    others = [_rebinding(window.trace.stack(int(stack))) for stack in stacks]
    ours = [
        one is None or (one.target, one.place.line) == (binding.target, binding.place.line)
        for one in others
    ]
    bound: Bools = np.array(ours, dtype=bool)[of_row]
    return bound


def _binding(window: Window, rows: Ints, anchor: int) -> Binding | None:
    """The binding of the largest tensors; of the first stack that has one."""
    order = rows[np.argsort(-window.lives.size[rows], kind="stable")]
    stacks = [window.lives.stack[anchor], *window.lives.stack[order[:_MOST_STACKS]]]
    for stack in dict.fromkeys(int(s) for s in stacks):
        binding = _rebinding(window.trace.stack(stack))
        if binding is not None:
            return binding
    return None


def _rebinding(stack: Sequence[Frame]) -> Binding | None:
    """The binding that is made anew with each round.

    What an ``__init__`` binds is an attribute of a new object each time: the object's name it is.
    Not where the rounds are those of a loop that it runs.
    """
    cut = 0
    for depth in (depth for depth, frame in enumerate(stack) if _is_init(frame)):
        inside = binding_of(stack[cut:depth])
        if inside is not None and inside.place.loop is not None:
            break
        cut = depth + 1
    return binding_of(stack[cut:])


def _is_in_init(place: Place) -> bool:
    return place.function is not None and place.function.name == _INIT


def _is_init(frame: Frame) -> bool:
    own = frame.name.rpartition(".")[2] == _INIT
    return own and frame_kind(frame.filename) is FrameKind.USER


def _match(
    window: Window,
    rows: Ints,
    anchor: int,
    saving: Saving,
    binding: Binding | None,
    *,
    tentative: bool = False,
) -> Lingering:
    at_peak = rows[window.at_peak[rows]]
    frames = window.user_frames(window.stack(anchor))
    return Lingering(
        row=anchor,
        rows=rows,
        nbytes=window.bytes_of(_mask(window, at_peak)) or saving.bytes,
        saving=saving,
        tentative=tentative,
        binding=binding,
        raises=any(exception_store(frame) is not None for frame in frames),
        of_model=bool(window.has_owner[rows].sum() * 2 > len(rows)),
    )


def _mask(window: Window, rows: Ints) -> Bools:
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    return mask


def _through_other_pass(window: Window, replacements: _Replacements) -> Iterator[Lingering]:
    """What is there at the peak, in a call made later from a function that no longer reads it."""
    rows = replacements.rows[window.at_peak[replacements.rows]]
    rows = rows[window.freed_in[rows] > window.step_of_event[max(window.peak.event, 0)]]
    rows = rows[~_backward_between(window, rows, window.peak.event)]
    stack = window.stack_at_peak
    bindings = {row: _unread_later(window.stack(row), stack) for row in rows.tolist()}
    last_bindings = {row: binding for row, binding in bindings.items() if binding is not None}
    if not last_bindings:
        return
    kept_rows = np.array([*last_bindings], dtype=np.int64)
    ends = np.full(len(kept_rows), window.peak.event - 1)
    saving = _until_peak_passes(window, kept_rows, ends)
    anchor = window.main_site(_mask(window, kept_rows))
    yield _match(window, kept_rows, anchor, saving, next(iter(last_bindings.values())))


def _until_peak_passes(window: Window, rows: Ints, removal_events: Ints) -> Saving:
    """The peak without them, and without their like in the other steps."""
    stacks = np.unique(window.lives.stack[rows])
    alike = np.flatnonzero(np.isin(window.lives.stack, stacks) & (window.made_in >= 0))
    offset = removal_events[0] - int(window.lives.alloc[rows].max())
    steps, which = np.unique(window.made_in[alike], return_inverse=True)
    last = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(last, which.reshape(-1), window.lives.alloc[alike])
    ends = last[which.reshape(-1)] + offset
    return window.replayed(window.ended_at(alike, ends))


def _backward_between(window: Window, rows: Ints, event: int) -> Bools:
    """Whether a backward pass ran after the rows were made and goes on beyond ``event``."""
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    after = np.searchsorted(backward, event)
    before_free = np.searchsorted(backward, window.lives.free[rows])
    same_step = np.zeros(len(rows), dtype=bool)
    for at, row in enumerate(rows.tolist()):
        later = backward[after : before_free[at]]
        steps = window.step_of_event[later]
        same_step[at] = bool((steps == window.made_in[row]).any())
    return same_step


def _unread_later(stack_then: Sequence[Frame], now: Sequence[Frame]) -> Binding | None:
    """The line that keeps it, where both stacks share a function that reads its name no more."""
    for depth, frame in enumerate(stack_then):
        other = next((f for f in now if (f.filename, f.name) == (frame.filename, frame.name)), None)
        place = place_of(frame)
        if other is None or place is None or other.line <= frame.line:
            continue
        for target in bound_names(place.statement):
            if isinstance(target, ast.Name) and not _read_from(place.scope, target.id, other.line):
                binding_place = handed_on(place, target.id) or place
                names = bound_names(binding_place.statement)
                name = ast.unparse(names[0]) if names else target.id
                return Binding(binding_place, name, depth, needs_old=False)
        return None
    return None


def _read_from(scope: ast.AST, name: str, line: int) -> bool:
    """Whether a name is read at a line or below it in a function."""
    return any(
        isinstance(n, ast.Name)
        and n.id == name
        and n.lineno >= line
        and isinstance(n.ctx, ast.Load)
        for n in ast.walk(scope)
    )


RULE = LingeringValues()
