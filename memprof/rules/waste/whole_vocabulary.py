"""whole-vocabulary: a vocabulary is trained whole beside adapters, for tokens added to it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import arguments_named
from memprof.source_code.program import Program, called_name
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_WHOLE = ".modules_to_save."
"""Where PEFT keeps the copies of layers that it was told to train whole."""
_ARGUMENT = "modules_to_save"
_GROWS = "resize_token_embeddings"
"""How transformers makes room for more tokens."""
_OF_TRAINING = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


class WholeVocabulary(WasteRule[Match]):
    """`LoraConfig(modules_to_save=["embed_tokens", "lm_head"])` after `resize_token_embeddings`."""

    name = "whole-vocabulary"
    summary = "a vocabulary is trained whole beside adapters, for tokens added to it"
    fixes = ("trainable_tokens",)

    def matches(self, window: Window) -> Iterator[Match]:
        """The copies of the largest layers that are trained whole, with all that training adds."""
        if not (
            any(map(_adds_tokens, window.programs))
            and list(arguments_named(window.programs, _ARGUMENT))
        ):
            return
        names = window.owners.module.names
        is_whole = np.array([_WHOLE in name for name in names], dtype=np.bool_)
        of_layers = is_whole[window.module]
        gradients = of_layers & (window.category == Category.GRADIENT)
        if not gradients.any():
            return
        # the vocabulary goes in and comes out: a head of a few classes is not meant
        sizes = window.lives.size
        is_largest = np.zeros(len(names), dtype=np.bool_)
        largest = int(sizes[gradients].max())
        is_largest[window.module[gradients & (sizes == largest)]] = True
        kinds = np.isin(window.category, _OF_TRAINING)
        rows = np.flatnonzero(of_layers & is_largest[window.module] & kinds)
        yield Match(
            row=int(rows[np.argmax(sizes[rows])]),
            rows=rows,
            nbytes=int(sizes[rows[window.at_peak[rows]]].sum()),
            saving=window.replayed(window.whole(rows)),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose they are."""
        return "are a copy of a whole vocabulary and what its training needs"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Train the rows of the tokens that were added."""
        choices = list(arguments_named(case.programs, _ARGUMENT))
        place, value = choices[0] if len(choices) == 1 else (case.site, None)
        line = value.lineno if value is not None else 0
        why = (
            f"PEFT copies each layer of `{_ARGUMENT}`, and each copy has a gradient and optimizer "
            f"state for every token: {format_bytes(match.nbytes)}. The program adds tokens "
            f"(`{_GROWS}`); if these are what is to be learned, their rows are enough."
        )
        yield Advice("trainable_tokens", why, place, line)


def _adds_tokens(program: Program) -> bool:
    return any(called_name(node) == _GROWS for node in program.nodes)


RULE = WholeVocabulary()
