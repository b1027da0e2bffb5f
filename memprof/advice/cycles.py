"""Rules for reference cycles: custom Functions, hooks, closures, reentrant checkpoints."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, Proposal, says
from memprof.rules.finding import Kind
from memprof.source_code.idioms import is_autograd_function, keyword
from memprof.source_code.patch import diff, replaced, with_keyword, wrapped
from memprof.source_code.program import FUNCTIONS, Place, bound_names, calls_in, loaded_names

__all__ = ["rules"]

_CYCLES = (LinkKind.CYCLE, LinkKind.CPP_CYCLE)
_NAMED = (LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE)


def rules(case: Case) -> Iterator[Proposal]:
    """``break_cycle``, ``save_for_backward``, ``remove_hook``; ``clone_view`` in a Function."""
    if not case.grows:
        return
    yield from _ctx_attribute(case)
    yield from _saved_view(case)
    yield from _hook(case)
    yield from _checkpoint(case)
    if case.found.kind is Kind.CYCLE or case.links & set(_CYCLES):
        yield from _any_cycle(case)


def _ctx_attribute(case: Case) -> Iterator[Proposal]:
    """``ctx.y = y`` in the forward of a custom Function."""
    if LinkKind.CTX_ATTRIBUTE not in case.links:
        return
    for place in [*case.places, *([case.site] if case.site else [])]:
        statement = place.statement
        targets = bound_names(statement)
        ctx = isinstance(targets[0], ast.Attribute) if targets else False
        if not (is_autograd_function(place) and ctx and isinstance(statement, ast.Assign)):
            continue
        yield Proposal(
            "save_for_backward",
            0.95,
            f"`{ast.unparse(targets[0])}` makes the graph node hold the tensor and the tensor the "
            "node; what `save_for_backward` keeps is not counted as a reference to the output.",
            place,
            patch=_saved_patch(place),
        )
        return


def _saved_patch(place: Place) -> str:
    """The attribute moves into ``save_for_backward``, and ``backward`` reads it from there.

    Only where the function saves by one plain call (or none) and backward unpacks all of it.
    """
    statement, forward, class_ = place.statement, place.function, place.class_
    if not isinstance(statement, ast.Assign) or forward is None or class_ is None:
        return ""
    target, value = statement.targets[0], statement.value
    saves = calls_in(forward, "save_for_backward")
    backward = next(
        (n for n in class_.body if isinstance(n, FUNCTIONS) and n.name == "backward"), None
    )
    if backward is None or not isinstance(target, ast.Attribute) or saves:
        return ""
    context = ast.unparse(target.value)
    name = backward.args.args[0].arg if backward.args.args else context
    uses = [
        n
        for n in ast.walk(backward)
        if isinstance(n, ast.Attribute) and n.attr == target.attr and ast.unparse(n.value) == name
    ]
    if not uses or calls_in(backward, "saved_tensors"):
        return ""
    saved = replaced(statement, f"{context}.save_for_backward({ast.unparse(value)})")
    return diff(place.program, saved, *(replaced(u, f"{name}.saved_tensors[0]") for u in uses))


def _saved_view(case: Case) -> Iterator[Proposal]:
    """A custom Function that saves a view of one of its outputs."""
    if LinkKind.CPP_CYCLE not in case.links and LinkKind.SAVED_TENSOR not in case.links:
        return
    places = [p for p in [*case.places, case.site] if p is not None and is_autograd_function(p)]
    for place in places:
        function = place.function
        for call in calls_in(function, "save_for_backward") if function is not None else ():
            views = [a for a in call.args if isinstance(a, (ast.Subscript, ast.Call))]
            where = place.program.place(call)
            if views and where is not None:
                yield Proposal(
                    "clone_view",
                    0.9,
                    f"`{ast.unparse(views[0])}` is a view of an output: its graph node saves a "
                    "tensor whose base has that node as its own `grad_fn`.",
                    where,
                    patch=diff(place.program, *(e for v in views for e in wrapped(v, ".clone()"))),
                )
                return


def _hook(case: Case) -> Iterator[Proposal]:
    if LinkKind.HOOK not in case.links:
        return
    place = _registration(case)
    if place is None:
        return
    for call in calls_in(place.statement):
        if not isinstance(call.func, ast.Attribute) or "hook" not in call.func.attr:
            continue
        own = ast.unparse(call.func.value)
        closed = _closed_over(place, call)
        if own in closed and case.links & set(_CYCLES):
            yield Proposal(
                "break_cycle",
                0.92,
                f"The hook of `{own}` uses `{own}` itself, and C++ owns the hook, where "
                "no collector looks: compute what it needs beforehand, detached.",
                place,
            )
        kept = isinstance(place.statement, (ast.Assign, ast.AnnAssign))
        why = "its handle is never used" if kept else "its handle is not kept"
        yield Proposal(
            "remove_hook",
            0.9 if case.links & set(_CYCLES) else 0.75,
            f"`{call.func.attr}` keeps the function and all it closes over for as long as `{own}` "
            f"lives, and {why}: keep the handle and call `remove()`.",
            place,
        )
        return


def _registration(case: Case) -> Place | None:
    """The statement that registers a hook: a link's own, a holder's, or one in the same scope."""
    places = [case.link_place(LinkKind.HOOK), *case.places]
    for place in places:
        if place is not None and _registers(place.statement):
            return place
    for place in [p for p in places if p is not None]:
        for call in calls_in(place.scope):
            where = place.program.place(call)
            if where is not None and _registers(where.statement):
                return where
    return None


def _registers(statement: ast.stmt) -> bool:
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith("register_")
        and "hook" in call.func.attr
        for call in calls_in(statement)
    )


def _closed_over(place: Place, call: ast.Call) -> set[str]:
    """Names that the hook function reads: a lambda's, or those of a function defined near by."""
    names: set[str] = set()
    for argument in call.args:
        if isinstance(argument, ast.Name):
            for function in place.program.functions(argument.id):
                names |= loaded_names(function)
        else:
            names |= loaded_names(argument)
    return names


def _checkpoint(case: Case) -> Iterator[Proposal]:
    """A reentrant checkpoint keeps its function on the node, and that what it closes over."""
    links = [link for holder in case.found.holders for link in holder.links]
    classes = [link.type_name for link in links]
    classes += [node for link in links for node, _ in link.nodes]
    if not any(name.startswith("CheckpointFunction") for name in classes):
        return
    near = [*case.places, *(place for _, place in case.frames)]
    for scope in {id(place.scope): place for place in near}.values():
        for call in calls_in(scope.scope, "checkpoint", "checkpoint_sequential"):
            value = keyword(call, "use_reentrant")
            if isinstance(value, ast.Constant) and value.value is False:
                continue
            yield Proposal(
                "break_cycle",
                0.93,
                "The reentrant checkpoint keeps its function on the output's graph node, and the "
                "function reaches what holds the output: `use_reentrant=False` keeps none.",
                scope.program.place(call),
                patch=diff(scope.program, with_keyword(call, "use_reentrant", "False")),
            )
            return


def _any_cycle(case: Case) -> Iterator[Proposal]:
    holder = case.found.holders[0] if case.found.holders else None
    place = _closure(case) or case.place_of(holder) or case.site
    text = says(holder) if holder is not None else "nothing but the collector frees it"
    certainty = 0.85 if case.links & {LinkKind.CLOSURE, LinkKind.BOUND_METHOD} else 0.6
    yield Proposal(
        "break_cycle",
        certainty,
        f"It is part of a reference cycle: {text}.",
        place,
    )
    if holder is not None and any(link.kind in _NAMED for link in holder.links):
        other = _other_link(case, holder, place) or place
        yield Proposal("weakref", 0.3, f"One link of the cycle can be weak: {text}.", other)


def _other_link(case: Case, holder: Holder, place: Place | None) -> Place | None:
    """The statement of another link of a cycle than the one at ``place``."""
    for link in holder.links:
        found = case.place_at(link.filename, link.line) if link.kind in _NAMED else None
        if found is not None and (place is None or found.line != place.line):
            return found
    return None


def _closure(case: Case) -> Place | None:
    """The statement that makes the closure: where the lambda or the inner function stands."""
    return case.link_place(LinkKind.CLOSURE, LinkKind.BOUND_METHOD) if not case.places else None
