"""growing-container: a list, a dict or a set is filled in every step and never emptied."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Holder
from memprof.reference_chain import LinkKind, is_bounded, largest_container
from memprof.rules.case import Case
from memprof.rules.containers import (
    FilledContainer,
    filled_container,
    gradient_of_data,
    has_fixed_keys,
    left_in,
    taken_at,
)
from memprof.rules.emptied_beside import advice_on_left, advice_on_missed
from memprof.rules.results_read import fate_of, reads_outside_torch
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.rules.saving import survivors
from memprof.rules.source_facts import handed_over
from memprof.rules.unread_fields import generated_part
from memprof.source_code.container_reads import Which, items_read
from memprof.source_code.program import Place, Program, assigned, calls_in, root_name
from memprof.source_code.reduced_containers import fields_read, reduction_of_all, sum_of_items
from memprof.source_code.reductions import Reduced
from memprof.source_code.scopes import parameters
from memprof.source_code.single_pass import single_pass
from memprof.source_code.values import values_of
from memprof.trace import Phase
from memprof.views.peak_without import Cuts, Saving, replayed

__all__ = ["RULE"]


_MOSTLY = 0.5
"""Share of the bytes that stay when the graph is cut off."""
_ADAPTERS, _OF_ADAPTERS = ".lora_", "get_peft_model_state_dict(model)"
"""In the paths of PEFT's modules; and what gives their state alone."""
_MOST_LINES = 3
"""Lines that are named."""
_KEEPING = {
    Which.BEST: "only the best few of it are read ({}): take the others out as they come",
    Which.DRAWN: "items are drawn from all that it has ({}): let the oldest go once there are "
    "enough (`deque(maxlen=…)`)",
    Which.FIRST: "only its first item is read ({}): keep that, and put no more into it",
    Which.NEWEST: "only its newest items are read ({}): keep those alone (`deque(maxlen=…)`)",
}
"""What is to be kept of a container of which some items are read."""
_FIELDS = {
    "EvalLoopOutput": ("predictions", "label_ids", "metrics", "num_samples"),
    "PredictionOutput": ("predictions", "label_ids", "metrics"),
    "TrainOutput": ("global_step", "training_loss", "metrics"),
}
"""Of the tuples that a Trainer returns, in their order (``transformers.trainer_utils``, 5.x)."""


@dataclass(frozen=True, slots=True, eq=False)
class GrownContainer(Cause):
    """The container, and where what it takes comes from."""

    container: FilledContainer
    origin: Place


class GrowingContainer(GrowthRule[GrownContainer]):
    """`self.outputs.append(out)` in every step, and no `clear()`."""

    name = "growing-container"
    summary = "a container is filled in every step and never emptied"
    fixes = (
        *("own_container", "running_total", "reduce_predictions", "del_ref", "clear_container"),
        *("cpu_offload", "detach", "set_to_none"),
    )
    yields_to = (*EVERY_OTHER, "no-backward", "reference-cycle")

    def match(self, case: Case) -> GrownContainer | None:
        """A container that the program's own source fills."""
        container = filled_container(case)
        if container is None or has_fixed_keys(container) or _is_put_in_later(container):
            return None
        if case.graph and case.kept_itself < _MOSTLY and is_bounded(container.holder.links):
            return None  # it is what hangs on its items that grows
        source = handed_over(case, container.place, container.filling.values[-1])
        return GrownContainer(container, source[0] if source is not None else container.place)

    def advice(self, cause: GrownContainer, case: Case) -> Iterator[Advice]:
        """Empty it; or keep its items on the host, where their graphs do not come along."""
        if any(map(gradient_of_data, case.finding.holders)):
            name = cause.container.filling.container
            are_kept = not gradient_of_data(cause.container.holder)
            asking = _asks_itself(case) if not are_kept else None
            if asking is not None:
                place, variable = asking
                yield Advice(
                    "detach",
                    f"`{variable}` is the tensor that `{name}` keeps, and from here on asks for a "
                    "gradient, which a backward pass leaves in its `.grad`: ask for that of a "
                    "tensor of its own, which has the same values.",
                    place,
                    typed=f"{variable} = {variable}.detach().requires_grad_(True)",
                )
            value = cause.container.filling.values[-1] if are_kept else None
            yield Advice(
                "set_to_none",
                f"A backward pass leaves a gradient in `.grad` of every tensor in `{name}` that "
                "asks for one: set it to None once it is read, or ask for it by "
                "`torch.autograd.grad`, which stores none."
                + " Or keep the tensors detached, which have none."
                * are_kept,
                cause.container.place if are_kept else case.site,
                remains=1 - _share_of_gradients(case) if are_kept else 0.0,
                typed=f"{value.id}.grad = None" if isinstance(value, ast.Name) else "",
                above_all=are_kept,  # the tensors may be needed, the gradients are not
            )
            if not are_kept:
                return
        why, how = str(cause.container), "`.detach().cpu()`" if case.graph else "`.cpu()`"
        if _is_default(cause.container.holder):
            yield Advice(
                "own_container",
                f"{why}: a default argument is one container for all calls. Let the default be "
                "None, and make it in the function.",
                cause.container.place,
            )
        shared = _taken_over(cause.container)
        if shared is not None:
            place, given = shared
            yield Advice(
                "own_container",
                f"{why}: it is `{given}`, which all objects that are given it fill together. Make "
                "one for each, with what is in that.",
                place,
                typed=f"list({given})",
            )
        yield from advice_on_missed(case)
        name = cause.container.filling.container
        if name.startswith("self."):
            yield from advice_on_left(case, name.rpartition(".")[2], cause.container.length)
        yield from _as_it_comes(cause, case, why)
        if _has_whole_states(cause, case):
            yield Advice(
                "del_ref",
                f"{why}, and each item is the state of a whole model, of which only the adapters "
                "are trained: keep theirs alone.",
                cause.container.place,
                typed=_OF_ADAPTERS,
            )
        left = left_in(cause.container)
        if left is not None:
            place, entry = left
            how_left = f"line {place.line} reads `{entry}` and leaves it in: take it out there"
            yield Advice("clear_container", f"{why}: {how_left}.", place)
        else:
            how_released = _release_text(cause, case.programs)
            yield Advice("clear_container", f"{why}: {how_released}.", cause.container.place)
        if case.of_model:
            return
        yield Advice(
            "cpu_offload",
            f"{why}: keep its items in host memory ({how}), or the numbers needed of them.",
            cause.origin,
            # Where most of the bytes are the graph's, or a number would do, others know better.
            otherwise=case.scalar or case.kept_itself <= _MOSTLY,
        )


def _share_of_gradients(case: Case) -> float:
    """The share of the bytes that grow which backward passes made."""
    window = case.window
    if window is None:
        return 1.0
    rows = np.flatnonzero(np.isin(window.lives.alloc, case.finding.evidence.allocs))
    sizes = window.lives.size[rows]
    return float(sizes[window.phase[rows] == Phase.BACKWARD].sum()) / max(1, int(sizes.sum()))


def _is_default(holder: Holder) -> bool:
    """Whether it is a default argument's container, and none of functions that each have one."""
    kinds = [link.kind for link in holder.links]
    if LinkKind.DEFAULT_ARGUMENT not in kinds:
        return False
    return LinkKind.ITEM not in kinds[: kinds.index(LinkKind.DEFAULT_ARGUMENT)]


def _taken_over(container: FilledContainer) -> tuple[Place, str] | None:
    """Where an object makes a list its own that it is given, and adds what it has just made to it.

    ``self.callbacks = config.callbacks``, and `self.callbacks.append(BestWeights())` beside it.
    """
    place, filling = container.place, container.filling
    function = place.function
    is_of_object = filling.container.startswith("self.") and not filling.keyed
    if function is None or function.name != "__init__" or not is_of_object:
        return None
    if not isinstance(filling.values[-1], ast.Call):
        return None
    for node in ast.walk(function):
        for target, value in assigned(node):
            if ast.unparse(target) != filling.container:
                continue
            if not isinstance(value, (ast.Attribute, ast.Name)):
                return None
            if root_name(value) not in set(parameters(function)) - {"self"}:
                return None
            at = place.program.place(target)
            return (at, ast.unparse(value)) if at is not None else None
    return None


def _as_it_comes(cause: GrownContainer, case: Case, why: str) -> Iterator[Advice]:
    """Where nothing but reductions are read of all that it has: reduce it as it comes.

    By what operators did with it in the job, or by the source.
    """
    place = cause.container.place
    part = generated_part(cause.container.holder)
    if part:
        how = (
            f"{why}, and each item is all that `generate` returned, its `{part}` as well: compute "
            "what is needed of that as it comes, and keep the result with `sequences`."
        )
        yield Advice("reduce_predictions", how, place)
        return
    attributes = _attributes_read(cause, case.everywhere)
    if attributes:
        are = "is" if len(attributes) == 1 else "are"
        texts = " and ".join(f"`.{one}`" for one in attributes)
        how = f"{why}, and of each item only {texts} {are} read: keep that alone."
        yield Advice("del_ref", how, place)
        return
    name = cause.container.filling.container
    if items_read(place, name, case.everywhere) is not None:
        return  # some of its items are
    fate = fate_of(case.window, case.finding.stack) if case.window is not None else None
    if fate is not None and not reads_outside_torch(case.everywhere):
        if fate.readers:
            how = (
                f"{why} until {fate.lines} what it has, {fate.figures}: compute that of each item "
                "as it comes, and keep the result."
            )
            yield Advice("reduce_predictions", how, place)
            return
        is_variable = "." not in cause.container.filling.container
        if is_variable and not cause.container.is_object:  # else it may be meant for a reader
            how = (
                f"{why}, and no operator computed anything more of what was made there before it "
                "went: leave out what is not read."
            )
            yield Advice("del_ref", how, place)
            return
    reduction = reduction_of_all(place, name, case.everywhere)
    reduction = reduction or sum_of_items(place, name, case.everywhere)
    if reduction is None:
        loop = single_pass(place, name, case.everywhere)
        if loop is not None:
            how = (
                f"{why}, and only the loop of line {loop.line} reads its items, one after the "
                "other: do what it does with each as it comes, and keep none."
            )
            yield Advice("running_total", how, place)
        return
    read = " and ".join(f"`{text}`" for text in reduction.texts)
    read += " is read" if len(reduction.texts) == 1 else " are read"
    only = f"{why}, and of it only {read}"
    if reduction.along is Reduced.EACH_PART:
        how = f"{only}, which each item gives by itself: take that before it is kept."
        yield Advice("reduce_predictions", how, place)
        return
    how = f"{only}: add up what that needs as items come (their sum and number)."
    yield Advice("running_total", how, place, peaks=_without_joined(case, reduction.joined_at))


def _without_joined(case: Case, joining: Place | None) -> Saving | None:
    """The peaks with each item gone in the step after its own, and nothing joined or made of it.

    What a function makes from the statement on that joins. None where nothing of it was recorded:
    then what the items take is all that is known.
    """
    window = case.window
    if window is None or joining is None or not len(case.finding.evidence.allocs):
        return None
    scope, filename = joining.scope, joining.program.filename
    lines = range(joining.line, (getattr(scope, "end_lineno", None) or joining.line) + 1)
    frames = window.owners.sites.frames
    is_there = np.array([one.filename == filename and one.line in lines for one in frames])
    rows = survivors(case.finding, window)
    made = is_there[window.site] & ~window.has_owner & (window.lives.alloc >= 0)
    made[rows] = False
    if not made.any():
        return None
    ends = np.searchsorted(window.step_of_event[:-1], window.made_in[rows] + 1)
    items = Cuts.ended_at(window.line, rows, ends)
    return replayed(window.line, Cuts.joined(items, window.whole(np.flatnonzero(made))))


def _asks_itself(case: Case) -> tuple[Place, str] | None:
    """The only statement by which a variable asks for a gradient, on the way to the tensors.

    ``real.requires_grad_(True)``, in a function that went backward. Not of what that function has
    made itself by a call: such a tensor is not one that the container had before.
    """
    scopes = {id(at.scope): at for _, at in case.frames if at.function is not None}
    asking = [
        (place, call.func.value.id)
        for at in scopes.values()
        for call in calls_in(at.scope, "requires_grad_")
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and [*map(ast.unparse, call.args)] in ([], ["True"])
        if (place := at.program.place(call)) is not None and isinstance(place.statement, ast.Expr)
        if not any(isinstance(one, ast.Call) for one in values_of(place, call.func.value.id))
    ]
    return asking[0] if len(asking) == 1 else None


def _is_put_in_later(container: FilledContainer) -> bool:
    """Whether an item has it under a key that it did not have when it came into the container.

    ``self.pages.append({"ids": ids})`` of a data set, and ``page["bias"] = bias`` in each batch.
    """
    links = container.holder.links
    at = largest_container(links)
    value = container.filling.values[-1]
    entry = links[at + 1] if at is not None and at + 1 < len(links) else None
    if entry is None or entry.kind is not LinkKind.ITEM or entry.type_name != "dict":
        return False
    if not isinstance(value, ast.Dict) or not all(isinstance(k, ast.Constant) for k in value.keys):
        return False
    return entry.name not in {
        repr(key.value) for key in value.keys if isinstance(key, ast.Constant)
    }


def _has_whole_states(cause: GrownContainer, case: Case) -> bool:
    """Whether what fills it is a model's ``state_dict()``, where PEFT has put adapters into one."""
    made_by: list[ast.AST] = [cause.container.filling.values[-1]]
    made_by += [case.site.statement] if case.site is not None else []
    if case.window is None or not any(calls_in(one, "state_dict") for one in made_by):
        return False
    return any(_ADAPTERS in name for name in case.window.owners.module.names)


def _release_text(cause: GrownContainer, programs: Sequence[Program]) -> str:
    """What is to be done, where the program does it at other places, and which those are."""
    lines = taken_at(cause.container)
    if lines:
        where = ", ".join(map(str, lines[:_MOST_LINES]))
        noun = "line" if len(lines) == 1 else "lines"
        return f"take out of it all that is done with, and not only what {noun} {where} takes out"
    name = cause.container.filling.container
    read = items_read(cause.container.place, name, programs)
    if read is not None:
        return _KEEPING[read.which].format(" and ".join(f"`{text}`" for text in read.texts))
    field = _field_read(cause, programs)
    if field:
        return f"of each item only `.{field}` is read: keep that alone"
    if cause.container.is_module:
        return f"delete each part when it is done with (`del {name}[…]`), or fill one again"
    if cause.container.filling.keyed:
        return "take out what is not needed any more (`pop`): the oldest, or each when it was used"
    if calls_in(cause.container.place.statement, "heappush"):
        return "keep the first few: `heapq.heappushpop` once there are enough"
    return "empty it when it has been used, or keep the last few (`deque(maxlen=…)`)"


def _attributes_read(cause: GrownContainer, programs: Sequence[Program]) -> list[str]:
    """The attributes that are read of each item, where what grows is another one of a library's.

    ``outputs.append(model(ids, labels=ids))``, of which ``.loss`` is read, and not ``.logits``.
    """
    links = cause.container.holder.links
    at = largest_container(links)
    link = links[at + 1] if at is not None and at + 1 < len(links) else None
    if link is None or link.kind is not LinkKind.ATTRIBUTE or link.filename:
        return []
    read = fields_read(cause.container.place, cause.container.filling.container, programs)
    return sorted(read) if link.name not in read and len(read) <= _MOST_LINES else []


def _field_read(cause: GrownContainer, programs: Sequence[Program]) -> str:
    """The one field that is read of each item, where what grows is another field of that tuple.

    ``results[name] = trainer.predict(data)``, of which ``.metrics`` is read.
    """
    links = cause.container.holder.links
    at = largest_container(links)
    link = links[at + 1] if at is not None and at + 1 < len(links) else None
    fields = _FIELDS.get(link.type_name.rpartition(".")[2]) if link is not None else None
    if link is None or fields is None or not link.name.isdigit():
        return ""
    place, name = cause.container.place, cause.container.filling.container
    read = fields_read(place, name, programs)
    kept = fields[int(link.name)] if int(link.name) < len(fields) else ""
    return next(iter(read)) if len(read) == 1 and kept and kept not in read else ""


RULE = GrowingContainer()
