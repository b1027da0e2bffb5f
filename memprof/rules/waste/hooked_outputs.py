"""hooked-outputs: forward hooks keep what modules return, and little of it is read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import kept_beyond_pass
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.hooked_outputs import HookedOutputs, hooked_outputs
from memprof.trace import Action
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_LEAST_RESULT = 64 << 10
"""Bytes of what the next operator makes of an output: what is smaller are numbers about it."""
_LEAST_HOOKS = 4
"""On one module, that copy the same result: two or three may be for something else each."""
_MOST_NAMED = 6
"""Entries that are named in a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptByHooks(Match):
    """The hook, and which entries are read."""

    hook: HookedOutputs | None = None
    names: tuple[str, ...] = ()
    """Modules whose outputs are read, by their paths within the model."""
    are_copies: bool = False
    """The hook's statement makes them."""
    times: int = 1
    """Copies of one result, one right after the other: of so many hooks on one module."""


class HookedOutputsRule(WasteRule[KeptByHooks]):
    """`module.register_forward_hook(save)` on every module, and two of the outputs are read."""

    name = "hooked-outputs"
    summary = "forward hooks keep what modules return, and little of it is read"
    fixes = ("remove_hook", "drop_outputs", "reduce_predictions")

    def matches(self, window: Window) -> Iterator[KeptByHooks]:
        """Copies that a hook makes and that are reduced later; or outputs that no key names."""
        if window.peak.event < 0:
            return
        hooks = list(hooked_outputs(window.programs))
        containers = {one.container for one in hooks}
        on_every_module = {one.container for one in hooks if one.is_on_every_module}
        for hook in hooks:
            match = None
            if hook.reduction is not None:
                lines, filename = hook.filling.lines, hook.filling.program.filename
                copied = made_at_lines(window, filename, lines) & ~window.has_owner
                match = _copied(window, np.flatnonzero(copied), hook)
                if match is None and containers == {hook.container}:  # no other keeps any
                    match = _waiting(window, hook)
            elif {hook.container} == on_every_module:
                if hook.is_read_by_keys:
                    match = _unread(window, hook)
                elif hook.indices is not None:
                    match = _unread_of_list(window, hook, len(hook.indices))
            if match is not None:
                yield match
                return

    def title(self, match: KeptByHooks) -> str:
        """Say what is read of them."""
        hook = match.hook
        assert hook is not None
        if match.times > 1:
            return f"are copies of what modules return, by {match.times} hooks on each"
        if hook.reduction is not None:
            read = f"{_texts(hook)} {_verb(hook)} read"
            of = "copies of " if match.are_copies else ""
            return f"are {of}what modules return, of which only {read}"
        return f"are what modules return, kept in `{hook.container}` by a hook on each"

    def advice(self, match: KeptByHooks, case: Case) -> Iterator[Advice]:
        """Compute what is read in the hook; or register it where it is read."""
        hook, nbytes = match.hook, format_bytes(match.nbytes)
        assert hook is not None
        if match.times > 1:
            at = case.place_at(hook.registration.program.filename, hook.registration.line)
            why = (
                f"{match.times} hooks are on a module at the peak, and each keeps a copy of what "
                "it returns: every call registers more of them. Keep the handle, and call its "
                "`remove()` when the result is there; or register once."
            )
            yield Advice("remove_hook", why, at or case.site)
            return
        if hook.reduction is not None:
            at = case.place_at(hook.filling.program.filename, hook.filling.line)
            why = (
                f"`{hook.container}` keeps {nbytes} of what modules return until {_texts(hook)} "
                f"{_verb(hook)} computed: compute that in the hook, and keep the numbers."
            )
            yield Advice("reduce_predictions", why, at or case.site)
            return
        at = case.place_at(hook.registration.program.filename, hook.registration.line)
        indices = [f"{hook.container}[{one}]" for one in sorted(hook.indices or ())]
        named = ", ".join(f"`{one}`" for one in (match.names or indices)[:_MOST_NAMED])
        why = (
            f"The hook is registered on every module, and {nbytes} of what these return stay in "
            f"`{hook.container}` that nothing asks for: register it on the modules that are read "
            f"({named}) alone."
        )
        yield Advice("drop_outputs", why, at or case.site)


def _texts(hook: HookedOutputs) -> str:
    assert hook.reduction is not None
    return ", ".join(f"`{text}`" for text in hook.reduction.texts[:_MOST_NAMED])


def _verb(hook: HookedOutputs) -> str:
    assert hook.reduction is not None
    return "is" if len(hook.reduction.texts) == 1 else "are"


def _match(
    window: Window, rows: Ints, hook: HookedOutputs, names: tuple[str, ...] = ()
) -> KeptByHooks | None:
    there = rows[window.at_peak[rows]]
    nbytes = int(window.lives.size[there].sum())
    if not len(there) or window.share(nbytes) < _LEAST_SHARE:
        return None
    return KeptByHooks(
        row=int(there[window.lives.size[there].argmax()]),
        rows=there,
        nbytes=nbytes,
        saving=window.replayed(window.whole(rows)),
        hook=hook,
        names=names,
        are_copies=hook.reduction is not None,
    )


def _copied(window: Window, rows: Ints, hook: HookedOutputs) -> KeptByHooks | None:
    """The copies that a hook makes; of several hooks on one module all but one copy of each."""
    match = _match(window, rows, hook)
    if match is None:
        return None
    there = match.rows[np.argsort(window.lives.alloc[match.rows], kind="stable")]
    made = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    place = np.searchsorted(made, window.lives.alloc[there])
    module = window.module[there]
    is_next = (np.diff(place) == 1) & (np.diff(module) == 0)
    groups = np.cumsum(np.concatenate([[True], ~is_next]))
    times = int(np.bincount(groups).max())
    if times < _LEAST_HOOKS:
        return match
    one_each = int(sum(window.lives.size[there[module == one]].max() for one in np.unique(module)))
    saving = window.replayed(window.whole(rows)).keeping(one_each)
    return replace(match, times=times, saving=saving)


def _waiting(window: Window, hook: HookedOutputs) -> KeptByHooks | None:
    """Outputs of modules without a graph that stay after their pass, until they are reduced.

    Else each would go when the next one has been made of it.
    """
    rows = np.flatnonzero(kept_beyond_pass(window, to_its_end=True))
    match = _match(window, rows, hook)
    if match is None:
        return None
    large = np.unique(window.lives.alloc[window.lives.requested >= _LEAST_RESULT])
    made = window.lives.alloc[rows]
    next_made = np.append(large, window.events)[np.searchsorted(large, made, side="right")]
    ends = np.minimum(next_made + 1, window.lives.free[rows])
    saving = window.replayed(window.ended_at(rows, ends))
    if window.share(saving.bytes) < _LEAST_SHARE:
        return None
    return replace(match, saving=saving, are_copies=False)


def _unread(window: Window, hook: HookedOutputs) -> KeptByHooks | None:
    """Outputs of modules without a graph that stay after their pass, but for those that are named.

    The keys are paths of modules that the program writes out somewhere. The last that is made in
    such a module is what it returns.
    """
    rows = np.flatnonzero(kept_beyond_pass(window, to_its_end=True))
    paths = {at: window.owners.module.names[at] for at in np.unique(window.module[rows]).tolist()}
    texts = {
        node.value
        for program in window.programs
        for node in program.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names, within = _modules_read(list(paths.values()), texts)
    if not names:
        return None
    read = np.zeros(len(rows), dtype=bool)
    for name in names:
        inside = [at for at, path in zip(paths, within, strict=True) if _is_in(path, name)]
        own = np.flatnonzero(np.isin(window.module[rows], inside))
        steps = window.made_in[rows[own]]
        read[own[np.append(steps[1:] != steps[:-1], [True])[: len(own)]]] = True
    return _match(window, rows[~read], hook, names)


def _modules_read(
    paths: Sequence[str], texts: AbstractSet[str]
) -> tuple[tuple[str, ...], list[str]]:
    """The texts that are the paths of some modules, and all paths within the model of these.

    The model is what was called, or a part of it that all of them are in: ``self.model``.
    """
    parts = [path.split(".") for path in paths]
    for depth in range(1, min(map(len, parts), default=0) + 1):
        if len({tuple(one[:depth]) for one in parts}) > 1:
            break
        within = [".".join(one[depth:]) for one in parts]
        names = sorted(name for name in texts if name and any(_is_in(one, name) for one in within))
        if any(not _is_in(one, name) for one in within for name in names):
            return tuple(names), within
    return (), []


def _unread_of_list(window: Window, hook: HookedOutputs, count: int) -> KeptByHooks | None:
    """The same of a list of which a few are read, by their places: all but that many per step.

    Which these are is not known: the largest do not count.
    """
    rows = np.flatnonzero(kept_beyond_pass(window, to_its_end=True))
    unread = np.zeros(len(rows), dtype=bool)
    for step in np.unique(window.made_in[rows]).tolist():
        own = np.flatnonzero(window.made_in[rows] == step)
        unread[own[np.argsort(window.lives.size[rows[own]], kind="stable")][:-count]] = True
    return _match(window, rows[unread], hook)


def _is_in(path: str, name: str) -> bool:
    """Whether a module is the one of that path, or a part of it."""
    return f"{path}.".startswith(f"{name}.")


RULE = HookedOutputsRule()
