"""unused-gradients: gradients that no optimizer reads and nothing clears."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.needless_graphs import (
    OwnGraph,
    graph_for_nothing,
    in_words,
    untrained_around,
    without_graph,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.asked_gradients import data_asked_for_gradients
from memprof.source_code.gradients_by_hand import reads_gradients, sets_gradient_none
from memprof.source_code.idioms import keyword, optimizers_made
from memprof.source_code.patch import diff, within
from memprof.source_code.program import Place, Program, called_name, calls_in, place_of
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import is_object, takes_no_gradient, trains_besides
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.owners import NO_MODULE, common_module
from memprof.views.window import Bools, Window

__all__ = ["RULE", "UnreadGradients"]

_FEWEST_LEFT = 8
"""Steps for which gradients are left alone: a critic may be trained in every fifth step."""
_WITHOUT_STATES = "SGD"
"""Unless it has a momentum."""
_ONE_FOR_ALL = "LBFGS"
_MODULE_CALL = "_wrapped_call_impl"
"""How torch names the function that calls a module, once for each call."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadGradients(Match):
    """Gradients, and whose they are."""

    modules: str = ""
    """The modules, as a person would name them."""
    within_model: bool = False
    """They belong to a part of the model that is trained, not to another model beside it."""
    graph: int = 0
    """Bytes at the peak of activations that are kept for these gradients alone: nothing that is
    trained runs before them."""
    called_at: Frame | None = None
    """The user's line from which they, and nothing that is trained, were called."""
    is_within: bool = False
    """That line is of their own forward pass, in a model that is trained in other parts."""
    call: str = ""
    """The one call of that line, where it makes others that need their graph."""
    asked: tuple[Place, str] | None = None
    """Where the program asks for gradients of data, and the name of that; None: of a model's."""
    made_at: Place | None = None
    """The statement that makes their parameters, in modules that have others which are trained."""
    path: str = ""
    """Of the module that they all are or lie below; empty for none."""


class UnusedGradients(WasteRule[UnreadGradients]):
    """A teacher, a critic or a part that is not trained gets gradients all the same."""

    name = "unused-gradients"
    summary = "no optimizer uses or clears these gradients"
    fixes = ("freeze_params", "detach", "no_grad")
    yields_to = ("frozen-by-attribute",)

    def matches(self, window: Window) -> Iterator[UnreadGradients]:
        """Gradients that stay, of modules without optimizer state whose gradients never go."""
        if len(window.steps) < FEWEST_STEPS:
            return
        gradient = window.category == Category.GRADIENT
        gradient &= window.phase == Phase.BACKWARD  # else a buffer that gradients are views of
        state = set(window.module[window.category == Category.OPTIMIZER_STATE].tolist())
        staying = gradient & window.stays
        if not any(map(sets_gradient_none, window.programs)):  # whose go now and then by that
            staying |= _outlast_steps(window, gradient, state)
        beside = _beside_trained(window, gradient, staying, state)
        if beside is not None:
            yield beside
        cleared = set(window.module[gradient & ~staying].tolist())
        training_modules = state if _has_states(window.programs) else cleared | state
        if training_modules is state:  # what is without was cleared by a look at the whole model
            staying = gradient
        # Gradients that are filled with zeros stay as well: then only state tells what is trained.
        zeroed = any(_zeroes_gradients(program) for program in window.programs)
        if not (state if zeroed else training_modules):
            return  # nothing shows what an optimizer does here: all of them may be in use
        modules = {
            int(m) for m in np.unique(window.module[staying]) if int(m) not in training_modules
        }
        of_modules = np.isin(window.module, list(modules))
        mask = staying & of_modules
        if not mask.any():
            return
        paths = window.owners.module.names
        names = sorted(paths[m] for m in modules)
        backward = (window.phase == Phase.BACKWARD) & of_modules
        asked = data_asked_for_gradients(window.programs) if names == [NO_MODULE] else None
        own_graph = graph_for_nothing(window, modules, training_modules)
        graph = own_graph.rows
        at_peak = mask & window.at_peak
        at_peak[graph] = window.at_peak[graph]
        if not at_peak.any() and asked is None and names == [NO_MODULE]:
            return  # what a backward pass made on its way, and the next one goes through
        yield UnreadGradients(
            row=_forward_site(window, modules, training_modules, window.largest(mask)),
            rows=np.concatenate([np.flatnonzero(mask), graph]),
            nbytes=window.bytes_of(at_peak),
            saving=window.replayed(without_graph(window, np.flatnonzero(mask | backward), graph)),
            modules=_in_words(names, [paths[m] for m in training_modules if m]),
            within_model=bool(_roots(names) & _roots([paths[m] for m in training_modules if m])),
            graph=int(window.lives.size[graph[window.at_peak[graph]]].sum()),
            called_at=own_graph.called_at,
            is_within=_runs_within(window, own_graph, [paths[m] for m in training_modules if m]),
            call=own_graph.call,
            asked=asked,
            path=common_module(names),
        )

    def title(self, match: UnreadGradients) -> str:
        """Say whose they are."""
        if match.made_at is not None:
            return (
                f"are gradients of parameters of {match.modules} that its optimizer does not have"
            )
        if match.asked is not None:
            return f"are gradients of data, of what is handed in as `{match.asked[1]}`"
        if match.graph:
            return f"are the graph and gradients of {match.modules}, which no optimizer here trains"
        return f"are gradients of {match.modules} that no optimizer here uses or clears"

    def advice(self, match: UnreadGradients, case: Case) -> Iterator[Advice]:
        """Give the parameters none; where a patch is safe, compute the other output without."""
        if match.made_at is not None:
            why = (
                "The optimizer has other parameters of these modules, and nothing reads or clears "
                f"these gradients, {format_bytes(match.nbytes)}: `requires_grad_(False)` for the "
                "parameters that are made here."
            )
            yield Advice(
                "freeze_params", why, match.made_at, typed="parameter.requires_grad_(False)"
            )
            return
        if match.asked is not None:
            place, name = match.asked
            own = f"{name} = {name}.detach().requires_grad_()"
            why = (
                f"`{name}` is a tensor that somebody else keeps, as a data set does, and each "
                "backward pass leaves it a gradient: take one of the same values that goes with "
                f"the step, `{own}`, or give `backward` its `inputs=`."
            )
            yield Advice("detach", why, place, typed=own)
            return
        why = f"backward runs through {match.modules}, whose gradients no optimizer reads"
        site = case.site if match.within_model else _called_from(case) or case.site
        if match.called_at is not None:
            site = case.place_at(match.called_at.filename, match.called_at.line) or site
        patch = "" if match.within_model or site is None else _without_gradients(case, site)
        frozen = Advice(
            "freeze_params",
            f"If these are not trained, `requires_grad_(False)`: {why}.",
            (_where_chosen(match, case) if match.within_model else None) or site,
        )
        kept = format_bytes(match.graph)
        graph_note = f"; {kept} of its activations are kept for that" if match.graph else ""
        if patch:  # to cut its result off would leave the graph there until then
            yield Advice("no_grad", f"{_first_upper(why)}{graph_note}.", site, patch=patch)
            yield frozen
            return
        if match.graph:
            if match.call:
                yield frozen
                one = f"Or compute `{match.call}` alone under `torch.no_grad()`{graph_note}."
                yield Advice("no_grad", one, site)
                return
            ungraded = Advice("no_grad", f"{_first_upper(why)}{graph_note}.", site)
            is_outside = match.called_at is not None and not match.is_within
            yield from (ungraded, frozen) if is_outside else (frozen, ungraded)
            return
        yield frozen
        condition = "If nothing before it takes a gradient,"
        yield Advice("detach", f"{condition} cut it off here: {why}.", site)
        yield Advice("no_grad", f"{condition} compute it under `torch.no_grad()`: {why}.", site)


def _beside_trained(
    window: Window, gradient: Bools, staying: Bools, state: Collection[int]
) -> UnreadGradients | None:
    """Gradients that stay, of parameters beside others of the same module that are trained.

    Those have states as large as their gradients, which are cleared: low-rank factors beside the
    weights that they were added to. An optimizer that has states for one has them for all it has.
    """
    lives = window.lives
    is_state = window.category == Category.OPTIMIZER_STATE
    with_state = set(
        zip(window.module[is_state].tolist(), lives.requested[is_state].tolist(), strict=True)
    )
    cleared = np.unique(window.module[gradient & ~staying])
    trained = [
        module
        for module in set(cleared.tolist()) & set(state)
        if any(
            (module, int(size)) in with_state
            for size in lives.requested[gradient & ~staying & (window.module == module)]
        )
    ]
    rows = np.flatnonzero(staying & np.isin(window.module, trained))
    keys = zip(window.module[rows].tolist(), lives.requested[rows].tolist(), strict=True)
    rows = rows[np.array([key not in with_state for key in keys], dtype=bool)]
    if not len(rows):
        return None
    names = window.owners.module.names
    modules = np.unique(window.module[rows])
    of_parameters = (window.category == Category.PARAMETER) & np.isin(window.module, modules)
    of_parameters &= np.isin(lives.requested, np.unique(lives.requested[rows]))
    if not of_parameters.any():
        return None
    there = rows[window.at_peak[rows]]
    # What is added to a gradient that is there is as large as it is.
    added = (window.phase == Phase.BACKWARD) & np.isin(window.module, modules)
    added &= ~window.has_owner & np.isin(lives.requested, np.unique(lives.requested[rows]))
    every = np.union1d(rows, np.flatnonzero(added))
    return UnreadGradients(
        row=int(rows[np.argmax(lives.size[rows])]),
        rows=rows,
        nbytes=int(lives.size[there].sum()),
        saving=window.replayed(window.whole(every)),
        modules=_in_words(sorted(names[at] for at in modules)),
        within_model=True,
        made_at=place_of(window.frame_of(window.main_site(of_parameters))),
    )


def _outlast_steps(window: Window, gradient: Bools, state: Collection[int]) -> Bools:
    """Which gradients stay for many more steps than any of what an optimizer with state trains.

    Whoever goes through a model before an evaluation, as Lightning does, clears them then.
    """
    trained = np.isin(window.module, list(state))
    age = window.freed_in - window.made_in
    cleared = gradient & trained & (window.lives.free < window.events)
    if not cleared.any():
        return np.zeros(len(window.lives), dtype=bool)
    longest = max(int(age[cleared].max()), _FEWEST_LEFT)
    outlasting = gradient & ~trained & (age > longest)
    # of these the last ones may have been made shortly before the end
    modules = np.unique(window.module[outlasting])
    to_the_end = gradient & np.isin(window.module, modules) & (window.lives.free >= window.events)
    lasting: Bools = outlasting | to_the_end
    return lasting


def _has_states(programs: Collection[Program]) -> bool:
    """Whether the one optimizer that programs make keeps states, and nothing else reads gradients.

    Of several, one may not have stepped yet. L-BFGS has one state for all that it trains.
    """
    made = [call for call, _ in optimizers_made(programs)]
    if any(optimizers_made(programs, (_ONE_FOR_ALL,))):
        return False
    is_read = any(map(reads_gradients, programs))
    return len(made) == 1 and _keeps_states(made[0]) and not is_read


def _keeps_states(optimizer: ast.Call) -> bool:
    if called_name(optimizer) != _WITHOUT_STATES:
        return True
    momentum = keyword(optimizer, "momentum")
    return isinstance(momentum, ast.Constant) and bool(momentum.value)


def _runs_within(window: Window, own: OwnGraph, trained: Collection[str]) -> bool:
    """Whether the line that calls them alone is of a forward pass of a part of a trained model.

    So many calls of modules led to it: the part has that depth in the model.
    """
    stacks = np.unique(window.lives.stack[own.rows]).tolist()
    called = [one for one in stacks if own.called_at in window.trace.stack(one)]
    if own.called_at is None or not called:
        return False
    row = int(own.rows[window.lives.stack[own.rows] == called[0]][0])
    stack = window.stack(row)
    outer = stack[stack.index(own.called_at) :]
    depth = sum(one.name.rpartition(".")[2] == _MODULE_CALL for one in outer)
    names = window.module_name(row).split(".")
    part, around = ".".join(names[:depth]), ".".join(names[: depth - 1])
    return (
        depth > 1
        and any(f"{one}.".startswith(f"{around}.") for one in trained)
        and not any(f"{one}.".startswith(f"{part}.") for one in trained)
    )


def _where_chosen(match: UnreadGradients, case: Case) -> Place | None:
    """Where a program decides that a part is not trained: its one call of ``part.eval()``.

    Or of what the part lies in. Else where it makes its one optimizer.
    """
    parts = match.path.split(".")[1:]
    evaluating = [
        place
        for program in case.programs
        for call in calls_in(program.tree, "eval")
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Attribute)
        and call.func.value.attr in parts
        and (place := program.place(call)) is not None
    ]
    optimizers = [place for _, place in optimizers_made(case.programs)]
    places = evaluating or optimizers
    return places[0] if len(places) == 1 else None


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _called_from(case: Case) -> Place | None:
    """The statement outside all modules from which what made the tensors was called."""
    outside = (p for f, p in case.frames if f.name.rpartition(".")[2] != "forward")
    return next(outside, None)


def _zeroes_gradients(program: Program) -> bool:
    """Whether a file fills gradients with zeros, as ``zero_grad(set_to_none=False)`` does."""
    for call in calls_in(program.tree, "zero_grad", "zero_"):
        if called_name(call) == "zero_grad":
            set_to_none = keyword(call, "set_to_none") or next(iter(call.args), None)
            if set_to_none is not None and not (
                isinstance(set_to_none, ast.Constant) and set_to_none.value is True
            ):
                return True
        elif any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(call.func)):
            return True
    return False


def _roots(paths: list[str]) -> set[str]:
    return {path.split(".")[0] for path in paths}


def _forward_site(
    window: Window, modules: set[int], training_modules: set[int], otherwise: int
) -> int:
    """The row of the largest activation of those modules and their neighbours: of their graph."""
    names = window.owners.module.names
    around = common_module([names[m] for m in modules])
    near = {at for at, name in enumerate(names) if f"{name}.".startswith(f"{around}.")}
    if not around:
        near = untrained_around(names, modules, training_modules)
    mask = (window.category == Category.ACTIVATION) & np.isin(window.module, list(near))
    return window.main_site(mask) if mask.any() else otherwise


def _in_words(names: list[str], trained: Sequence[str] = ()) -> str:
    """``Net.encoder`` for all that lie below it; the outermost ones where they share nothing.

    Of one module around what is trained it is its own parameters, and not those of its parts.
    """
    path = common_module(names)
    if names == [path] and any(one.startswith(f"{path}.") for one in trained):
        return f"the parameters that `{path}` has of its own"
    return f"`{path}`" if path else in_words(names, trained)


def _without_gradients(case: Case, place: Place) -> str:
    """``with torch.no_grad(): wanted = teacher(x)``; empty where what comes before may learn.

    A teacher's input is a batch; but an image that is trained by the features that a network makes
    of it, or a generator by the critic, gets its gradient through that very call.
    """
    statement, programs = place.statement, case.everywhere
    if not isinstance(statement, ast.Assign) or isinstance(statement.targets[0], ast.Tuple):
        return ""
    call = statement.value
    if not isinstance(call, ast.Call) or is_object(place, call):
        return ""
    if any(program.functions(called_name(call)) for program in programs):
        return ""  # no module, but a function, that may call others as well
    if not takes_no_gradient(programs, place, call) or not trains_besides(programs, place, call):
        return ""
    if qualified_name(place, ast.Name("torch", ast.Load())) != "torch":
        return ""
    return diff(place.program, within(place.program, statement, "with torch.no_grad():"))


RULE = UnusedGradients()
