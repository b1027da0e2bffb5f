"""whole-vocabulary: a vocabulary is trained whole beside adapters, for tokens added to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import arguments_named
from memprof.source_code.program import Place, Program, assigned, called_name
from memprof.source_code.unfreezing import unfreezing
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_WHOLE = ".modules_to_save."
"""Where PEFT keeps the copies of layers that it was told to train whole."""
_ARGUMENT = "modules_to_save"
_GROWS = "resize_token_embeddings"
"""How transformers makes room for more tokens."""
_ADAPTED = "Peft"
"""How the classes begin that PEFT puts around a model."""
_ADAPTERS = ".lora_"
_BASE_LAYER = ".base_layer"
"""What PEFT calls the layer of the model inside the one with adapters that stands in its place."""
_ADDED_BY_TRAINING = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedVocabulary(Match):
    """How it comes that the vocabulary is trained."""

    is_unfrozen: bool = False
    """The program has unfrozen the model's own; else PEFT has copied it."""


class WholeVocabulary(WasteRule[TrainedVocabulary]):
    """`LoraConfig(modules_to_save=["embed_tokens", "lm_head"])` after `resize_token_embeddings`."""

    name = "whole-vocabulary"
    summary = "a vocabulary is trained whole beside adapters, for tokens added to it"
    fixes = ("trainable_tokens",)

    def matches(self, window: Window) -> Iterator[TrainedVocabulary]:
        """The largest layers that are trained whole, with all that training adds."""
        if not any(map(_adds_tokens, window.programs)):
            return
        names = window.owners.module.names
        is_whole = np.array([_WHOLE in name for name in names], dtype=np.bool_)
        if any(_choices(window.programs)) and is_whole[window.module].any():
            match = _trained(window, is_whole[window.module], is_unfrozen=False)
        else:
            match = _trained(window, _unfrozen(window), is_unfrozen=True)
        if match is not None:
            yield match

    def title(self, match: TrainedVocabulary) -> str:
        """Say whose they are."""
        if match.is_unfrozen:
            return "are what the training of a whole vocabulary needs beside adapters"
        return "are a copy of a whole vocabulary and what its training needs"

    def advice(self, match: TrainedVocabulary, case: Case) -> Iterator[Advice]:
        """Train the rows of the tokens that were added."""
        added = (
            f"The program adds tokens (`{_GROWS}`); if these are what is to be learned, their rows "
            "are enough."
        )
        if match.is_unfrozen:
            places = [place for program in case.programs for place in unfreezing(program)]
            why = (
                "A vocabulary that PEFT has frozen is unfrozen, and has a gradient and optimizer "
                f"state for every token: {format_bytes(match.nbytes)}. {added}"
            )
            yield Advice("trainable_tokens", why, places[0] if len(places) == 1 else case.site)
            return
        choices = list(_choices(case.programs))
        place, value = choices[0] if len(choices) == 1 else (case.site, None)
        line = value.lineno if value is not None else 0
        why = (
            f"PEFT copies each layer of `{_ARGUMENT}`, and each copy has a gradient and optimizer "
            f"state for every token: {format_bytes(match.nbytes)}. {added}"
        )
        yield Advice("trainable_tokens", why, place, line)


def _trained(window: Window, of_layers: Bools, *, is_unfrozen: bool) -> TrainedVocabulary | None:
    """The largest of some layers that have gradients, with all that is there for their training.

    The vocabulary goes in and comes out: a head of a few classes is not meant.
    """
    gradients = of_layers & (window.category == Category.GRADIENT)
    if not gradients.any():
        return None
    sizes, names = window.lives.size, window.owners.module.names
    largest = int(sizes[gradients].max())
    is_largest = np.zeros(len(names), dtype=np.bool_)
    is_largest[window.module[gradients & (sizes == largest)]] = True
    kinds = _ADDED_BY_TRAINING if is_unfrozen else (Category.PARAMETER, *_ADDED_BY_TRAINING)
    rows = np.flatnonzero(of_layers & is_largest[window.module] & np.isin(window.category, kinds))
    return TrainedVocabulary(
        row=int(rows[np.argmax(sizes[rows])]),
        rows=rows,
        nbytes=int(sizes[rows[window.at_peak[rows]]].sum()),
        saving=window.replayed(window.whole(rows)),
        is_unfrozen=is_unfrozen,
    )


def _unfrozen(window: Window) -> Bools:
    """What is of layers that a model with adapters has as large as any, beside its adapters.

    Of nothing where the weights below the adapters are trained: then more than that is unfrozen.
    """
    names, sizes = window.owners.module.names, window.lives.size
    nothing = np.zeros(len(window.lives), dtype=np.bool_)
    gradients = window.category == Category.GRADIENT
    trained = {names[one] for one in np.unique(window.module[gradients]).tolist()}
    roots = {one.partition(".")[0] for one in trained if _ADAPTERS in one}
    roots = {one for one in roots if one.startswith(_ADAPTED)}
    if not roots or any(one.endswith(_BASE_LAYER) for one in trained):
        return nothing
    is_own = np.array(
        [
            one.partition(".")[0] in roots and _ADAPTERS not in one and _WHOLE not in one
            for one in names
        ]
    )
    of_model = np.array([one.partition(".")[0] in roots for one in names])[window.module]
    parameters = window.at_peak & of_model & (window.category == Category.PARAMETER)
    grown = [
        number
        for number in np.unique(window.lives.stack[parameters]).tolist()
        if any(one.name.rpartition(".")[2] == _GROWS for one in window.trace.stack(number))
    ]
    if grown:  # they are made elsewhere where the model is moved to a device
        parameters &= np.isin(window.lives.stack, grown)
    largest = int(sizes[parameters].max(initial=0))
    with_largest = np.zeros(len(names), dtype=np.bool_)
    with_largest[window.module[parameters & (sizes == largest)]] = True
    layers: Bools = (is_own & with_largest)[window.module]
    return layers


def _choices(programs: Sequence[Program]) -> Iterator[tuple[Place, ast.expr]]:
    """The layers that the program tells PEFT to train whole, each with its statement.

    By an argument or an entry of that name, or by an attribute: ``config.modules_to_save = names``.
    """
    yield from arguments_named(programs, _ARGUMENT)
    for program in programs:
        for node in program.nodes:
            for target, value in assigned(node):
                place = program.place(node)
                is_set = isinstance(target, ast.Attribute) and target.attr == _ARGUMENT
                if is_set and value is not None and place is not None:
                    yield place, value


def _adds_tokens(program: Program) -> bool:
    return any(called_name(node) == _GROWS for node in program.nodes)


RULE = WholeVocabulary()
