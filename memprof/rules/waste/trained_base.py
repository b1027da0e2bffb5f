"""trained-base: weights below adapters are trained as well, though PEFT freezes them.

Or a class of the program's own puts adapters beside layers, and nothing freezes these.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.adapters import Adapter, adapters_by_hand
from memprof.source_code.program import Program, called_name
from memprof.source_code.unfreezing import unfreezing
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_MOST_OWN = 0.25
"""Of a layer's gradient, that those of adapters beside it take: of low rank they are small."""
_BASE_LAYER = ".base_layer"
"""What PEFT calls the layer of the model inside the one with adapters that stands in its place."""
_ADAPTERS = ".lora_"
_ON_PURPOSE = ".modules_to_save"
"""Where PEFT keeps layers that it was told to train whole."""
_CHECKPOINTING = "gradient_checkpointing_enable"
_FREEZING = "model.requires_grad_(False)"
_FREEZING_WEIGHT = "self.weight.requires_grad_(False)"
_INPUTS = "model.enable_input_require_grads()"
"""What models have against the error that checkpointing raises where no input needs a gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedBaseWeights(Match):
    """Whose they are."""

    adapter: Adapter | None = None
    """The class of the program's own that has the adapters; None: PEFT."""


class TrainedBase(WasteRule[TrainedBaseWeights]):
    """`model.requires_grad_(True)` after `get_peft_model`, against an error of checkpointing."""

    name = "trained-base"
    summary = "weights below adapters are trained as well"
    fixes = ("freeze_params",)

    def matches(self, window: Window) -> Iterator[TrainedBaseWeights]:
        """Gradients and optimizer states of a model's own weights, beside those of its adapters."""
        names = window.owners.module.names
        of_training = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
        trained = {names[module] for module in np.unique(window.module[of_training]).tolist()}
        models = {name.partition(".")[0] for name in trained if name.endswith(_BASE_LAYER)} & {
            name.partition(".")[0] for name in trained if _ADAPTERS in name
        }
        base = [
            name.partition(".")[0] in models and _ADAPTERS not in name and _ON_PURPOSE not in name
            for name in names
        ]
        if any(base):
            yield from _match(window, of_training, base, None)
            return
        for adapter in adapters_by_hand(window.programs):
            if not adapter.base:
                own = of_training & _weights_of(window, adapter)
                if own.any():
                    yield _of_rows(window, np.flatnonzero(own), adapter)
                    return
                continue
            base = _beside_adapters(window, adapter)
            if any(base):
                yield from _match(window, of_training, base, adapter)
                return

    def title(self, match: TrainedBaseWeights) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose they are."""
        return "are gradients and optimizer state of the weights below the adapters"

    def advice(self, match: TrainedBaseWeights, case: Case) -> Iterator[Advice]:
        """Leave the weights frozen, or freeze them."""
        programs, nbytes = case.programs, format_bytes(match.nbytes)
        if match.adapter is not None:
            adapter = match.adapter
            at = adapter.place
            place = case.place_at(at.program.filename, at.line) or case.site
            if not adapter.base:
                why = (
                    f"`{adapter.class_name}` trains its own `weight` beside the adapters that it "
                    f"adds: {nbytes} are for that."
                )
                yield Advice("freeze_params", why, place, typed=_FREEZING_WEIGHT)
                return
            why = (
                f"Adapters are trained beside `{adapter.base}`, and so is the model that they are "
                f"put into: {nbytes} are for that. Freeze the model before they are put in, and "
                "give the optimizer what is left."
            )
            yield Advice("freeze_params", why, place, typed=_FREEZING)
            return
        places = [place for program in programs for place in unfreezing(program)]
        place = places[0] if len(places) == 1 else None
        by = f"`{ast.unparse(place.statement)}`" if place is not None else "something"
        why = (
            f"PEFT has frozen the weights below the adapters, and {by} has unfrozen them: {nbytes} "
            "are for their training."
        )
        typed = ""
        if any(map(_is_checkpointed, programs)):
            why += " Checkpointing needs gradients of a model's inputs only."
            typed = _INPUTS
        yield Advice("freeze_params", why, place or case.site, typed=typed)


def _match(
    window: Window, of_training: Bools, base: Sequence[bool], adapter: Adapter | None
) -> Iterator[TrainedBaseWeights]:
    """Of what training needs, that of some modules: ``base`` has an entry for each."""
    rows = np.flatnonzero(of_training & np.array(base, dtype=np.bool_)[window.module])
    if len(rows):
        yield _of_rows(window, rows, adapter)


def _of_rows(window: Window, rows: Ints, adapter: Adapter | None) -> TrainedBaseWeights:
    return TrainedBaseWeights(
        row=int(rows[np.argmax(window.lives.size[rows])]),
        rows=rows,
        nbytes=int(window.lives.size[rows[window.at_peak[rows]]].sum()),
        saving=window.replayed(window.whole(rows)),
        adapter=adapter,
    )


def _weights_of(window: Window, adapter: Adapter) -> Bools:
    """Per lifetime: whether it has the size of the weight of a layer that has adapters itself.

    It is the largest parameter of its module, and the adapters are small beside it.
    """
    lives, tables = window.lives, window.trace.tables
    name = f"{adapter.class_name}.forward"
    own = np.zeros(len(lives), dtype=bool)
    stacks = [
        at
        for at in range(len(tables.stacks))
        if any(one.name.endswith(name) for one in tables.stack(at))
    ]
    made = np.isin(lives.stack, stacks) & (window.phase == Phase.FORWARD)
    gradients = (window.category == Category.GRADIENT) & (window.made_in >= 0)
    for module in np.unique(window.module[made]).tolist():
        of_module = window.module == module
        parameters = lives.requested[of_module & (window.category == Category.PARAMETER)]
        sizes = lives.requested[of_module & gradients]
        weight = int(parameters.max(initial=0))
        others = sizes[sizes < weight]
        if module and weight in sizes and 0 < others.max(initial=0) <= _MOST_OWN * weight:
            own |= of_module & (lives.requested == weight)
    return own


def _beside_adapters(window: Window, adapter: Adapter) -> list[bool]:
    """For each module whether it is of a model with such adapters, and none of these.

    Their own gradients take little beside that of the layer which they stand beside.
    """
    names = window.owners.module.names
    gradients = (window.category == Category.GRADIENT) & (window.made_in >= 0)
    largest: Counter[str] = Counter()
    for module in np.unique(window.module[gradients]).tolist():
        of_module = gradients & (window.module == module)
        largest[names[module]] = int(window.lives.requested[of_module].max())
    around = {name.rpartition(".")[0] for name in names if name.endswith(f".{adapter.base}")}
    models, layers = set(), set()
    for layer in around:
        inside = f"{layer}.{adapter.base}."
        own = [
            name
            for name in largest
            if f"{name}.".startswith(f"{layer}.") and not f"{name}.".startswith(inside)
        ]
        of_base = (largest[name] for name in largest if f"{name}.".startswith(inside))
        base = max(of_base, default=0)
        if base and own and max(largest[name] for name in own) <= _MOST_OWN * base:
            models.add(layer.partition(".")[0])
            layers.update(own)
    return [name.partition(".")[0] in models and name not in layers for name in names]


def _is_checkpointed(program: Program) -> bool:
    """Whether a program asks a model to keep no activations: transformers' switch."""
    return any(
        called_name(node) == _CHECKPOINTING
        or (isinstance(node, ast.keyword) and node.arg == "gradient_checkpointing")
        for node in program.nodes
    )


RULE = TrainedBase()
